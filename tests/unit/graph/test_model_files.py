"""Files of Bayesian and Markov networks, whole, malformed, truncated and lying."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featgraph as fg

SPRINKLER = """// a comment
network "garden" { property author "nobody; at all"; }
variable rain { type discrete [ 2 ] { no, yes }; }
variable sprinkler {
  type discrete[3] { off, "half on", 100% };
  property position = (1, 2) ;
}
variable wet { type discrete [ 2 ] { no, yes }; }
/* tables
   follow */
probability ( rain ) { table 0.8, 0.2; }
probability ( sprinkler | rain ) {
  (no) 0.5, 0.25, 0.25;
  (yes) 1 0 0.0e0;
}
probability ( wet | rain, sprinkler ) {
  default 0.1, 0.9;
  (no, off) 1.0, 0.0;
}
"""


def write(folder: Path, content: str | bytes, name: str = "model") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_network_is_read_with_names_rows_and_defaults(tmp_path: Path) -> None:
    model = fg.read_bif(write(tmp_path, SPRINKLER))
    assert model.states == {
        "rain": ("no", "yes"),
        "sprinkler": ("off", "half on", "100%"),
        "wet": ("no", "yes"),
    }
    assert [f.scope for f in model.factors] == [(0,), (1, 0), (2, 0, 1)]
    rain, sprinkler, wet = (f.table for f in model.factors)
    assert rain.tolist() == [0.8, 0.2]
    assert sprinkler.tolist() == [[0.5, 1], [0.25, 0], [0.25, 0]]
    assert wet[:, 0, 0].tolist() == [1, 0]
    assert (wet[:, 1, 2].tolist(), wet[:, 0, 1].tolist()) == ([0.1, 0.9], [0.1, 0.9])


def test_gzip_crlf_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    plain = fg.read_bif(write(tmp_path, SPRINKLER))
    odd = b"\xef\xbb\xbf" + SPRINKLER.replace("\n", "\r\n").encode()
    packed = fg.read_bif(write(tmp_path, gzip.compress(odd)))
    assert plain.states == packed.states
    for one, other in zip(plain.factors, packed.factors, strict=True):
        assert one.scope == other.scope
        assert np.array_equal(one.table, other.table)


def test_a_table_with_parents_has_its_child_slowest(tmp_path: Path) -> None:
    text = SPRINKLER.replace(
        "(no) 0.5, 0.25, 0.25;\n  (yes) 1 0 0.0e0;", "table .5 1 .25 0 .25 0;"
    )
    model = fg.read_bif(write(tmp_path, text))
    assert model.factors[1].table.tolist() == [[0.5, 1], [0.25, 0], [0.25, 0]]


def test_a_model_its_evidence_and_its_solution(tmp_path: Path) -> None:
    text = "MARKOV 3\n2 3 2\n3\n1 0\n2 1 0\n0\n2 .5 1e0\n6 1 2 3 4 5 6\n1 7\n"
    model = fg.read_uai(write(tmp_path, text))
    assert model.names == ("0", "1", "2")
    assert [f.scope for f in model.factors] == [(0,), (1, 0), ()]
    assert model.factors[1].table.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert model.log_score([1, 2, 0]) == pytest.approx(np.log(1 * 6 * 7))
    evidence = fg.read_uai_evidence(write(tmp_path, "2 0 1\n1 2"))
    assert evidence == {0: 1, 1: 2}
    assert fg.read_uai_evidence(write(tmp_path, "0\n")) == {}
    found = fg.read_uai_marginals(write(tmp_path, "MAR\n2 2 .25 .75 1 1"))
    assert [row.tolist() for row in found] == [[0.25, 0.75], [1]]


def edited(old: str, new: str) -> str:
    assert SPRINKLER.count(old) >= 1
    return SPRINKLER.replace(old, new, 1)


# (content, line, parts of the message)
BIF: dict[str, Any] = {
    "empty": ("", 1, "'network'"),
    "text": ("hello", 1, "hello"),
    "network without block": ("network x", 1, "ends early"),
    "open network": ("network x {\n", 2, "ends early"),
    "no variables": ("network x {}\n", 2, "no variables"),
    "unknown block": (edited("variable wet", "node wet"), 8, "unknown block"),
    "no name": (edited("variable rain {", "variable {"), 3, "name of a variable"),
    "twice": (edited("variable wet", "variable rain"), 8, "declared twice"),
    "no type": (edited("type discrete [ 2 ] { no, yes };", ""), 3, "without states"),
    "continuous": (edited("discrete [ 2 ]", "real [ 2 ]"), 3, "'discrete'"),
    "too few states": (edited("[ 2 ]", "[ 3 ]"), 3, "2 different states", "3"),
    "a state twice": (edited("{ no, yes }", "{ no, no }"), 3, "1 different states"),
    "no number": (edited("[ 2 ]", "[ x ]"), 3, "number of states"),
    "a huge number": (edited("[ 2 ]", f"[ {10**30} ]"), 3, "number of states"),
    "zero states": (edited("[ 2 ]", "[ 0 ]"), 3, "number of states"),
    "open states": (edited("{ no, yes };", "{ no, yes ;"), 3, "states of a variable"),
    "unknown variable": (edited("( rain )", "( sun )"), 11, "not declared"),
    "unknown parent": (edited("| rain )", "| sun )"), 12, "not declared"),
    "own parent": (edited("| rain )", "| sprinkler )"), 12, "not a scope"),
    "two blocks": (
        edited("( sprinkler | rain )", "( rain | sprinkler )"),
        12,
        "two probability blocks",
    ),
    "no block": (SPRINKLER[: SPRINKLER.index("probability ( wet")], 16, "'wet'"),
    "a value too few": (edited("0.8, 0.2", "1.0"), 11, "1 values", "2 values"),
    "a value too many": (edited("0.8, 0.2", "0.8, 0.1, 0.1"), 11, "more than 2"),
    "negative": (edited("0.8, 0.2", "1.2, -0.2"), 11, "not a probability"),
    "nan": (edited("0.8, 0.2", "nan, 0.2"), 11, "not a probability"),
    "infinite": (edited("0.8, 0.2", "1e999, 0.2"), 11, "not a probability"),
    "underscore": (edited("0.8, 0.2", "0.8, 0_2"), 11, "not a probability"),
    "sum": (edited("0.8, 0.2", "0.8, 0.3"), 11, "do not sum to one: rain"),
    "sum of a row": (edited("1 0 0.0e0", "1 0 0.5"), 12, "sprinkler given rain = yes"),
    "missing row": (edited("(yes) 1 0 0.0e0;", ""), 12, "a row is missing", "yes"),
    "a row twice": (edited("(yes) 1", "(no) 1"), 14, "given twice"),
    "unknown state": (edited("(yes) 1", "(maybe) 1"), 14, "rain has no such state"),
    "a state too few": (edited("(no, off)", "(no)"), 18, "each of 2"),
    "a state too many": (edited("(yes) 1", "(yes, yes) 1"), 14, "each of 1"),
    "cycle": (edited("( rain ) { table 0.8, 0.2; }", "( rain | wet ) { default 1 0; }"),
              1, "cycle", "rain, sprinkler, wet"),
    "truncated": (SPRINKLER[:-20], 18, "no such state"),
    "open string": (edited('nobody; at all"', "nobody;"), 2, "open string"),
    "NUL": (edited("( rain )", "( ra\0in )"), 11, "not declared"),
    "endless word": (edited("( rain )", f"( {'x' * 2000} )"), 11, "too long"),
}  # fmt: skip

HEAD = "MARKOV\n2\n2 3\n"
UAI: dict[str, Any] = {
    "empty": ("", 1, "MARKOV or BAYES"),
    "text": ("hello\n", 1, "hello"),
    "no count": ("MARKOV\n", 2, "number of variables"),
    "zero variables": ("MARKOV\n0\n", 2, "number of variables"),
    "claims variables": (f"MARKOV\n{10**13}\n2 2\n", 2, "number of variables"),
    "a huge number": (f"MARKOV\n{10**30}\n2 2\n", 2, "number of variables"),
    "a sign": ("MARKOV\n+2\n2 2\n", 2, "number of variables"),
    "zero states": ("MARKOV\n2\n2 0\n", 3, "number of states"),
    "claims states": ("MARKOV\n2\n2 99999999999\n0\n", 3, "number of states"),
    "many states": ("MARKOV\n2\n1000000 1000000\n0\n", 1, "max_bytes="),
    "claims factors": (HEAD + "999999\n1 0\n", 4, "number of factors"),
    "no scope": (HEAD + "1\n", 5, "variables of a factor"),
    "a long scope": (HEAD + "1\n33 0 1\n", 5, "0 to 32"),
    "unknown variable": (HEAD + "1\n1 2\n", 5, "variable: 0 to 1"),
    "negative variable": (HEAD + "1\n1 -1\n", 5, "variable: 0 to 1"),
    "twice": (HEAD + "1\n2 1 1\n", 5, "twice in a scope"),
    "wrong size": (HEAD + "1\n2 0 1\n5 1 1 1 1 1\n", 6, "2 * 3 = 6 entries"),
    "truncated table": (HEAD + "1\n2 0 1\n6 1 1 1 1\n", 6, "truncated"),
    "one entry short": (HEAD + "1\n1 0\n2 0.5555\n", 7, "not a table entry"),
    "negative": (HEAD + "1\n1 0\n2 1 -1\n", 6, "not a table entry"),
    "nan": (HEAD + "1\n1 0\n2 1 nan\n", 6, "not a table entry"),
    "1e999": (HEAD + "1\n1 0\n2 1 1e999\n", 6, "not a table entry"),
    "extra": (HEAD + "1\n1 0\n2 1 1\n1\n", 7, "more values"),
}

EVIDENCE: dict[str, Any] = {
    "empty": ("", 1, "number of observations"),
    "claims": ("9999 1 1\n", 1, "number of observations"),
    "truncated": ("2 0 1 1\n", 2, "not a state"),
    "negative": ("1 -1 0\n", 1, "not a variable"),
    "two states": ("2 0 1\n0 0\n", 2, "two states"),
    "two sets": ("1 0 1\n1 0 0\n", 2, "more observations"),
}

MARGINALS: dict[str, Any] = {
    "empty": ("", 1, "'mar'"),
    "MPE": ("MPE\n2 1 1\n", 1, "'mar'"),
    "claims": ("MAR\n9999 2 .5 .5\n", 2, "number of variables"),
    "claims states": ("MAR\n1 9999 .5 .5\n", 2, "number of states"),
    "short": ("MAR\n1 2 0.55\n", 3, "not a probability"),
    "extra": ("MAR\n1 2 .5 .5 .5\n", 2, "more values"),
}

READERS = {
    "bif": (fg.read_bif, BIF),
    "uai": (fg.read_uai, UAI),
    "evidence": (fg.read_uai_evidence, EVIDENCE),
    "marginals": (fg.read_uai_marginals, MARGINALS),
}


@pytest.mark.parametrize("pack", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("kind", "case"),
    [(kind, case) for kind, (_, cases) in READERS.items() for case in cases],
)
def test_malformed_files_are_refused_with_their_line(
    kind: str, case: str, pack: bool, tmp_path: Path
) -> None:
    read, cases = READERS[kind]
    content, line, *parts = cases[case]
    raw = content.encode()
    path = write(tmp_path, gzip.compress(raw) if pack else raw)
    with pytest.raises(fg.FileFormatError) as caught:
        read(path)
    text = str(caught.value)
    assert f"{path}:{line}:" in text
    for part in parts:
        assert part in text
    assert caught.value.got is not None or caught.value.expected is not None


@pytest.mark.parametrize("read", [read for read, _ in READERS.values()])
def test_what_is_no_file_of_text_is_refused(read: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")
    with pytest.raises(fg.FileFormatError, match="gzip"):
        read(write(tmp_path, gzip.compress(SPRINKLER.encode())[:-9]))
    with pytest.raises(fg.FileFormatError, match="UTF-16"):
        read(write(tmp_path, SPRINKLER.encode("utf-16")))
    with pytest.raises(fg.FileFormatError, match="max_bytes"):
        read(write(tmp_path, "1 " * 100), max_bytes=100)


def wide_bif() -> str:
    """Tables that a default row fills: 10**4 bytes that claim 10**15 entries."""
    names = [f"x{i}" for i in range(16)]
    states = ", ".join(f"s{i}" for i in range(9))
    lines = [f"variable {n} {{ type discrete [ 9 ] {{ {states} }}; }}" for n in names]
    row = "default 1, 0, 0, 0, 0, 0, 0, 0, 0;"
    lines.append(f"probability ( x0 | {', '.join(names[1:])} ) {{ {row} }}")
    return "network x {}\n" + "\n".join(lines)


def bombs() -> dict[str, Any]:
    """Return names and contents; to compress them takes a second."""
    return {
        "bif table": wide_bif(),
        "uai states": "MARKOV\n1\n1000000000\n1\n1 0\n1000000000 1\n",
        "uai table": "MARKOV\n4\n1000 1000 1000 1000\n1\n4 0 1 2 3\n1000000000000 1\n",
        "gzip": gzip.compress(b" " * (200 << 20)),
    }


def test_bombs_are_refused_before_they_go_off(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    names = [str(write(tmp_path, data, name)) for name, data in bombs().items()]
    code = """
