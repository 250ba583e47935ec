"""Arrays that all ranks give in the memory of their GPUs, emulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks
from featgraph.ranks.engines.protocol import Engine

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.errors import StateError
from featgraph.cuda import download
from tests.ranks.test_emulated import V, lowest, make_graph
from tests.simt.foreign import Foreign
from tests.simt.gpu import Gpu

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("given", ["float32", "int64"])
def test_rows_are_taken_on_the_gpu(
    gpu: Gpu, ranks: int, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another type than the storage's, too; none comes to the host before a run."""
    whole = make_graph(400)
    values = np.random.default_rng(1).integers(0, 99, V).astype(given)
    alone = fg.State(
        whole, x=fg.vertex_property(values, dtype="float32", iterated=True)
    )
    fg.iterate(lowest, alone, max_supersteps=3, target="cpu")
    seen: list[int] = []
    read = download.read

    def noticed(array: Any, *more: Any) -> Any:
        seen.append(array.size)
        return read(array, *more)

    def of_rank(engine: Engine) -> Any:
        graph = fg.distribute(whole)
        there = fg.vertex_property(Foreign(values), dtype="float32", iterated=True)
        state = fg.State(graph, x=there)
        state["x"] = Foreign(values[::-1])
        state["x"] = Foreign(values)
        assert max(seen, default=0) < V // ranks
        fg.iterate(lowest, state, max_supersteps=3, target="cuda")
        return state["x"]

    monkeypatch.setattr(download, "read", noticed)
    for found in run_ranks(ranks, of_rank):
        np.testing.assert_array_equal(found, alone["x"])


def test_a_value_that_is_not_stored_is_refused_on_all_ranks(gpu: Gpu) -> None:
    """One of them has it, and no edge leads there."""
    values = np.where(np.arange(V) < V - 1, 0, 1000)
    lonely = fg.Graph.from_edges([0], [1], vertex_count=V)

    def of_rank(engine: Engine) -> str:
        graph = fg.distribute(lonely)
        with pytest.raises(StateError, match="does not fit int8") as error:
            fg.State(graph, x=fg.vertex_property(Foreign(values), dtype="int8"))
        return str(error.value)

    first, second = run_ranks(2, of_rank)
    assert first == second
