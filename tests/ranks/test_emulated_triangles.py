"""Triangle functions on ranks whose kernels run on an emulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import _cuda
from featgraph import algorithms as al
from featgraph.distributed import run_ranks

if not _cuda.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.ranks.triangles import arrays, parts
from featgraph.runtime.devices import bound
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


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@settings(max_examples=max(settings.default.max_examples // 25, 1), deadline=None)
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
        patch.setattr(parts, "BATCH_BYTES", batch)
        patch.setattr(parts, "KEPT_BYTES", kept)

        def on_a_rank(engine: Any) -> list[Any]:
            graph = fg.distribute(GRAPHS[seed], order=order, cuts=cuts)
            return run(graph, seed, rounds, "cuda")

        for found in run_ranks(len(cuts) - 1, on_a_rank):
            require_same(found, alone)


def test_trusses_are_those_of_one_rank(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "BATCH_BYTES", 4096)
    plain = fg.Graph.from_edges(
        *_without_loops(GRAPHS[2]), vertex_count=V, directed=False
    )
    meant = al.k_truss(plain, target="cpu")

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(plain, cuts=[0, 9, 32, V])
        found = al.k_truss(graph, target="cuda")
        np.testing.assert_array_equal(found.trussness, meant.trussness)

    run_ranks(3, on_a_rank)


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
    monkeypatch.setattr(parts, "BATCH_BYTES", 4096)
    for module in (arrays, bound):
        monkeypatch.setattr(module, "LONG_ROW", 3)
    alone = make_state(GRAPHS[2], 2)
    for step in (sums, behind):
        step(alone, target="cpu")

    def on_a_rank(engine: Any) -> None:
        state = make_state(fg.distribute(GRAPHS[2], cuts=[0, 9, 32, V]), 2)
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
