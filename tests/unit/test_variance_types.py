"""The middle end: types, variance, normal form, definite writes, access tables."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.analysis.analyse import Analysed, analyse
from featgraph.program.program import Program
from tests.unit.snippets import HEADER, Snippet, fold, in_vertex, make_state


@pytest.fixture(scope="module")
def state() -> fg.State:
    return make_state()


def printed(body: str, state: fg.State, folder: Path, **options: Any) -> str:
    """Return the generated text of a vertex function, without its module."""
    source = fold(Snippet(folder, in_vertex(body)), state, **options).source
    tree = ast.parse(source)
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    return ast.unparse(functions["probe"])


def analysed(body: str, state: fg.State, folder: Path) -> Analysed:
    kernel = fold(Snippet(folder, in_vertex(body)), state)
    return kernel.plan.analysis.functions[0]


# Types: no float64 in a float32 kernel

TYPES = {
    "literal": ("d.s[v] * 0.5", "d.s[v] * float32(0.5)"),
    "integer literal": ("d.s[v] + 1", "d.s[v] + float32(1.0)"),
    "negative literal": ("d.s[v] * -2.0", "d.s[v] * -float32(2.0)"),
    "integer property": ("d.s[v] + d.n[v, f]", "d.s[v] + float32(d.n[v, f])"),
    "integers": ("d.n[v, f] + 1", "d.n[v, f] + 1"),
    "division": ("d.n[v, f] / 2", "float32(d.n[v, f]) / float32(2.0)"),
    "division by a degree": ("d.s[v] / d.in_degree[v]", "float32(d.in_degree[v])"),
    "floor division": ("d.n[v, f] // 2", "d.n[v, f] // 2"),
    "remainder": ("d.n[v, f] % 2", "d.n[v, f] % 2"),
    "power": ("d.s[v] ** 2", "d.s[v] ** 2"),
    "real power": ("d.s[v] ** 0.5", "d.s[v] ** float32(0.5)"),
    "power of an integer": ("d.n[v, f] ** 2", "d.n[v, f] ** 2"),
    "inverse of an integer": (
        "d.n[v, f] ** -1",
        "float32(d.n[v, f]) ** float32(-1)",
    ),
    "scalar": ("d.alpha * d.s[v]", "d.alpha * d.s[v]"),
    "integer scalar": ("d.count_limit * d.s[v]", "float32(d.count_limit) * d.s[v]"),
    "vertex": ("v + d.s[v]", "float32(v) + d.s[v]"),
    "feature": ("f * d.s[v]", "float32(f) * d.s[v]"),
    "superstep": ("d.superstep * d.s[v]", "float32(d.superstep)"),
    "width": ("d.s[v] / d.feature_count", "float32(3)"),
    "condition as number": ("(d.s[v] > 1) + d.s[v]", "float32(d.s[v] > float32(1.0))"),
    "minus": ("-d.n[v, f]", "-int64(d.n[v, f])"),
    "not": ("d.s[v] if not d.n[v, f] else 1", "not d.n[v, f] != 0"),
    "and": ("1 if d.n[v, f] and d.s[v] else 0", "d.n[v, f] != 0 and d.s[v] != float32"),
    "conditional": ("d.s[v] if d.flag[v] else 0", "else float32(0.0)"),
    "min": ("min(d.s[v], 1)", "min(d.s[v], float32(1.0))"),
    "math": ("math.sqrt(d.n[v, f])", "math.sqrt(float32(d.n[v, f]))"),
    "numpy": ("np.exp(d.s[v])", "math.exp(d.s[v])"),
    "floor": ("math.floor(d.s[v])", "float32(np.floor(d.s[v]))"),
    "float": ("float(d.n[v, f])", "float32(d.n[v, f])"),
    "int": ("int(d.s[v])", "numbers.to_int(d.s[v])"),
    "int of an integer": ("int(d.n[v, f])", "int64(d.n[v, f])"),
    "abs": ("abs(d.s[v])", "abs(d.s[v])"),
    "infinity": ("math.inf + d.s[v]", "float32(math.inf)"),
    "bits": ("d.n[v, f] & 3 | 4", "d.n[v, f] & 3 | 4"),
}


@pytest.mark.parametrize(("expression", "expected"), TYPES.values(), ids=TYPES)
def test_types(expression: str, expected: str, state: fg.State, tmp_path: Path) -> None:
    text = printed(f"t = {expression}\nreturn d.x[v, f] > t", state, tmp_path)
    assert expected in text
    assert "float64" not in text


def test_float64_states(tmp_path: Path) -> None:
    text = printed(
        "return d.x[v, f] * 0.5 > d.alpha", make_state(dtype=np.float64), tmp_path
    )
    assert "float64(0.5)" in text
    assert "float32" not in text


def test_locals_have_one_type(state: fg.State, tmp_path: Path) -> None:
    """An integer that a later path makes real is real from the start."""
    body = "t = 0\nfor i in range(3):\n    t = t + d.x[v, f]\nreturn t > 1"
    assert "t = float32(0.0)" in printed(body, state, tmp_path)
    variables = analysed(body, state, tmp_path).variables
    assert variables["t"] == "real"
    assert variables["i_"] == "int64"


def test_what_is_stored(state: fg.State, tmp_path: Path) -> None:
    text = printed(
        "d.flag[v] = d.count_limit\nd.y[v, f] = d.n[v, f]\nd.parent[v] = int(d.s[v])\n"
        "return d.n[v, f]",
        state,
        tmp_path,
    )
    assert "d.flag[v] = d.count_limit != 0" in text
    assert "d.y[v, f] = float32(d.n[v, f])" in text
    assert "d.parent[v] = numbers.to_int(d.s[v])" in text
    assert "return d.n[v, f] != 0" in text


# Variance

VARYING = {
    "property": ("t = d.x[v, f]", True),
    "own scalar": ("t = d.s[v]", False),
    "f": ("t = f * 1.0", True),
    "superstep": ("t = d.superstep", False),
    "sum": ("t = fg.feature_sum(d.x[v, f])", False),
    "sum of a group": ("t = fg.feature_sum(d.x[v, f], group=1)", True),
    "argmax": ("t = fg.argmax(d.x[v, f])", False),
    "normalize": ("t = fg.normalize(d.x[v, f])", True),
    "broadcast": ("t = fg.broadcast(d.x[v, f], 1)", False),
    "broadcast of f": ("t = fg.broadcast(d.x[v, f], (f + 1) % 3)", True),
    "matvec": ("t = fg.matvec(d.M[v], d.x[v])", True),
    "under f": ("t = 0.0\nif d.x[v, f] > 0:\n    t = 1.0", True),
    "under v": ("t = 0.0\nif d.s[v] > 0:\n    t = 1.0", False),
    "in a loop over f": ("t = 0.0\nfor i in range(f):\n    t = 1.0", True),
    "in a uniform loop": ("t = 0.0\nfor i in range(3):\n    t = t + 1.0", False),
    "behind a break": (
        "t = 0.0\nfor i in range(3):\n    if d.x[v, f] > i:\n        break\n    t = 1",
        True,
    ),
    "through another": ("p = d.x[v, f]\nt = p + 1", True),
    "later": (
        "t = 0.0\np = 0.0\nfor i in range(3):\n    t = p\n    p = d.x[v, f]",
        True,
    ),
}


@pytest.mark.parametrize(("body", "expected"), VARYING.values(), ids=VARYING)
def test_variance(body: str, expected: bool, state: fg.State, tmp_path: Path) -> None:
    function = analysed(f"{body}\nreturn d.x[v, f] > t", state, tmp_path)
    assert ("t" in function.varying) == expected


def test_uniform_conditions_are_fine(state: fg.State, tmp_path: Path) -> None:
    body = (
        "t = d.x[v, f]\n"
        "if d.flag[v]:\n    return False\n"
        "if fg.any_feature(t > 1):\n    t = fg.normalize(t)\n"
        "for i in range(d.count_limit):\n    t = t + fg.feature_max(t)\n"
        "return t > 0 if d.enabled else fg.any_feature(t > 0)"
    )
    assert analysed(body, state, tmp_path).collective


# Normal form


def test_collectives_stand_alone(state: fg.State, tmp_path: Path) -> None:
    """In order of evaluation, under descriptive names."""
    body = (
        "return fg.feature_sum(d.x[v, f]) + fg.feature_max(d.x[v, f] * "
        "fg.feature_sum(d.y[v, f])) > 0"
    )
    names = [
        statement.targets[0].id
        for statement in analysed(body, state, tmp_path).body
        if isinstance(statement, ast.Assign)
    ]
    assert names == ["total", "total_b", "largest"]


def test_conditional_collectives_become_statements(
    state: fg.State, tmp_path: Path
) -> None:
    body = (
        "t = fg.norm(d.x[v, f]) if d.flag[v] else 0.0\n"
        "return d.enabled and fg.any_feature(d.x[v, f] > t)"
    )
    kinds = [type(s).__name__ for s in analysed(body, state, tmp_path).body]
    assert kinds == ["If", "Assign", "Assign", "If", "Return"]


def test_inlining_keeps_the_users_line(state: fg.State, tmp_path: Path) -> None:
    text = """
    @fg.collaborative
    def scaled(x, by=2.0):
        x = x * by
        return x / fg.norm(x)

    @fg.vertex
    def probe(f, v, d):
        d.y[v, f] = scaled(d.x[v, f]) + scaled(d.y[v, f], by=3.0)
        return True
    """
    snippet = Snippet(tmp_path, text)
    kernel = fold(snippet, state)
    assert "float32(2.0)" in kernel.source
    assert "float32(3.0)" in kernel.source
    last = (
        snippet.text.split("\n").index(
            "    d.y[v, f] = scaled(d.x[v, f]) + scaled(d.y[v, f], by=3.0)"
        )
        + 1
    )
    lines = {line for file, line in kernel.kernel_source.origins.values()}
    assert last in lines
    assert max(lines) == last + 1


# Definite writes of _next

DEFINITE = {
    "always": ("d.x_next[v, f] = 1.0\nreturn True", True),
    "never read first": ("d.x_next[v, f] = d.x[v, f]\nreturn d.x_next[v, f] > 0", True),
    "behind False": (
        "if d.flag[v]:\n    return False\nd.x_next[v, f] = 1.0\nreturn True",
        True,
    ),
    "behind True": (
        "if d.flag[v]:\n    return True\nd.x_next[v, f] = 1.0\nreturn True",
        False,
    ),
    "behind a varying False": (
        "if d.x[v, f] > 0:\n    return False\nd.x_next[v, f] = 1.0\nreturn True",
        False,
    ),
    "on one path": ("if d.flag[v]:\n    d.x_next[v, f] = 1.0\nreturn True", False),
    "on both paths": (
        "if d.flag[v]:\n    d.x_next[v, f] = 1.0\nelse:\n    d.x_next[v, f] = 2.0\n"
        "return True",
        True,
    ),
    "in a loop": ("for i in range(3):\n    d.x_next[v, f] = 1.0\nreturn True", False),
    "read first": ("t = d.x_next[v, f]\nd.x_next[v, f] = t\nreturn True", False),
    "one feature": ("d.x_next[v, 0] = d.s[v]\nreturn d.y[v, f] > 0", False),
}


@pytest.mark.parametrize(("body", "expected"), DEFINITE.values(), ids=DEFINITE)
def test_definite_writes(
    body: str, expected: bool, state: fg.State, tmp_path: Path
) -> None:
    kernel = fold(Snippet(tmp_path, in_vertex(body)), state)
    function, phase = kernel.plan.analysis.functions[0], kernel.plan.phases[0]
    assert ("x" in function.next_definite) == expected
    assert (phase.copies == ()) == expected
    assert phase.writes_next == ("x",)


# Access tables


def test_access_table(state: fg.State, tmp_path: Path) -> None:
    text = """
    @fg.edge
    def message(f, u, v, e, d):
        m = d.x[u, f] - d.msg[fg.reverse(e), f] + d.x[v, f] + d.bias[f] * d.w[e]
        d.msg_next[e, f] = m + d.s[d.parent[u]]
        fg.atomic.add(d.y, (v, f), m)
        return m > d.alpha

    @fg.gather(into="t")
    def total(f, u, v, e, d):
        return d.msg_next[e, f] * d.s[u]

    @fg.vertex
    def finish(f, v, d):
        d.x_next[v, f] = d.t[v, f] + d.x[d.parent[v], f] / d.in_degree[v]
        return True
    """
    functions = fold(Snippet(tmp_path, text), state).plan.analysis.functions
    tables = [
        {(a.name, a.version, a.mode, a.where) for a in f.accesses} for f in functions
    ]
    assert tables[0] == {
        ("bias", "now", "read", "global"),
        ("msg", "next", "write", "own"),
        ("msg", "now", "read", "twin"),
        ("parent", "now", "read", "neighbor"),
        ("s", "now", "read", "foreign"),
        ("w", "now", "read", "own"),
        ("x", "now", "read", "neighbor"),
        ("y", "now", "atomic", "neighbor"),
    }
    assert tables[1] == {
        ("msg", "next", "read", "own"),
        ("s", "now", "read", "neighbor"),
    }
    assert tables[2] == {
        ("parent", "now", "read", "own"),
        ("t", "now", "read", "own"),
        ("x", "next", "write", "own"),
        ("x", "now", "read", "foreign"),
    }
    assert functions[0].scalars == ("alpha",)
    assert functions[2].scalars == ("in_degree",)
    assert functions[0].twin_operations == ("reverse",)
    assert [f.width for f in functions] == [3, 3, 3]


def test_widths(state: fg.State, tmp_path: Path) -> None:
    cases = {
        "return d.x[v, f] > d.y[v, f]": (3, False),
        "return d.wide[v, f] > 0": (4, False),
        "return d.s[v] > 0": (1, True),
        "return d.x[v, 0] > 0": (1, True),
        "return d.bias[f] > 0": (3, False),
        "return fg.norm(d.wide[v]) > 0": (4, False),
        "return d.M[v, 0, f] > 0": (3, False),
    }
    for body, expected in cases.items():
        function = analysed(body, state, tmp_path)
        assert (function.width, function.is_scalar) == expected, body


# Generated text


def test_origins_point_at_the_users_line(state: fg.State, tmp_path: Path) -> None:
    text = """
    def helper(x):
        return x * 7.25

    @fg.gather(into="t")
    def total(f, u, v, e, d):
        return d.w[e] * d.x[u, f] * 5.5

    @fg.vertex
    def finish(f, v, d):
        t = d.t[v, f] + 3.25
        if t > 9.75:
            return False
        d.x_next[v, f] = helper(t)
        return t > 1.5
    """
    snippet = Snippet(tmp_path, text)
    for target, options in (("cpu", {}), ("cuda", {}), ("cuda", {"direction": "push"})):
        source = fold(snippet, state, target=target, **options).kernel_source
        users = snippet.text.split("\n")
        lines = source.text.split("\n")
        found = set()
        for number, (file, line) in source.origins.items():
            assert file == str(snippet.path)
            for constant in re.findall(r"\d+\.(?:25|5|75)\b", lines[number - 1]):
                assert constant in users[line - 1]
                found.add(constant)
        assert found >= {"7.25", "5.5", "3.25", "9.75", "1.5"}


def test_numba_errors_name_the_users_line(tmp_path: Path) -> None:
    """Errors that Numba raises, and the middle end does not."""
    text = """
    @fg.vertex
    def odd(f, v, d):
        t = d.s[v]
        d.s[v] = t + math.erf(t) #!
        return True

    step = fg.foldmap(odd)
    """
    snippet = Snippet(tmp_path, text)
    state = make_state()
    step = snippet.load().step
    kernel = step.fold(state, target="cpu")
    module = kernel.module
    line = next(
        n for n, (_, at) in kernel.kernel_source.origins.items() if at == snippet.line
    )
    numba = pytest.importorskip("numba")
    raised = numba.core.errors.TypingError(
        f'Failed in nopython\nNo implementation\nFile "{module.__file__}", line {line}:'
    )

    def refuse(*args: Any) -> None:
        raise raised

    before = state["s"]
    module.__dict__[kernel.sweep(kernel.entries[0]).__name__] = refuse
    with pytest.raises(fg.UserFunctionError) as caught:
        step(state, target="cpu")
    assert f"{snippet.path}:{snippet.line}" in str(caught.value)
    assert "No implementation" in str(caught.value.got)
    assert caught.value.__cause__ is raised
    np.testing.assert_array_equal(state["s"], before)
    assert state.superstep == 0


def test_the_middle_end_leaves_declarations_alone(
    state: fg.State, tmp_path: Path
) -> None:
    snippet = Snippet(
        tmp_path,
        """
        @fg.vertex
        def probe(f, v, d):
            t = fg.normalize(d.x[v, f])
            d.y[v, f] += t
            return t > 0.5

        step = fg.foldmap(probe)
        """,
    )
    step = snippet.load().step
    tree = step.program.functions[0].source.tree
    before = ast.dump(tree, include_attributes=True)
    first = analyse(step.program, state.signature)
    second = analyse(Program.declare(step.program.functions), state.signature)
    assert ast.dump(tree, include_attributes=True) == before
    dumps = [[ast.dump(s) for s in a.functions[0].body] for a in (first, second)]
    assert dumps[0] == dumps[1]
    assert HEADER in snippet.text
