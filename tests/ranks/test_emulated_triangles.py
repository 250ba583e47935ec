"""Triangle functions on ranks whose kernels run on an emulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms as al
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.ranks.exchange import triangle_parts, triangles
from featgraph.runtime.devices import protocol
from featgraph.runtime.devices.cuda_arrays import CudaArrays
from tests.ranks.test_triangles import (
    GRAPHS,
    V,
    behind,
    make_state,
    parted,
    require_same,
    run,
    sums,
)
from tests.simt.gpu import Gpu

IS_DEEP = settings.get_current_profile_name() == "deep"
#: The graph of tests that go through all of its triangles several times.
LARGEST = 2 if IS_DEEP else 1


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@settings(
    max_examples=max(settings.default.max_examples // 25, 1),
    deadline=None,
    # Without the deep profile the example alone: each takes seconds.
    phases=tuple(p for p in Phase if IS_DEEP or p is Phase.explicit),
)
@example(seed=2, rounds=4, inner=[9, 32], order="given", batch=4096, kept=1 << 14)
@given(
    seed=st.integers(0, 2),
    rounds=st.integers(1, 4),
    inner=st.lists(st.integers(0, V), max_size=3).map(sorted),
    order=st.sampled_from(["given", "spread", "locality"]),
    batch=st.sampled_from([2048, 4096, 1 << 20]),
    kept=st.sampled_from([0, 1 << 14, 1 << 20]),
)
def test_triangles_are_the_same_on_any_number_of_ranks(
    gpu: Gpu,
    seed: int,
    rounds: int,
    inner: list[int],
    order: str,
    batch: int,
    kept: int,
) -> None:
    cuts, alone = [0, *inner, V], run(GRAPHS[seed], seed, rounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triangle_parts, "BATCH_BYTES", batch)
        patch.setattr(triangle_parts, "KEPT_BYTES", kept)

        def on_a_rank(engine: Any) -> list[Any]:
            graph = fg.distribute(GRAPHS[seed], order=order, cuts=cuts)
            return run(graph, seed, rounds, "cuda")

        for found in run_ranks(len(cuts) - 1, on_a_rank):
            require_same(found, alone)


def test_trusses_are_those_of_one_rank(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triangle_parts, "BATCH_BYTES", 4096)
    plain = fg.Graph.from_edges(
        *_without_loops(GRAPHS[LARGEST]), vertex_count=V, directed=False
    )
    meant = al.k_truss(plain, target="cpu")

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(plain, cuts=[0, 9, 32, V])
        found = al.k_truss(graph, target="cuda")
        np.testing.assert_array_equal(found.trussness, meant.trussness)

    run_ranks(3, on_a_rank)


@fg.edge
def fall(f, u, v, e, d):
    if not d.left[e] or d.load[e] + d.load[fg.reverse(e)] > d.limit:
        return False
    d.left_next[e] = False
    return True


@fg.triangle(within="left")
def lose_one(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.load, e_uv, -1)
    fg.atomic.add(d.load, e_uw, -1)
    fg.atomic.add(d.load, e_vw, -1)


@fg.triangle
def count_one(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.load, e_uv, 1)
    fg.atomic.add(d.load, e_uw, 1)
    fg.atomic.add(d.load, e_vw, 1)


@fg.gather(into="seen", combine="sum")
def look_back(f, u, v, e, d):
    return 1 + d.load[fg.reverse(e)] if d.left[fg.reverse(e)] else 0


@fg.vertex
def keep_seen(f, v, d):
    d.first[v] = d.seen[v]
    return True


count, peel = fg.trianglemap(count_one), fg.foldmap(fall, lose_one)
look = fg.foldmap(look_back, keep_seen)


def peeled(graph: fg.Graph, target: str) -> list[Any]:
    """Peel edges, with writes from outside and looks at reverses in between."""
    state = fg.State(
        graph,
        left=fg.edge_property(True, iterated=True, per_direction=True),
        load=fg.edge_property(0, per_direction=True),
        first=fg.vertex_property(0),
        limit=0,
    )
    results: list[Any] = []
    count(state, target=target)
    for limit, active, turns in ((1, [3, 9, 20], 1), (1, None, 2), (2, None, 2)):
        state["limit"] = limit
        for _ in range(turns):
            out = peel(state, active_in=active, target=target)
            results.append(out.mask)
        look(state, target=target)
        results.append(state["first"])
    return [*results, state["left"], state["load"]]


def test_edges_that_changed_are_swept_on_ranks(gpu: Gpu) -> None:
    meant = peeled(GRAPHS[2], "cpu")

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(GRAPHS[2], cuts=[0, 20, V])
        require_same(peeled(graph, "cuda"), meant)

    run_ranks(2, on_a_rank)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("step", [sums, parted])
def test_a_warm_superstep_hands_nothing_to_the_host(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, step: fg.Foldmap
) -> None:
    moved: list[Any] = []
    for name in ("upload", "download"):
        _note_calls(monkeypatch, name, moved)

    def on_a_rank(engine: Any) -> None:
        state = make_state(fg.distribute(GRAPHS[2], cuts=[0, 20, V]), 2)
        for _ in range(2):
            step(state, target="cuda")
        engine.barrier()
        before, known = engine.traffic.sent.copy(), len(moved)
        step(state, target="cuda")
        engine.barrier()
        assert not moved[known:]
        assert np.array_equal(engine.traffic.sent, before)

    run_ranks(2, on_a_rank)
    assert moved


def _note_calls(monkeypatch: pytest.MonkeyPatch, name: str, moved: list[Any]) -> None:
    """Have calls noted that bring an array to the device, or from there."""
    wrapped = getattr(CudaArrays, name)

    def noted(self: CudaArrays, values: Any, *more: Any) -> Any:
        moved.append(values)
        return wrapped(self, values, *more)

    monkeypatch.setattr(CudaArrays, name, noted)


def test_long_rows_have_blocks(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in the middle, each in the batch that has it."""
    monkeypatch.setattr(triangle_parts, "BATCH_BYTES", 4096)
    for module in (triangles, protocol):
        monkeypatch.setattr(module, "LONG_ROW", 3)
    alone = make_state(GRAPHS[LARGEST], LARGEST)
    for step in (sums, behind):
        step(alone, target="cpu")

    def on_a_rank(engine: Any) -> None:
        state = make_state(fg.distribute(GRAPHS[LARGEST], cuts=[0, 9, 32, V]), LARGEST)
        for step in (sums, behind):
            step(state, target="cuda", schedule="mark")
        for name in state:
            np.testing.assert_array_equal(state[name], alone[name], err_msg=name)

    run_ranks(3, on_a_rank)


def _without_loops(graph: fg.Graph) -> tuple[Any, Any]:
    ends = np.asarray(graph.sources), np.asarray(graph.targets)
    given = slice(graph.given_edge_count)
    u, v = ends[0][given], ends[1][given]
    return u[u != v], v[u != v]
