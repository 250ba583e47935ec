"""Supersteps over few vertices on the CPU: which words are swept, and what is left."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.program.active import ActiveSet
from featgraph.runtime.devices import cpu_sweeps
from featgraph.runtime.devices.choose import CpuDevice, choose_device
from featgraph.runtime.devices.cpu_sweeps import KnownSets, SparseSet
from featgraph.runtime.memory.graph_arrays import graph_arrays
from tests.programs.traversal import adopt, lower_component

COUNT = 4000
spread = fg.foldmap(lower_component, adopt)


@pytest.fixture
def graph(rng: np.random.Generator) -> fg.Graph:
    """A path both ways, far longer than it is wide, and a few shortcuts."""
    ends = np.arange(COUNT - 1)
    far = rng.integers(0, COUNT, (2, 12))
    return fg.Graph.from_edges(
        np.concatenate([ends, far[0]]), np.concatenate([ends + 1, far[1]]),
        directed=False,
    )  # fmt: skip


def run(graph: fg.Graph, active: Any, **options: Any) -> tuple[Any, Any]:
    comp = np.full(graph.vertex_count, 99, np.int32)
    comp[active] = np.arange(len(active))
    state = fg.State(graph, comp=fg.vertex_property(comp, iterated=True))
    record = fg.iterate(
        spread, state, active=active, target="cpu", max_supersteps=9999,
        record_active=True, **options,
    )  # fmt: skip
    return state["comp"], record


def words_swept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of words of each sweep."""
    sizes: list[int] = []
    find = CpuDevice._find_swept

    def noting(self: CpuDevice, place: Any, values: Any, spreads: bool) -> Any:
        found = find(self, place, values, spreads)
        sizes.append(values[place["swept_words"]].size)
        return found

    monkeypatch.setattr(CpuDevice, "_find_swept", noting)
    return sizes