import resource, sys
import featgraph as fg
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2)
for path in sys.argv[1:]:
    read = fg.read_bif if "bif" in path else fg.read_uai
    try:
        print(path, read(path))
    except fg.FileFormatError as error:
        print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["refused"] * len(names), done.stderr


FRAGMENTS = st.sampled_from(
    [
        b"network x { }\n",
        b"variable a { type discrete [ 2 ] { y, n }; }\n",
        b"variable b { type discrete [ 1 ] { y }; }\n",
        b"probability ( a ) { table .5, .5; }\n",
        b"probability ( a | b ) { (y) .5, .5; }\n",
        b"probability ( b ) { default 1; }\n",
        b"{", b"}", b";", b'"', b"|", b"//", b"/*", b"(",
        b"MARKOV\n", b"BAYES ", b"MAR 1 ", b"2\n2 2\n", b"1\n", b"2 0 1\n",
        b"4 1 1 1 1\n", b"1 0 ", b"99999999999 ", b"1e400 ", b"\x1f\x8b", b"\0",
    ]
)  # fmt: skip


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(FRAGMENTS | st.binary(max_size=6), max_size=9))
def test_arbitrary_bytes_are_a_model_or_refused(
    tmp_path: Path, parts: list[bytes]
) -> None:
    path = write(tmp_path, b"".join(parts))
    for read, _ in READERS.values():
        try:
            found: Any = read(path)
        except fg.FileFormatError as error:
            assert str(path) in str(error)  # noqa: PT017
            continue
        if isinstance(found, fg.FactorGraph):
            assert all((factor.table >= 0).all() for factor in found.factors)


PUBLISHED = {"alarm": (37, 46, 752), "asia": (8, 8, 36), "hailfinder": (56, 66, 3741)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_networks_have_their_counts(name: str, data_dir: Path) -> None:
    model = fg.read_bif(data_dir / "bn" / f"{name}.bif.gz")
    arcs = sum(len(factor.scope) - 1 for factor in model.factors)
    entries = sum(factor.table.size for factor in model.factors)
    assert (len(model.names), arcs, entries) == PUBLISHED[name]
