"""Dead vertices on an emulated GPU: programs, loops of the device, algorithms."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.fold.plan import traits
from featgraph.runtime.devices import cuda_device, cuda_sets, protocol
from featgraph.runtime.loops.replay_report import ReplayReport
from tests.bank import BY_NAME
from tests.dynamic.doubles import with_dead
from tests.dynamic.test_dead_in_algorithms import check_dead
from tests.dynamic.test_living import path
from tests.simt.gpu import Gpu, emulated_gpu
from tests.simt.test_watched_loops import have_loops

VERTICES = 70
HUB_DEGREE = 30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with emulated_gpu() as made:
        have_loops(monkeypatch)
        for module in (protocol, cuda_device, cuda_sets, traits):
            monkeypatch.setattr(module, "HUB_DEGREE", HUB_DEGREE)
        yield made


def drawn_graph(*, directed: bool) -> fg.Graph:
    """Return a graph with a hub, of which a third of the vertices are dead."""
    rng = np.random.default_rng(8)
    living = rng.random(VERTICES) < 0.66
    ids = np.flatnonzero(living)[:-2]  # two of them have no edges
    ends = rng.choice(ids, (2, 200))
    ends[1, :40] = ids[3]
    made = fg.Graph.from_edges(*ends, vertex_count=VERTICES, directed=directed)
    return with_dead(made, living)


@pytest.mark.drawn(20)
@pytest.mark.parametrize("name", BY_NAME)
def test_programs(gpu: Gpu, name: str) -> None:
    check_program(name)


OPTIONS = [
    ("label_propagation", {"schedule": "warp_segmentation"}),
    ("label_propagation", {"schedule": "virtual_warp", "lanes_per_vertex": 8}),
    ("bfs", {"schedule": "balanced_push", "direction": "push"}),
    ("edge_atomics", {"schedule": "balanced_push", "direction": "push"}),
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_schedules(gpu: Gpu, name: str, options: dict[str, Any]) -> None:
    check_program(name, **options)


def check_program(name: str, **options: Any) -> None:
    """Run it from all vertices, and from some; the CPU leaves the same."""
    program = BY_NAME[name]
    graph = drawn_graph(directed=not program.undirected)
    rng = np.random.default_rng(3)
    values = program.make_state(graph, program.widths[0], rng)
    for active in (None, np.arange(0, VERTICES, 3)):
        found = []
        for target in ("cuda", "cpu"):
            state = fg.State(graph, **copy.deepcopy(values))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fg.ConvergenceWarning)
                ran = fg.iterate(
                    program.foldmaps, state, target=target, max_supersteps=2,
                    active=active, **(options if target == "cuda" else {}),
                )  # fmt: skip
            found.append((state, ran.active_counts))
        (ours, counts), (theirs, wanted) = found
        assert counts == wanted
        for value in ours:
            if program.exact:
                np.testing.assert_array_equal(ours[value], theirs[value], err_msg=value)
            else:
                np.testing.assert_allclose(
                    ours[value], theirs[value], 1e-4, 1e-4, err_msg=value
                )


@fg.gather(into="mean", combine="sum")
def add_up(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.share[u]


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    d.share_next[v] = (d.mean[v] + d.living_count) % 1000
    return True


@fg.reduce(into="total", combine="sum")
def total(f, v, d):  # type: ignore[no-untyped-def]
    return d.share_next[v]


@fg.reduce(into="last", combine="max")
def last(f, v, d):  # type: ignore[no-untyped-def]
    return v


shared = fg.foldmap(add_up, settle, total, last)


def check_loops(gpu: Gpu) -> None:
    """All living vertices commit in each superstep: that is everything."""
    graph = path()
    found = []
    for target in ("cuda", "cpu"):
        share = np.arange(70, dtype=np.int32)
        state = fg.State(graph, share=fg.vertex_property(share, iterated=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            ran = fg.iterate(shared, state, target=target, max_supersteps=12)
        assert ran.active_counts == [6] * 12
        assert state["last"].tolist() == [66]
        assert state["total"].tolist() == [state["share"].sum()]
        assert not state["share"][~graph.living].any()
        # No vertex was excluded: all vertices are pending.
        assert all(left.words is None for left in state.left[1].values())
        found.append(state["share"])
    assert sum(loop.ran for loop in gpu.loops) > 0
    np.testing.assert_array_equal(*found)


def test_loops(gpu: Gpu) -> None:
    check_loops(gpu)


def test_a_planted_fault_is_caught(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ReplayReport.__init__

    def count_ids(self: ReplayReport, *given: Any) -> None:
        begin(self, *given)
        self._everything = VERTICES

    monkeypatch.setattr(ReplayReport, "__init__", count_ids)
    with pytest.raises(AssertionError):
        check_loops(gpu)


@pytest.mark.drawn(3)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize(
    "name",
    ["pagerank", "connected_components link", "bfs", "clustering", "hits", "k_core"],
)
def test_algorithms(gpu: Gpu, name: str) -> None:
    check_dead(name, "cuda")
