"""Runs that keep aggregates, held superstep by superstep against the interpreter."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.program.program import Program
from featgraph.runtime import iterate
from featgraph.runtime.loops.foldmap_run import FoldmapRun
from tests.simt.superstep import mask_of

__all__ = ["Watch", "check_invariant", "runs"]

#: A patched sum is as good as a new one up to a factor of 16, each time it is patched.
PATCHED = 16.0


@dataclass
class Seen:
    """One superstep: values before and after, what was committed, what was done."""

    before: dict[str, Any]
    after: dict[str, Any]
    committed: fg.ActiveSet
    work: str


class Watch:
    """Takes down what every superstep of a run does, and holds the kept invariant.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
        Lets it see the steps of the run.
    meddle : callable, optional
        ``meddle(run, state)`` behind each superstep, as a callback of the user's.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        meddle: Callable[[Any, fg.State], Any] | None = None,
    ) -> None:
        self.monkeypatch = monkeypatch
        self.meddle = meddle
        self.steps: list[FoldmapRun] = []
        self.seen: list[Seen] = []

    def iterate(self, foldmaps: Any, state: fg.State, **options: Any) -> fg.Run:
        """Run `fg.iterate`; it may reach its limit."""
        connect_runs = iterate.connect_runs

        def watched(steps: list[FoldmapRun]) -> None:
            self.steps = steps
            connect_runs(steps)

        before = [reference.from_state(state)[1]]

        def take_down(run: fg.Run, state: fg.State) -> Any:
            after = reference.from_state(state)[1]
            assert run.active_sets is not None
            committed, work = run.active_sets[-1], run.aggregates[-1]
            self.seen.append(Seen(before[0], after, committed, work))
            for step in self.steps:
                check_invariant(step, state)
            stop = self.meddle(run, state) if self.meddle is not None else None
            before[0] = reference.from_state(state)[1]
            return stop

        with self.monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            patch.setattr(iterate, "connect_runs", watched)
            return fg.iterate(
                foldmaps, state, callback=take_down, record_active=True, **options
            )


def runs(step: FoldmapRun) -> bool:
    """Whether a step has aggregates that hold something."""
    return step._incremental is not None and step._incremental.is_known


def check_invariant(step: FoldmapRun, state: fg.State) -> None:
    """Kept is the combine over all in-edges of what the sources in `seen` contribute.

    For every vertex that is not stale and not left out by ``.on``.
    """
    if not runs(step):
        return
    kept, device = step._incremental, step.device
    assert kept is not None
    graph, values, signature = reference.from_state(state)
    count = graph.vertex_count
    holds = ~mask_of(np.asarray(device.download(kept.stale)), count)
    if step.on is not None:
        holds &= mask_of(np.asarray(device.download(step.on)), count)
    fields = kept.kernel.kernel_source.fields
    arrays = {n: np.array(device.download(a)) for n, a in kept.arrays.items()}
    values |= {f.of: arrays[f.name] for f in fields if f.source == "seen"}
    for field in fields:
        if field.source != "incremental":
            continue
        functions = kept.kernel.plan.analysis.functions
        gather = next(f for f in functions if f.into == field.of)
        program = Program.declare([gather.declared])
        outcome = reference.superstep(program, graph, values, signature)
        expected = outcome.temporaries[field.of]
        actual = arrays[field.name]
        rounds = gather.declared.combine.name in {"sum", "product"}
        if not rounds or actual.dtype.kind != "f":
            same = (actual == expected) | ((actual != actual) & (expected != expected))
        else:
            same = _is_near(actual, expected, outcome, field.of)
            if gather.declared.combine.name == "product":
                # float32 overflows where the interpreter does not.
                size = np.abs(expected)
                same |= ~((size < 1e30) & (size > 1e-30))
        bad = np.argwhere(~same & holds.reshape(-1, *[1] * (same.ndim - 1)))
        assert not bad.size, (
            f"kept {field.of}{bad[0].tolist()} is {actual[tuple(bad[0])]!r}, "
            f"not {expected[tuple(bad[0])]!r}"
        )


def _is_near(actual: Any, expected: Any, outcome: reference.Outcome, into: str) -> Any:
    eps = float(np.finfo(actual.dtype).eps)
    rows = (-1, *[1] * (expected.ndim - 1))
    degree = outcome.degree.reshape(rows)
    with np.errstate(all="ignore"):
        magnitude = np.maximum(outcome.magnitude[into], np.abs(expected))
        allowed = 8 * PATCHED * eps * (degree + 1) * magnitude
        allowed[~np.isfinite(allowed)] = 0.0
        near = np.abs(actual - expected) <= allowed
    return near | (actual == expected) | (np.isnan(actual) & np.isnan(expected))
