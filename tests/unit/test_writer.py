"""Lines of generated source: one text for one tree, whatever built it."""

from __future__ import annotations

import ast

import pytest

from featgraph.fold.printing.writer import (
    Writer,
    make_function,
    print_body,
    print_function,
)
from featgraph.fold.tree.nodes import Comment
from featgraph.fold.tree.statements import Body, code, noted, placed


def _written(body: Body) -> list[str]:
    writer = Writer()
    writer.depth = 1
    print_body(writer, body)
    return [line.removeprefix("    ") for line in writer.lines]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("best, source = key, u", "best, source = (key, u)"),
        ("place = (cuda.laneid) >> 2", "place = cuda.laneid >> 2"),
        ("x[(v), (f)] += (a) * (b + c)", "x[v, f] += a * (b + c)"),
        ("if is_due and not alive:\n    n", "if is_due and (not alive):\n    n"),
        ("while (a):\n    pass\nelse:\n    n", "while a:\n    pass\nelse:\n    n"),
        ("for (a, b) in (x):\n    n", "for a, b in x:\n    n"),
    ],
)
def test_brackets_are_those_of_the_tree(line: str, text: str) -> None:
    assert _written(code(line)) == text.split("\n")


def test_remarks_stand_where_the_tree_has_them() -> None:
    assert _written(noted(code("return"), "the whole warp")) == [
        "return  # the whole warp"
    ]
    assert _written(noted(code("if (a):\n    n"), "stopped")) == [
        "if a:  # stopped",
        "    n",
    ]
    assert _written([Comment("gather (weigh): sum")]) == ["# gather (weigh): sum"]
    assert _written([Comment("a\nb")]) == ["# a\\nb"]


@pytest.mark.parametrize(
    "line",
    [
        f"if {' or '.join(f'd.distance.shape[{n}] != {n}' for n in range(9))}:",
        f"while {' and '.join(f'd.distance.shape[{n}] != {n}' for n in range(9))}:",
        f"total = {' + '.join(f'(a_{n} * b_{n})' for n in range(20))}",
        f"total[{', '.join('vf')}] += {' + '.join(f'a_{n}' for n in range(30))}",
        f"kept &= sum_holds({', '.join(f'a_{n}' for n in range(30))})",
        f"first, last = {', '.join(f'offsets[uint32(v + {n})]' for n in range(9))}",
        f"return {' + '.join(f'a_{n}' for n in range(30))}",
        f"for n in among({', '.join(f'a_{n}' for n in range(30))}):",
        f"store({', '.join(f'a_{n}' for n in range(30))})",
    ],
)
@pytest.mark.parametrize("note", ["", "a remark"])
def test_a_long_line_is_broken_and_stays_what_it_is(line: str, note: str) -> None:
    whole = f"{line}\n    pass" if line.endswith(":") else line
    lines = _written(noted(code(whole), note))
    assert max(map(len, lines)) <= 84
    assert ast.dump(ast.parse("\n".join(lines))) == ast.dump(ast.parse(whole))


def test_a_function_is_printed_with_what_stands_around_its_body() -> None:
    body = placed(code("return x"), ast.Pass(lineno=7))
    given = [f"argument_{n}" for n in range(9)]
    node = make_function("njit(**INNER)", "f", given, "What it does.", body)
    node.lineno, writer = 6, Writer()
    print_function(writer, node, "user.py")
    assert writer.lines == [
        "",
        "",
        "# user.py:6",
        "@njit(**INNER)",
        "def f(argument_0, argument_1, argument_2, argument_3, argument_4, argument_5,",
        "    argument_6, argument_7, argument_8):",
        '    """What it does."""',
        "    return x",
    ]
    origin = ("user.py", 6)
    assert writer.origins == {5: origin, 6: origin, 8: ("user.py", 7)}


def test_a_kernel_has_no_lines_of_the_user() -> None:
    writer = Writer()
    print_function(writer, make_function("kernel", "k", ["d"], "", code("")))
    assert writer.lines == ["", "", "@kernel", "def k(d):", "    pass"]
    assert not writer.origins