@pytest.mark.parametrize("smallest", [3, 1 << 30], ids=["several chunks", "one"])
def test_few_words_give_what_all_do(
    graph: fg.Graph, smallest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(KnownSets, "note", lambda self, words, found: None)
        sizes = words_swept(patched)
        expected, dense = run(graph, [7, 2000])
        assert set(sizes[1:]) == {COUNT // 32}
    monkeypatch.setattr(cpu_sweeps, "SMALLEST_CHUNK", smallest)
    sizes = words_swept(monkeypatch)
    found, sparse = run(graph, [7, 2000])
    assert np.array_equal(found, expected)
    assert sparse.active_counts == dense.active_counts
    for one, other in zip(sparse.active_sets, dense.active_sets, strict=True):
        assert one == other
    # The ends of a few paths: a word or two each, however many vertices there are.
    assert len(sizes) == sparse.supersteps > 100
    assert max(sizes) < COUNT // 32
    assert np.median(sizes) <= 20


def test_a_hub_is_left_to_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = np.arange(1, COUNT)
    star = fg.Graph.from_edges(np.zeros_like(leaves), leaves)
    cpu = choose_device("cpu")
    assert isinstance(cpu, CpuDevice)
    words = ActiveSet(COUNT, [0]).words
    for most, known in ((COUNT, False), (10, False)):  # all words are not few
        monkeypatch.setattr(cpu_sweeps, "_MOST_ALONE", most)
        due = cpu.sets.expand(words, graph_arrays(star, cpu), 1)
        assert cpu.sets.count(due) == COUNT
        assert (cpu.sets.known.find(due) is not None) == known


def test_due_vertices_are_looked_for_where_there_is_less_to_go_through() -> None:
    """By edges: active leaves have few of all, though they are many."""
    hub, leaves = np.zeros(3000, np.int64), np.arange(1, 3001)
    rest = np.random.default_rng(5).integers(3001, COUNT, (2, 40_000))
    graph = fg.Graph.from_edges(
        np.concatenate([hub, rest[0]]), np.concatenate([leaves, rest[1]]),
        vertex_count=COUNT, directed=False,
    )  # fmt: skip
    cpu = choose_device("cpu")
    assert isinstance(cpu, CpuDevice)
    arrays = graph_arrays(graph, cpu)
    few, many = (ActiveSet(COUNT, v).words for v in (leaves, np.arange(3001, COUNT)))
    assert not cpu.sets._finds_sooner(few, leaves.size, arrays, "out")
    assert cpu.sets._finds_sooner(many, COUNT - 3001, arrays, "out")
    assert not cpu.sets._finds_sooner(many, None, arrays, "out")
    # Edges that have been counted are not counted again.
    assert cpu.sets._finds_sooner(few, leaves.size, arrays, "out", 1 << 20)
    assert not cpu.sets._finds_sooner(many, COUNT - 3001, arrays, "out", 0)


def test_what_is_known_of_a_set_goes_with_it() -> None:
    known = KnownSets()
    words = np.zeros(4, np.uint32)
    known.note(words, SparseSet(np.array([2]), 5, 0))
    found = known.find(words)
    assert found is not None
    assert found.at.tolist() == [2]
    assert known.find(words.copy()) is None
    others = [np.zeros(4, np.uint32) for _ in range(20)]
    for other in others:
        known.note(other, SparseSet(np.array([1]), 1))
    assert known.find(words) is None
    del others, other
    gc.collect()
    fresh = [np.zeros(4, np.uint32) for _ in range(20)]
    assert all(known.find(one) is None for one in fresh)


def test_a_run_goes_on_behind_a_write_from_outside(graph: fg.Graph) -> None:
    comp = np.full(COUNT, 99, np.int32)
    comp[0] = 5
    state = fg.State(graph, comp=fg.vertex_property(comp, iterated=True))
    with pytest.warns(fg.ConvergenceWarning):
        fg.iterate(spread, state, active=[0], target="cpu", max_supersteps=20)
    values = state["comp"]
    values[3000] = 1
    state["comp"] = values
    fg.iterate(spread, state, target="cpu", max_supersteps=9999)
    assert (state["comp"] == 1).all()


def test_several_foldmaps_share_what_is_known(graph: fg.Graph) -> None:
    again = fg.foldmap(lower_component, adopt)
    comp = np.full(COUNT, 99, np.int32)
    comp[[7, 2000]] = [0, 1]
    state = fg.State(graph, comp=fg.vertex_property(comp, iterated=True))
    fg.iterate(
        [spread, again], state, active=[7, 2000], target="cpu", max_supersteps=99999
    )
    assert np.array_equal(state["comp"], run(graph, [7, 2000])[0])


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
def test_what_the_next_superstep_leaves_out_stands(graph: fg.Graph) -> None:
    comp = np.full(COUNT, 99, np.int32)
    comp[[7, 2000]] = [0, 1]
    state = fg.State(graph, comp=fg.vertex_property(comp, iterated=True))
    near = [7, *graph.targets[graph.sources == 7], *graph.sources[graph.targets == 7]]
    for active in (7, 2000):
        fg.iterate(spread, state, active=[active], max_supersteps=1, target="cpu")
    assert (state["comp"][near] == 0).all()


@pytest.mark.parametrize("combine", ["sum", "min", "max", "any", "all"])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_rows_of_many_chunks_are_combined(combine: str, dtype: type) -> None:
    """Vertices of each chunk, and columns of each result, differ from all others."""
    count, width = 5 * cpu_sweeps.SMALLEST_CHUNK, 3
    values = np.arange(count * width).reshape(count, width) * 7919 % 100_003
    values = (values - 50_000 + np.arange(width)).astype(dtype)
    is_vote = combine in {"any", "all"}

    @fg.reduce(into="found", combine=combine)
    def take(f, v, d):  # type: ignore[no-untyped-def]
        return d.x[v, f]

    @fg.reduce(into="found", combine=combine)
    def vote(f, v, d):  # type: ignore[no-untyped-def]
        return d.x[v, f] > d.least

    graph = fg.Graph.from_edges([0], [1], vertex_count=count)
    for least in (values.min() - 1, values.min(), values.max() - 1, values.max()):
        x = fg.vertex_property(values)
        state = fg.State(graph, x=x, least=float(least))
        fg.foldmap(vote if is_vote else take)(state, target="cpu")
        given = values > least if is_vote else values.astype(np.float64)
        expected = getattr(np, combine)(given, axis=0)
        near = 1e-6 * np.abs(given).sum() if combine == "sum" else 0
        assert np.abs(state["found"].astype(float) - expected).max() <= near
