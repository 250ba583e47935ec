"""Checked mode: the first index out of range is reported, and nothing else is written.

Planted at the first, a middle and the last vertex; what is read or written out of range
is named with its function, line, vertex or edge, index and bound.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from tests.bank import BY_NAME
from tests.unit.snippets import Snippet

COUNT, K = 40, 2

PROGRAM = """
@fg.vertex
def follow(f, v, d):
    d.y[v, f] = d.x[d.to[v], f]  #!
    return True

@fg.vertex
def feature(f, v, d):
    d.y[v, f] = d.x[v, (f + d.to[v]) % 3]
    return True

@fg.vertex
def far(f, v, d):
    d.y[v, f] = d.x[40, f] + d.x[39, 1]
    return True

@fg.gather(into="t", combine="sum")
def along(f, u, v, e, d):
    return d.x[d.hop[e], f]

@fg.vertex
def keep(f, v, d):
    d.y_next[v, f] = d.t[v, f]
    return True

@fg.edge
def add(f, u, v, e, d):
    fg.atomic.add(d.total, (d.hop[e], f), 1)
    return True

@fg.gather(into="degree", combine="sum")
def one(f, u, v, e, d):
    return 1

@fg.vertex
def is_busy(f, v, d):
    if d.halted > 0:
        return False
    return d.degree[v] > 2

