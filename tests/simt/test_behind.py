"""Kernels of the GPU that are compiled behind runs: those that launches take (0045)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.loops import background
from featgraph.runtime.loops.background import COMPILER
from tests.programs.queued import QUEUED
from tests.simt.gpu import Gpu, emulated_gpu
from tests.simt.test_queue import make, same

STEP = "featgraph.runtime.loops.foldmap_run"


@contextmanager
def pushing() -> Iterator[Gpu]:
    """Give a GPU on which all supersteps are pushed that can be."""
    with emulated_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fg.config, "compile_behind", True)
        patch.setattr(background, "_jobs", WeakKeyDictionary())
        patch.setattr(f"{STEP}.is_push_shorter", lambda *given: True)
        patch.setattr(f"{STEP}.least_pulled", lambda *given: -1)
        patch.setattr("featgraph.runtime.loops.worklist_cuda.WANTED", 1 << 30)
        yield gpu
        COMPILER.wait()


def graph(kind: type[fg.Graph] = fg.Graph, **options: Any) -> Any:
    drawn = fg.graph.generators.rmat(5, 4, seed=3)
    return kind.from_edges(
        drawn.sources, drawn.targets, vertex_count=40, directed=False, **options
    )


def run(step: Any, state: fg.State, target: str) -> fg.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        return fg.iterate(
            step, state, active=[1, 2], max_supersteps=4, target=target,
            deterministic=True,
        )  # fmt: skip


@pytest.mark.drawn(6)
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("name", sorted(QUEUED))
def test_launches_take_what_was_compiled_by_types_alone(
    name: str, changes: bool
) -> None:
    kind = (fg.DynamicGraph, {"target": "cuda"}) if changes else (fg.Graph, {})
    step, meant = make(name, graph(), 5)
    may_push = step.fold(meant, target="cuda").plan.facts.may_push
    assert may_push != (name in {"peeling", "widths"})
    expected = run(step, meant, "cpu")
    with pushing() as gpu:
        found = []
        for _ in range(2):
            step, state = make(name, graph(kind[0], **kind[1]), 5)
            found.append(run(step, state, "cuda"))
            same(state, meant)
            if len(found) == 1:
                COMPILER.wait()
                ahead, before = set(gpu.compiled_ahead), len(gpu.by_dialect)
                driven = len(gpu.by_driver)
    first, second = found
    assert first.active_counts == second.active_counts == expected.active_counts
    assert set(first.directions) == {"pull"}
    assert set(second.directions) == {"push" if may_push else "pull"}
    assert any(name.startswith("push") for name in ahead) == may_push
    # None of them goes through the dialect, which would compile it for other types.
    assert not ahead & set(gpu.by_dialect[before:])
    assert ahead <= set(gpu.by_driver[driven:])


def test_what_cannot_be_compiled_is_warned_of_and_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: Gpu, kernel: Any, types: Any) -> None:
        raise RuntimeError("ptxas fatal: too many registers")

    monkeypatch.setattr(Gpu, "ahead", refuse)
    with pushing():
        step, state = make("search", graph(), 5)
        run(step, state, "cuda")
        with pytest.warns(fg.CompilationWarning, match="too many registers"):
            COMPILER.wait()
        assert set(run(step, state, "cuda").directions) <= {"pull", "-"}
