"""Active vertices and those that gather from them, found from either end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.program.active import ActiveSet
from featgraph.runtime.devices import cpu_sweeps, host_arrays
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory.graph_arrays import graph_arrays


@fg.gather(into="most", combine="max")
def largest(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def halve(f, v, d):
    d.x_next[v] = d.most[v] / 2
    return v > 0


halved = fg.foldmap(largest, halve)


def expected(graph: fg.Graph, active: Any, along: str) -> Any:
    due = active.copy()
    if along != "out":
        due[graph.targets[active[graph.sources]]] = True
    if along != "in":
        due[graph.sources[active[graph.targets]]] = True
    return due


@pytest.mark.parametrize("along", ["in", "out", "both"])
@pytest.mark.parametrize("count", [None, 0, "all"], ids=["unknown", "few", "many"])
@pytest.mark.parametrize("smallest", [1, 1 << 30], ids=["threads", "alone"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
def test_both_ends_find_what_is_due(
    along: str,
    count: Any,
    smallest: int,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (cpu_sweeps, host_arrays):
        monkeypatch.setattr(module, "SMALLEST_CHUNK", smallest)
    rng = np.random.default_rng(3)
    for vertices, edges in ((1, 0), (31, 40), (65, 400), (1000, 1500)):
        ends = rng.integers(0, vertices, (2, edges))
        graph = fg.Graph.from_edges(*ends, vertex_count=vertices)
        active = rng.random(vertices) < share
        cpu = choose_device("cpu")
        words = ActiveSet(vertices, active).words
        about = vertices if count == "all" else count
        arrays = graph_arrays(graph, cpu)
        for known in (None, 0, 1 << 20):  # edges, whatever they are
            found = cpu.sets.expand(words.copy(), arrays, about, along, known)
            due = ActiveSet.from_words(vertices, found)
            np.testing.assert_array_equal(due.mask, expected(graph, active, along))


def test_one_kernel_serves_all_graphs_and_directions() -> None:
    cpu = choose_device("cpu")
    graphs = [fg.Graph.from_edges([0, count - 1], [1, 0]) for count in (2, 70)]
    functions = {
        graph_arrays(graph, cpu).kernel("reach", along).function
        for graph in graphs
        for along in ("in", "out", "both")
    }
    assert len(functions) == 1


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
def test_without_due_sets_no_kernel_is_made() -> None:
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    state = fg.State(graph, x=fg.vertex_property(1.0, iterated=True))
    for name, option, made in (("all", False, False), ("due", "auto", True)):
        fg.iterate(halved, state, target="cpu", max_supersteps=2, change_driven=option)
        kernels = graph_arrays(graph, choose_device("cpu"))._kernels
        assert bool(kernels) == made, name