counts = fg.foldmap(one, is_busy)
follows = fg.foldmap(follow)
features = fg.foldmap(feature)
fars = fg.foldmap(far)
gathers = fg.foldmap(along, keep)
adds = fg.foldmap(add)
"""


@pytest.fixture(scope="module")
def snippet(tmp_path_factory: pytest.TempPathFactory) -> Snippet:
    return Snippet(tmp_path_factory.mktemp("checked"), PROGRAM, name="planted")


@pytest.fixture(scope="module")
def program(snippet: Snippet) -> Any:
    return snippet.load()


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fg.config, "checked", True)


def make_state(*, iterated: bool = False) -> fg.State:
    """Make a ring in which vertex v reads vertex v and edge e its source."""
    ids = np.arange(COUNT)
    graph = fg.Graph.from_edges(ids, (ids + 1) % COUNT)
    x = np.arange(COUNT * K, dtype=np.float32).reshape(COUNT, K)
    return fg.State(
        graph,
        x=fg.vertex_property(x),
        y=fg.vertex_property(np.full((COUNT, K), -1, np.float32), iterated=iterated),
        total=fg.vertex_property(np.zeros((COUNT, K), np.int32)),
        to=fg.vertex_property(ids.astype(np.int32)),
        hop=fg.edge_property(ids.astype(np.int32)),
    )


def plant(state: fg.State, name: str, at: int, value: int) -> None:
    values = state[name]
    values[at] = value
    state[name] = values


def line_of(snippet: Snippet, part: str) -> int:
    return next(n for n, x in enumerate(snippet.text.split("\n"), 1) if part in x)


def test_off_by_default(program: Any, checked: None) -> None:
    assert fg.config.checked
    text = program.follows.fold(make_state(), target="cpu").source
    assert "checked(" in text
    fg.config.checked = False
    assert "checked(" not in program.follows.fold(make_state(), target="cpu").source
    assert fg.config.__class__().checked is False


def test_nothing_wrong(program: Any, checked: None) -> None:
    state = make_state()
    out = program.follows(state, target="cpu")
    assert len(out) == COUNT
    np.testing.assert_array_equal(state["y"], state["x"])


@pytest.mark.parametrize("at", [0, 17, COUNT - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("index", [-1, COUNT, 2**30, -(2**31)])
def test_reads(
    at: int, index: int, program: Any, snippet: Snippet, checked: None
) -> None:
    state = make_state()
    plant(state, "to", at, index)
    with pytest.raises(fg.KernelFaultError) as caught:
        program.follows(state, target="cpu")
    error: Any = caught.value
    assert isinstance(error, RuntimeError)
    assert f"{snippet.path}:{snippet.line} in follow, vertex {at}" in str(error)
    assert "d.x is out of range" in str(error)
    assert f"index {index} on axis 0" in str(error)
    assert f"0 <= index < {COUNT}" in str(error)
    assert (error.function, error.vertex, error.edge) == ("follow", at, -1)
    assert (error.index, error.bound) == (index, COUNT)
    assert error.fix
    assert state.superstep == 0
    plant(state, "to", at, at)  # the cause is removed
    program.follows(state, target="cpu")
    np.testing.assert_array_equal(state["y"], state["x"])


def test_reads_of_a_feature(program: Any, checked: None) -> None:
    state = make_state()
    state["to"] = np.zeros(COUNT, np.int32)
    plant(state, "to", 5, 2)
    with pytest.raises(fg.KernelFaultError) as caught:
        program.features(state, target="cpu")
    error: Any = caught.value
    assert (error.vertex, error.index, error.bound) == (5, 2, K)
    assert "axis 1" in str(error)


def test_reads_of_a_constant_vertex(program: Any, checked: None) -> None:
    with pytest.raises(fg.KernelFaultError) as caught:
        program.fars(make_state(), target="cpu")
    error: Any = caught.value
    assert (error.function, error.index, error.bound) == ("far", COUNT, COUNT)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("at", [0, 17, COUNT - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_gathers(
    at: int, direction: str, program: Any, snippet: Snippet, checked: None
) -> None:
    state = make_state(iterated=True)
    plant(state, "hop", at, COUNT)
    before = state["y"]
    with pytest.raises(fg.KernelFaultError) as caught:
        program.gathers(state, target="cpu", direction=direction)
    error: Any = caught.value
    line = line_of(snippet, "d.x[d.hop[e], f]")
    target = (at + 1) % COUNT
    assert f"{snippet.path}:{line} in along, edge" in str(error)
    assert f"at vertex {target}" in str(error)
    assert error.vertex == target
    assert state.graph.given_index[error.edge] == at
    assert (error.index, error.bound) == (COUNT, COUNT)
    np.testing.assert_array_equal(state["y"], before)
    assert state.superstep == 0
    plant(state, "hop", at, at)
    program.gathers(state, target="cpu", direction=direction)
    np.testing.assert_array_equal(state["y"], np.roll(state["x"], 1, axis=0))


@pytest.mark.parametrize("index", [-1, COUNT, COUNT + 1000])
def test_atomics(index: int, program: Any, snippet: Snippet, checked: None) -> None:
    state = make_state()
    plant(state, "hop", 7, index)
    with pytest.raises(fg.KernelFaultError) as caught:
        program.adds(state, target="cpu")
    error: Any = caught.value
    assert f"planted.py:{line_of(snippet, 'fg.atomic.add')} in add" in str(error)
    assert (error.index, error.bound) == (index, COUNT)
    expected = np.ones((COUNT, K), np.int32)
    expected[7] = 0
    np.testing.assert_array_equal(state["total"], expected)
    for name in ("x", "y", "to"):
        np.testing.assert_array_equal(state[name], make_state()[name])


def test_one_of_many_is_reported(program: Any, checked: None) -> None:
    state = make_state()
    state["to"] = np.full(COUNT, COUNT, np.int32)
    with pytest.raises(fg.KernelFaultError) as caught:
        program.follows(state, target="cpu")
    assert 0 <= caught.value.vertex < COUNT


def test_iterate(program: Any, checked: None, tmp_path: Path) -> None:
    state = make_state(iterated=True)
    plant(state, "hop", 3, -5)
    with pytest.raises(fg.KernelFaultError):
        fg.iterate(program.gathers, state, target="cpu")
    plant(state, "hop", 3, 3)
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(program.gathers, state, target="cpu", max_supersteps=1)
    np.testing.assert_array_equal(state["y"], np.roll(state["x"], 1, axis=0))


@fg.vertex
def turned(f, v, d):
    d.y[v, f] = fg.matvec(d.M[d.parent[v]], d.x[v])
    return True


@pytest.mark.drawn(4)
@pytest.mark.parametrize("k", [3, 20])
@pytest.mark.parametrize("bad", [9, -1])
def test_the_vertex_of_a_whole_matrix_is_guarded(
    k: int, bad: int, checked: None
) -> None:
    parent = np.zeros(9, np.int64)
    parent[4] = bad
    graph = fg.Graph.from_edges([0, 1], [1, 2], vertex_count=9)
    state = fg.State(
        graph,
        M=fg.vertex_property(1.0, shape=(k, k)),
        x=fg.vertex_property(1.0, shape=(k,)),
        y=fg.vertex_property(0.0, shape=(k,)),
        parent=fg.vertex_property(parent),
    )
    with pytest.raises(fg.KernelFaultError, match=r"d\.M") as caught:
        fg.foldmap(turned)(state, target="cpu")
    fault = caught.value
    assert (fault.vertex, fault.index, fault.bound) == (4, bad, 9)


def test_entries_of_edges_go_through_memory_where_indices_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while none has been found yet that needs a check."""
    step = BY_NAME["belief_propagation"].foldmaps[0]
    assert step.fold(k=3, target="cuda").kernel_source.forwarded
    monkeypatch.setattr(fg.config, "checked", True)
    assert step.fold(k=3, target="cuda").kernel_source.forwarded == ()


def test_all_due_vertices_gather_where_indices_are_checked(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def source() -> str:
        state = fg.State(make_state().graph, halted=1.0)
        kernel = program.counts.fold(state, target="cuda", feature_parallel=False)
        return kernel.source.partition("def vertex_phase_0")[2]

    assert "d.halted" in source()
    monkeypatch.setattr(fg.config, "checked", True)
    assert "d.halted" not in source()
