"""Supersteps in one kernel of many blocks leave what the CPU leaves (0042)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms.bfs import bfs, verify_bfs
from featgraph.algorithms.sssp import sssp, verify_sssp
from featgraph.cuda import dialect

if not dialect.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.plan import WORKLIST
from featgraph.runtime.loops import worklist_cuda
from featgraph.runtime.loops.background import COMPILER
from tests.programs.queued import QUEUED
from tests.simt.test_queue import make, record, run, same

pytestmark = pytest.mark.gpu
LAUNCHES: list[int] = []


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have loops compiled where they are first wanted; count them."""
    known: dict[Kernel, Kernel] = {}
    ran = worklist_cuda.CudaQueue._run

    def find(self: worklist_cuda.CudaQueue) -> Kernel | None:
        kernel = self._step.kernel
        if kernel not in known:
            known[kernel] = kernel.in_form(WORKLIST)
        return known[kernel]

    def counted(self: worklist_cuda.CudaQueue, *given: Any) -> Any:
        done = ran(self, *given)
        LAUNCHES.append(len(done.counts))
        return done

    LAUNCHES.clear()
    monkeypatch.setattr(worklist_cuda.CudaQueue, "_find_kernel", find)
    monkeypatch.setattr(worklist_cuda.CudaQueue, "_run", counted)


def _graphs() -> dict[str, fg.Graph]:
    hubs = np.random.default_rng(1)
    ends = hubs.integers(0, 3000, 20000), hubs.integers(0, 40, 20000)
    return {
        "grid": fg.graph.generators.grid(61, 83),
        "rmat": fg.graph.generators.rmat(12, 8, seed=2),
        "hubs": fg.Graph.from_edges(*ends, vertex_count=3000, directed=False),
    }


@pytest.mark.parametrize("most", [200, 5000, 1 << 18])
@pytest.mark.parametrize("graph", ["grid", "rmat", "hubs"])
@pytest.mark.parametrize("name", sorted(QUEUED))
def test_many_blocks_leave_what_the_cpu_leaves(
    name: str, graph: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worklist_cuda, "MOST_ACTIVE", most)
    key = QUEUED[name][2]
    for near in (False, True) if key is not None else (False,):
        options: dict[str, Any] = {"deterministic": True}
        if near and key is not None:
            options["near_far"] = fg.NearFar(key, delta=1.5)
        found = []
        for target in ("cpu", "cuda"):
            step, state = make(name, _graphs()[graph], 5)
            picked = np.arange(0, state.graph.vertex_count, 97)
            runs = [
                run(step, state, target, active=picked, max_supersteps=9, **options),
                run(step, state, target, max_supersteps=2000, **options),
            ]
            found.append((state, [record(r) for r in runs]))
        (one, records), (other, other_records) = found
        same(one, other)
        assert records == other_records
    assert most == 200 or sum(LAUNCHES) > 0


@pytest.mark.parametrize("graph", ["grid", "rmat", "hubs"])
def test_searches_are_right(graph: str) -> None:
    made = _graphs()[graph]
    weights = np.random.default_rng(3).integers(1, 99, made.given_edge_count) / 4
    weights = weights.astype(np.float32)
    for _ in range(3):
        levels = bfs(made, 1, target="cuda")
        paths = sssp(made, 1, weights=weights, target="cuda")
    verify_bfs(made, 1, levels.levels, levels.parents)
    given = paths.distances, paths.predecessors
    verify_sssp(made, 1, *given, weights=weights)
    assert max(LAUNCHES) > 1


def test_it_is_compiled_behind_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the types of arguments alone, which are those of a launch."""
    monkeypatch.undo()
    monkeypatch.setattr(fg.config, "compile_behind", True)
    graph = fg.graph.generators.grid(30, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            done = bfs(graph, 0, target="cuda").run
            COMPILER.wait()
    [kernel] = done.kernels
    assert worklist_cuda.is_compiled(kernel)
    loop = kernel.in_form(WORKLIST)
    assert len(loop.queue.overloads) == 1
    assert done.directions == ["push"] * done.supersteps
