"""Active vertices and those that gather from them, found from either end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.program.active import ActiveSet
from featgraph.runtime.devices import cpu_sweeps
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory.buffers import graph_arrays


def expected(graph: fg.Graph, active: Any, along: str) -> Any:
    due = active.copy()
    if along != "out":
        due[graph.targets[active[graph.sources]]] = True
    if along != "in":
        due[graph.sources[active[graph.targets]]] = True
    return due


@pytest.mark.parametrize("along", ["in", "out", "both"])
@pytest.mark.parametrize("count", [None, 0, "all"], ids=["unknown", "few", "many"])
@pytest.mark.parametrize("smallest", [0, 1 << 30], ids=["threads", "alone"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
def test_both_ends_find_who_is_due(
    along: str,
    count: Any,
    smallest: int,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_sweeps, "SMALLEST_CHUNK", smallest)
    rng = np.random.default_rng(3)
    for vertices, edges in ((1, 0), (31, 40), (65, 400), (1000, 1500)):
        ends = rng.integers(0, vertices, (2, edges))
        graph = fg.Graph.from_edges(*ends, vertex_count=vertices)
        active = rng.random(vertices) < share
        cpu = choose_device("cpu")
        words = ActiveSet(vertices, active).words
        about = vertices if count == "all" else count
        found = cpu.sets.expand(words.copy(), graph_arrays(graph, cpu), about, along)
        due = ActiveSet.from_words(vertices, found)
        np.testing.assert_array_equal(due.mask, expected(graph, active, along))
