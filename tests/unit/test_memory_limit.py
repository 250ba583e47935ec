"""The memory limit: what is a size, and what a kernel needs under it, without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.base.config import Config, config
from featgraph.base.errors import ArgumentError
from featgraph.graph.building import edges
from featgraph.runtime.streaming import needs
from featgraph.runtime.streaming.needs import is_of_edges, needs_of


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (None, None),
        (4096, 4096),
        ("4096", 4096),
        ("8 GB", 8 * 10**9),
        ("8GB", 8 * 10**9),
        ("1.5 gib", 3 << 29),
        (" 20 MiB ", 20 << 20),
        ("300 B", 300),
    ],
)
def test_sizes_are_bytes_or_text(given: Any, size: int | None) -> None:
    assert Config(memory_limit=given).memory_limit_bytes == size


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "", "GB", "8 XB", "-1 GB", "nan"])
def test_what_is_no_size_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"fg.config.memory_limit"):
        _ = Config(memory_limit=given).memory_limit_bytes


def test_the_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEATGRAPH_MEMORY_LIMIT", "2 GB")
    assert Config().memory_limit_bytes == 2 * 10**9


def test_names_of_arrays_of_edges() -> None:
    of_edges = ("in_sources", "out_edges", "incident_neighbors", "edge_twin")
    assert all(map(is_of_edges, (*of_edges, "upper_orders", "both_positions")))
    others = ("in_offsets", "out_hubs", "in_degree", "upper_offsets", "order_vertex")
    assert not any(map(is_of_edges, others))


@fg.gather(into="total", combine="sum")
def weigh(f, u, v, e, d):
    return d.w[e] * d.x[u, f]


@fg.vertex
def take(f, v, d):
    d.x_next[v, f] = d.total[v, f]
    return True


step = fg.foldmap(weigh, take)


def state() -> fg.State:
    u, v = np.random.default_rng(0).integers(0, 1000, (2, 50_000))
    graph = fg.Graph.from_edges(u, v, vertex_count=1000)
    x = np.ones((1000, 3), np.float32)
    w = np.ones(50_000, np.float32)
    return fg.State(
        graph, x=fg.vertex_property(x, iterated=True), w=fg.edge_property(w)
    )


def test_what_a_kernel_needs() -> None:
    given = state()
    source = step.fold(given, target="cuda").kernel_source
    needs = needs_of(source, given.signature, given.graph)
    # Rows of three stand four apart.
    assert needs.stays["d.x"] == needs.stays["d.x_next"] == 1000 * 4 * 4
    assert needs.stays["in_offsets"] == 4 * 1001
    assert needs.edges == {"in_sources": 200_000, "d.w": 200_000}


def test_explain_shows_what_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "LEAST_BUFFER", 1 << 12)
    monkeypatch.setattr(needs, "MOST_BUFFER", 20_480)
    given = state()
    assert "memory limit" not in step.explain(given, target="cuda")

    def explained(limit: int) -> list[str]:
        monkeypatch.setattr(config, "memory_limit", limit)
        assert "memory limit" not in step.explain(given, target="cpu")
        return step.explain(given, target="cuda").splitlines()

    assert explained(500_000)[-1] == "  edges: 400 KB more, which fit"
    *_, limit, stays, of_edges, streamed = explained(200_000)
    assert limit == "memory limit: 200 KB"
    assert stays == "  stays on the GPU: 38.1 KB: values of vertices, offsets, sets"
    assert of_edges == "  edges: 400 KB in the host's memory: d.w, in_sources"
    assert streamed == (
        "  streamed: at most 318 KB a superstep, through 6 buffers of 20.5 KB, 4 of "
        "which keep a slice; read in place where few rows are due"
    )
    assert explained(45_000)[-1].startswith("  does not run: ")


def test_a_run_on_the_cpu_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    free, limited = state(), state()
    step(free, target="cpu")
    monkeypatch.setattr(config, "memory_limit", 1000)
    step(limited, target="cpu")
    np.testing.assert_array_equal(limited["x"], free["x"])


def test_graphs_that_a_gpu_may_not_hold_are_built_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edges, "MANY_EDGES", 0)
    made = state().graph._edges
    assert made.is_built_on_gpu
    monkeypatch.setattr(config, "memory_limit", 10**6)
    assert not made.is_built_on_gpu
    monkeypatch.setattr(config, "memory_limit", 10**7)
    assert made.is_built_on_gpu


def test_a_setting_that_there_is_not_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no setting 'memory_limits'") as caught:
        fg.config.memory_limits = "8 GB"  # type: ignore[attr-defined]
    assert caught.value.fix == "did you mean 'memory_limit'?"
