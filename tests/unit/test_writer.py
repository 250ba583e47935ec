"""Lines of generated source: one text for one thing, whichever printer wrote it."""

from __future__ import annotations

import ast

import pytest

from featgraph.fold.printing.writer import Writer


def _written(*lines: str) -> list[str]:
    writer = Writer()
    with writer.block("def f():"):
        for line in lines:
            writer.line(line)
    return [line.removeprefix("    ") for line in writer.lines[1:]]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("best, source = key, u", "best, source = (key, u)"),
        ("place = (cuda.laneid) >> 2", "place = cuda.laneid >> 2"),
        ("x[(v), (f)] += (a) * (b + c)", "x[v, f] += a * (b + c)"),
        ("if is_due and not alive:", "if is_due and (not alive):"),
        ("elif (key == 1):", "elif key == 1:"),
        ("return  # the whole warp", "return  # the whole warp"),
        ("if (a):  # stopped", "if a:  # stopped"),
        ("# gather (weigh): sum", "# gather (weigh): sum"),
        ("else:", "else:"),
    ],
)
def test_brackets_are_those_of_the_tree(line: str, text: str) -> None:
    assert _written(line) == [text]


@pytest.mark.parametrize(
    "line",
    [
        f"if {' or '.join(f'd.distance.shape[{n}] != {n}' for n in range(9))}:",
        f"total = {' + '.join(f'(a_{n} * b_{n})' for n in range(20))}",
        f"first, last = {', '.join(f'offsets[uint32(v + {n})]' for n in range(9))}",
    ],
)
def test_a_long_line_is_broken_and_stays_what_it_is(line: str) -> None:
    lines = _written(line, "    pass") if line.endswith(":") else _written(line)
    assert max(map(len, lines)) <= 84
    whole = f"{line}\n    pass" if line.endswith(":") else line
    assert ast.dump(ast.parse("\n".join(lines))) == ast.dump(ast.parse(whole))
