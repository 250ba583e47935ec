"""Reduces that the sweep of a vertex phase combines: results, bits, and which they are.

A graph that counts as dense has a pass of its own for each reduce, with which sweeps
that combine are compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import SUM_BLOCK, GraphTraits, graph_traits, set_traits
from featgraph.runtime.devices.host_arrays import cut_blocks, cut_words

#: Vertices of the graph, which a reduce cuts into five chunks of unequal length.
COUNT = 100_003


@fg.gather(into="around", combine="sum")
def sum_around(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take the value of a neighbor."""
    return d.x[u, f]


@fg.vertex
def move(f, v, d):  # type: ignore[no-untyped-def]
    """Move toward the neighbors; a vertex that hardly moves keeps its value."""
    moved = d.step * d.around[v, f] + d.shift[v, f]
    d.x_next[v, f] = moved
    return fg.any_feature(abs(moved - d.x[v, f]) > d.least)


@fg.reduce(into="change", combine="sum")
def sum_of_changes(f, v, d):  # type: ignore[no-untyped-def]
    """Sum how far values moved."""
    return abs(d.x_next[v, f] - d.x[v, f])


@fg.reduce(into="largest", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    """Find the largest change."""
    return abs(d.x_next[v, f] - d.x[v, f])


@fg.reduce(into="moved", combine="sum")
def count_moved(f, v, d):  # type: ignore[no-untyped-def]
    """Count the values that changed."""
    return 1 if d.x_next[v, f] != d.x[v, f] else 0


@fg.reduce(into="ahead", combine="max")
def largest_of_first(f, v, d):  # type: ignore[no-untyped-def]
    """Read an entry of another vertex, which may be swept later."""
    return d.x_next[d.first[v], f]


@fg.reduce(into="share", combine="max")
def largest_share(f, v, d):  # type: ignore[no-untyped-def]
    """Divide by the result of a reduce, which must be complete."""
    return abs(d.x_next[v, f] - d.x[v, f]) / d.change[f]


step = fg.foldmap(sum_around, move, sum_of_changes, largest_change, count_moved)


def graph_of(count: int = COUNT) -> fg.Graph:
    """Return a graph with a few in-edges a vertex, most of them at the first ones."""
    rng = np.random.default_rng(7)
    targets = (count * rng.random(3 * count) ** 2).astype(np.int64)
    return fg.Graph.from_edges(
        rng.integers(0, count, targets.size), targets, vertex_count=count
    )


def state_of(graph: fg.Graph, k: int) -> fg.State:
    """Return a State with values of an uneven sum."""
    rng = np.random.default_rng(8)
    shape = (graph.vertex_count, k)
    return fg.State(
        graph,
        x=fg.vertex_property(rng.random(shape, np.float32), iterated=True),
        shift=fg.vertex_property(rng.random(shape, np.float32)),
        first=fg.vertex_property(np.zeros(graph.vertex_count, np.int32)),
        step=0.1,
        least=0.01,
    )


def results_of(k: int, threads: int, **traits: Any) -> list[tuple[Any, ...]]:
    """Return values and results behind each of some supersteps of a run."""
    graph, found = graph_of(), list[tuple[Any, ...]]()
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        set_traits(graph, replace(graph_traits(graph), **traits))
        for supersteps in range(1, 6):  # fewer and fewer vertices are due
            state = state_of(graph, k)
            run = fg.iterate(step, state, max_supersteps=supersteps, target="cpu")
            names = ("x", "change", "largest", "moved")
            found.append((*(state[n].tobytes() for n in names), run.active_counts))
        return found
    finally:
        numba.set_num_threads(before)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("k", [1, 3])
def test_results_have_the_bits_of_separate_passes(k: int) -> None:
    """They are the same for any number of threads, where few vertices are due, too."""
    alone = results_of(k, 1, is_dense=True)
    *_, active = alone[-1]
    assert active[0] > active[-1] > 0
    assert results_of(k, 1) == alone
    if numba.config.NUMBA_NUM_THREADS > 1:
        assert results_of(k, 2) == alone


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("dense", [False, True])
def test_nan_contributes_nothing_to_extremes(dense: bool) -> None:
    """They end with the same value, wherever NaN stands in a block (S5)."""
    graph = graph_of()
    set_traits(graph, replace(graph_traits(graph), is_dense=dense))
    state = state_of(graph, 1)
    before = state["x"].copy()
    for first in (0, SUM_BLOCK - 1, 5 * SUM_BLOCK):
        before[first : first + SUM_BLOCK + 1 : 3] = np.nan
    before[-1] = np.nan
    state["x"] = before
    fg.iterate(step, state, supersteps=1, target="cpu")
    moved = np.abs(state["x"] - before)
    assert np.isnan(moved).sum() == np.isnan(before).sum() > 500
    assert state["largest"] == np.nanmax(moved) > 0


@pytest.mark.parametrize("count", [0, 1, 31, SUM_BLOCK, 40_000, 1_234_567])
def test_chunks_are_cut_into_a_power_of_two_of_blocks(count: int) -> None:
    """Each block lies in one chunk, and has no more vertices than are summed."""
    chunks = cut_words(count)
    blocks = cut_blocks(chunks)
    each, left = divmod(blocks.size - 1, chunks.size - 1)
    assert left == 0
    assert each & (each - 1) == 0
    assert (blocks[::each] == chunks).all()
    assert np.diff(blocks).min() >= 0
    assert 32 * np.diff(blocks).max() <= SUM_BLOCK


def combined(program: fg.FoldMap, k: int = 1, *, dense: bool = False, **options: Any):  # type: ignore[no-untyped-def]
    """Return the names of the reduces that a sweep combines."""
    state = state_of(graph_of(10), k)
    traits = GraphTraits(is_dense=dense)
    plan = make_plan(program.program, state.signature, Options(**options), traits)
    return [
        f.name for p in plan.phases if p.combined_in >= 0 for f in plan.functions_of(p)
    ]


def test_sweeps_combine_what_their_vertices_have_written() -> None:
    """All reduces behind a vertex phase join its sweep, if they read own entries."""
    names = ["sum_of_changes", "largest_change", "count_moved"]
    assert combined(step) == names
    assert combined(step, 3) == names
    assert combined(fg.foldmap(sum_around, move, largest_of_first)) == []
    last = fg.foldmap(sum_around, move, sum_of_changes, largest_share, count_moved)
    assert combined(last) == ["sum_of_changes", "count_moved"]
    assert combined(step, dense=True) == []
    assert combined(step, 8) == []
    assert combined(step, target="cuda") == []
    assert combined(step, folding=False) == []
    assert combined(step, deterministic=True) == names[1:]
