"""Pieces of sweeps on ranks of an emulated GPU that send messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from tests.ranks.forced import cut
from tests.ranks.test_overlap import lowest, near
from tests.ranks.test_overlap_windows import V, make_graph
from tests.simt.gpu import Gpu

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")


@pytest.fixture(scope="module")
def gpu(gpu: Gpu) -> Gpu:
    """Memory of which each kernel is watched: whom it has to have waited for."""
    gpu.watches = True
    return gpu


LOWERING = fg.foldmap(lowest, near)


@contextmanager
def over(links: str) -> Iterator[None]:
    """Have ranks send messages, over an engine that reaches GPUs or the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fg.config, "gpu_links", links)
        yield


@pytest.mark.parametrize(
    ("links", "directed", "inner", "piece_bytes", "form", "supersteps"),
    [
        ("engine", True, [32], 100, "auto", 3),
        ("host", False, [5, 40], 200, "vr", 4),
        pytest.param("host", True, [0, 64], 200, "vr-list", 4, marks=pytest.mark.slow),
        pytest.param("engine", False, [7, 7], 40, "vr", 4, marks=pytest.mark.slow),
    ],
)
def test_messages_give_the_same_bits_in_pieces(
    gpu: Gpu,
    links: str,
    directed: bool,
    inner: list[int],
    piece_bytes: int,
    form: str,
    supersteps: int,
) -> None:
    whole, cuts = make_graph(directed), [0, *inner, V]
    meant, wanted = lowered(whole, "cpu", supersteps)

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=cuts)
        how: Any = {"overlap": True, "exchange": form}
        run, labels = lowered(graph, "cuda", supersteps, **how)
        return run, labels, sets_of(run)

    with over(links), cut(piece_bytes):
        forms = Counter[str]()
        for run, labels, sets in run_ranks(len(cuts) - 1, on_a_rank):
            assert all(run.pieces)
            assert run.active_counts == meant.active_counts
            np.testing.assert_array_equal(labels, wanted)
            forms.update(run.forms)
            for one, other in zip(sets, sets_of(meant), strict=True):
                np.testing.assert_array_equal(one, other)
    assert form == "auto" or forms[form]


def lowered(
    graph: fg.Graph, target: str, supersteps: int, **options: Any
) -> tuple[fg.Run, Any]:
    """Have labels go down to the least around them: fewer and fewer change."""
    labels = np.random.default_rng(1).permutation(V)
    state = fg.State(graph, label=fg.vertex_property(labels, iterated=True))
    options |= {"max_supersteps": supersteps, "record_active": True}
    run = fg.iterate(LOWERING, state, target=target, **options)
    return run, state["label"]


def sets_of(run: fg.Run) -> list[Any]:
    return [found.mask for found in run.active_sets or ()]
