"""Numbers in text: the nearest double whatever the digits, and lines in pieces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.graph.formats import scan
from featgraph.graph.formats.scan import double_bits
from featgraph.graph.formats.text import Text, scan_table


def bits_of(digits: int, exponent: int) -> float | None:
    is_found, bits = double_bits(np.uint64(digits), exponent)
    return float(np.uint64(bits).view(np.float64)) if is_found else None


@given(st.integers(1, 2**64 - 1), st.integers(-360, 330))
def test_decimals_are_the_nearest_doubles(digits: int, exponent: int) -> None:
    wanted, found = float(f"{digits}e{exponent}"), bits_of(digits, exponent)
    if found is None:
        assert not 2.3e-308 < wanted < math.inf
    else:
        assert found == wanted


@pytest.mark.parametrize(
    ("digits", "exponent"),
    [  # the upper 64 bits of the power of five do not decide
        (6873718075314280181, -76),
        (9582843537697003948, -164),
        (3140922999528304923, -92),
        (3464599926487840263, 160),
        (5914794025851212478, 80),
        (2957775774308664359, 139),
    ],
)
def test_decimals_that_take_more_bits(digits: int, exponent: int) -> None:
    assert bits_of(digits, exponent) == float(f"{digits}e{exponent}")


@given(st.integers(2**52, 2**53 - 1), st.integers(0, 9), st.sampled_from([-1, 0, 1]))
def test_decimals_half_way_are_even(mantissa: int, shift: int, beside: int) -> None:
    digits = ((2 * mantissa + 1) << shift) + beside
    assert bits_of(digits, 0) == float(digits)


#: Those that stay finite when they are rounded to four digits, and infinities.
FLOATS = st.floats(-1e308, 1e308) | st.sampled_from([math.inf, -math.inf])


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_weights_are_what_python_reads(
    tmp_path_factory: pytest.TempPathFactory, weights: list[float]
) -> None:
    path = tmp_path_factory.mktemp("weights") / "edges.txt"
    forms = ["{!r}", "{:+.17g}", "{:.3e}", "{:.25f}", "{:E}"]
    words = [forms[i % 5].format(w)[:900] for i, w in enumerate(weights)]
    path.write_text("".join(f"0 1 {word}\n" for word in words))
    found = fg.read_graph(path, weights=2).weights
    assert found is not None
    assert found.tolist() == [float(word) for word in words]
    assert np.array_equal(np.signbit(found), [w[0] == "-" for w in words])


LINES = ["# aside", "", "3 4", "  5\t6 ", "10 11\r", "# 1 2", "-7 8"]


@given(st.lists(st.sampled_from(LINES), max_size=30), st.integers(1, 5), st.booleans())
def test_pieces_are_one_text(lines: list[str], threads: int, is_ended: bool) -> None:
    data = ("\n".join(lines) + "\n" * is_ended).encode()

    def scanned(count: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan, "PIECE_BYTES", 8)
            patch.setattr(scan, "_threads", lambda: count)
            return scan_table(Text("text", data, 1 << 20), 0, "ii", comments="#")

    wanted = [line.split() for line in lines if line.strip() and line[0] != "#"]
    for found in (scanned(1), scanned(threads)):
        assert found.integers.T.tolist() == [list(map(int, row)) for row in wanted]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("bad", "row_count", "text"),
    [
        ({7: "1 x"}, None, ":8: not an integer"),
        ({17: "1 x", 5: "1 2 3"}, None, ":6: too many fields"),
        ({3: "# aside", 17: "1"}, None, ":18: too few fields"),
        ({17: "1 x"}, 10, ":11: more entries"),
        ({10: "1 x"}, 10, ":11: more entries"),
        ({9: "1 x"}, 10, ":10: not an integer"),
        ({}, 21, "fewer entries"),
    ],
)
def test_the_first_bad_line_of_all_pieces_is_named(
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    bad: dict[int, str],
    row_count: int | None,
    text: str,
) -> None:
    monkeypatch.setattr(scan, "PIECE_BYTES", 8)
    monkeypatch.setattr(scan, "_threads", lambda: threads)
    lines = [bad.get(i, f"{i} {i + 1}") for i in range(20)]
    given = Text("text", "\n".join(lines).encode(), 1 << 20)
    with pytest.raises(fg.FileFormatError, match=text):
        scan_table(given, 0, "ii", comments="#", row_count=row_count)
