"""Gathered values: where they may be read, and indices that no feature has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.program.functions import UserFunction
from tests.unit.snippets import K, Snippet, error_of, make_state

GATHER = """\
@fg.gather(into="total", combine="argmin")
def gathered(f, u, v, e, d):
    return d.y[u, f]

"""
MATRIX = """\
@fg.gather(into="total", combine="sum", matrix=True)
def gathered(i, f, u, v, e, d):
    return d.y[u, i] * d.y[u, f]

"""
VERTEX = (
    "@fg.vertex\ndef probe(f, v, d):\n    d.x_next[v, f] = {}  #!\n    return True\n"
)
SECOND = (
    '@fg.gather(into="more", combine="sum")\n'
    "def probe(f, u, v, e, d):\n    return d.y[u, f] + {}  #!\n"
)
EDGE = "@fg.edge\ndef probe(f, u, v, e, d):\n    return d.y[u, f] > {}  #!\n"


def declared(snippet: Snippet) -> Any:
    """Return the foldmap of all functions of a snippet."""
    functions = vars(snippet.load()).values()
    return fg.foldmap(*(f for f in functions if isinstance(f, UserFunction)))


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (VERTEX.format("d.total[(v + 1) % d.vertex_count, f]"), "another vertex"),
        (VERTEX.format("d.total[d.parent[v], f]"), "another vertex"),
        (VERTEX.format("d.total_source[0, 1]"), "another vertex"),
        (VERTEX.format("fg.dot(d.total[d.parent[v]], d.y[v])"), "another vertex"),
        (SECOND.format("d.total[u, f]"), "d.total at u"),
        (SECOND.format("d.total_source[u, 0]"), "d.total_source at u"),
        (SECOND.format("fg.dot(d.total[u], d.y[v])"), "d.total at u"),
        (EDGE.format("d.total[v, f]"), "in an edge function"),
        (EDGE.format("d.total[u, 1]"), "in an edge function"),
        (EDGE.format("d.total_source[v, f]"), "in an edge function"),
    ],
)
def test_refused_elsewhere_than_at_its_vertex(
    function: str, got: str, tmp_path: Path
) -> None:
    state = make_state()
    snippet = Snippet(tmp_path, GATHER + function)
    for target in ("cpu", "cuda"):
        error = error_of(snippet, state, target=target)
        assert isinstance(error, fg.UserFunctionError)
        assert "was not gathered" in error.what
        assert got in str(error.got)
        assert "in a second foldmap" in str(error.fix)
        assert "in probe" in str(error.where)
    program = declared(snippet).program
    with pytest.raises(fg.UserFunctionError, match="was not gathered") as caught:
        reference.superstep(program, *reference.from_state(state), active=[])
    assert "in probe" in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        VERTEX.format("d.total[d.parent[v], f, 0]"),
        VERTEX.format("fg.matvec(d.total[d.parent[v]], d.y[v, f])"),
        SECOND.format("d.total[u, f, f]"),
        EDGE.format("d.total[v, 0, f]"),
    ],
)
def test_matrices_are_refused_alike(function: str, tmp_path: Path) -> None:
    state = make_state()
    snippet = Snippet(tmp_path, MATRIX + function)
    assert "was not gathered" in error_of(snippet, state).what
    with pytest.raises(fg.UserFunctionError, match="was not gathered"):
        reference.superstep(declared(snippet).program, *reference.from_state(state))


def test_a_gathered_value_may_have_the_name_of_a_function(tmp_path: Path) -> None:
    """Calls of that function are not taken for reads of the value."""
    text = GATHER.replace("total", "sqrt") + VERTEX.format("math.sqrt(d.sqrt[v, f])")
    state = make_state()
    declared(Snippet(tmp_path, f"import math\n\n{text}"))(state, target="cpu")
    assert np.isfinite(state["x"]).all()


@pytest.mark.parametrize("feature", [K, -1])
@pytest.mark.parametrize("head", [GATHER, MATRIX], ids=["wide", "matrix"])
def test_a_constant_feature_must_exist(head: str, feature: int, tmp_path: Path) -> None:
    row = "" if head is GATHER else "f, "
    snippet = Snippet(tmp_path, head + VERTEX.format(f"d.total[v, {row}{feature}]"))
    error = error_of(snippet, make_state())
    assert error.what == "an index of d.total is out of range"
    assert error.got == feature


@pytest.mark.drawn(4)
@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize(
    ("index", "got"), [("f + d.parent[v]", K), ("f - d.parent[v]", -1)]
)
@pytest.mark.parametrize("name", ["total", "total_source"])
def test_checked_mode_reports_a_computed_feature(
    name: str,
    index: str,
    got: int,
    direction: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fg.config, "checked", True)
    snippet = Snippet(tmp_path, GATHER + VERTEX.format(f"d.{name}[v, {index}]"))
    state, foldmap = make_state(), declared(snippet)
    foldmap(state, target="cpu", direction=direction)
    state["parent"] = np.array([0, 0, 1, 0, 0], np.int32)
    with pytest.raises(fg.FeatGraphError, match="out of range") as caught:
        foldmap(state, target="cpu", direction=direction)
    text = str(caught.value)
    assert f"snippet.py:{snippet.line} in probe" in text
    assert name in text
    assert str(got) in text
    assert "vertex 2" in text


@pytest.mark.parametrize(
    ("into", "other"),
    [("total", "total_at"), ("total", "total_at_1"), ("total_at", "total")],
)
def test_names_of_entries_hide_nothing(into: str, other: str, tmp_path: Path) -> None:
    """Entries at constant features have names of their own beside all others."""
    text = f"""
    @fg.gather(into="{into}", combine="sum")
    def gathered(f, u, v, e, d):
        return d.y[u, f]

    @fg.vertex
    def first(f, v, d):
        d.n[v, f] = int(d.{into}[v, 1])
        return True

    @fg.gather(into="{other}", combine="max")
    def others(f, u, v, e, d):
        return d.y[u, f]

    @fg.vertex
    def probe(f, v, d):
        total_at = d.y[v, f] + fg.feature_sum(d.{into}[v, f])
        total_at_1 = d.{into}[v, 1] + d.{other}[v, 1]
        d.x_next[v, f] = total_at - total_at_1 + d.{other}[v, 2] * d.{into}[v, 0]
        return True
    """
    foldmap = declared(Snippet(tmp_path, text))
    state = make_state()
    expected = reference.superstep(foldmap.program, *reference.from_state(state))
    foldmap(state, target="cpu")
    for name in ("x", "n"):
        np.testing.assert_array_equal(state[name], expected.values[name])
