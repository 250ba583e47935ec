"""Lines of plain unsigned integers: two functions of the scanner read the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from featgraph.graph.formats import scan
from featgraph.graph.formats.fields import COMMENT, SEPARATOR, marks_of

PLAIN = st.integers(0, 10**18 - 1).map(str) | st.integers(0, 99).map(str)
#: Numbers that are long, signed or none, and what is no number.
LONG = ["0" * 18, "1" * 19, "9" * 18, str(2**63 - 1), str(2**63)]
WORDS = ["", "+1", "-2", "00", "-", "1.5", "x", '"3"', "1_0", "\u0663"]
ODD = st.sampled_from([*LONG, *WORDS])
BETWEEN = {" ": [" ", "\t", "\v", "  ", " \r"], ",": [",", ", "], "\t": ["\t", " \t"]}
ENDS = ["\n", "\r\n", " \n", "\r", "\n\n", "\n# 1 2\n", "\n%", "", "\n \n", "\r\r\n"]


@st.composite
def files(draw: Any) -> tuple[bytes, str, int]:
    """Draw a text of mostly plain lines, its separator, and fields of a line."""
    separator, fields = draw(st.sampled_from(sorted(BETWEEN))), draw(st.integers(1, 3))

    def mostly(usual: Any, others: Any) -> Any:
        return draw(usual if draw(st.integers(0, 9)) else others)

    lines = []
    for _ in range(draw(st.integers(0, 8))):
        count = mostly(st.just(fields), st.integers(0, 4))
        words = [mostly(PLAIN, ODD) for _ in range(count)]
        line = words[0] if words else ""
        for word in words[1:]:
            between = mostly(st.just(separator), st.sampled_from(BETWEEN[separator]))
            line += between + word
        lines.append(line + mostly(st.just("\n"), st.sampled_from(ENDS)))
    return "".join(lines).encode(), separator, fields


def read(
    scan_rows: Any, text: bytes, separator: str, fields: int
) -> tuple[int, list[Any], int]:
    """Return the status, the rows and the position."""
    column = np.zeros((fields, scan.count_lines(np.frombuffer(text, np.uint8))), int)
    status, count, at = scan_rows(
        np.frombuffer(text, np.uint8), 0, marks_of("#%", separator), 0, fields,
        np.full(fields, scan.INTEGER), column, np.zeros(0), np.zeros(0, np.int64),
    )  # fmt: skip
    return int(status), column[:, :count].tolist(), int(at)


def read_carefully(text: bytes, separator: str, fields: int) -> Any:
    """Leave plain lines to the functions for all lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_scan_plain", lambda _, at, *others: (0, at))
        return read(scan.scan_rows.py_func, text, separator, fields)  # type: ignore[attr-defined]


@given(files())
@example((b"1 2\r3 4\n", " ", 2))
@example((b"1 2\n3 4", " ", 2))
@example((b"1 2\r", " ", 2))
@example((b"1,2\n3 4\n5,6\n", ",", 2))
@example((b"1" * 18 + b"\n" + b"1" * 19 + b"\n", " ", 1))
@example((b"9223372036854775808\n", " ", 1))
def test_both_paths_agree(drawn: tuple[bytes, str, int]) -> None:
    assert read(scan.scan_rows, *drawn) == read_carefully(*drawn)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [" ", ",", "\t"])
def test_plain_lines_take_one_call(separator: str, end: str) -> None:
    """All lines up to the first that is not plain, which begins where it stops."""
    text = f"10{separator}2{end}3{separator}{'4' * 18}{end}".encode()
    columns = np.zeros((2, 2), np.int64)
    marks = marks_of("#", separator)
    for rest in (b"", b"#", b"-1,2\n", b"5", b"1" * 19, b"\n", b" 1"):
        given = np.frombuffer(text + rest, np.uint8)
        assert scan._scan_plain(given, 0, marks, 2, columns) == (2, len(text))
        assert columns.tolist() == [[10, 3], [2, int("4" * 18)]]


def test_digits_may_begin_comments() -> None:
    marks = marks_of("1", " ")
    assert marks[ord("1")] == COMMENT
    assert not marks[ord("2")] & SEPARATOR
    column = np.zeros((1, 3), np.int64)
    text = np.frombuffer(b"2\n1\n3\n", np.uint8)
    assert scan._scan_plain(text, 0, marks, 1, column) == (1, 2)
