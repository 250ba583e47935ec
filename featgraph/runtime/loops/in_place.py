"""Supersteps that write to the current buffers, where the result is the same (0022)."""

from __future__ import annotations

import numpy as np

from featgraph.runtime.loops.foldmap_run import FoldmapRun

__all__ = ["commit_in_place"]


def commit_in_place(steps: list[FoldmapRun]) -> None:
    """Have the foldmaps of a run commit in place that can.

    Incremental aggregates need earlier values. And if buffers of a property swap for
    one foldmap, they swap for all that write the property.
    """
    if any(_may_be_incremental(step) for step in steps):
        return
    found = [step for step in steps if _can_be(step)]
    while True:
        swapped = {n for s in steps if s not in found for n in _written(s)}
        left = [step for step in found if not _written(step) & swapped]
        if len(left) == len(found):
            break
        found = left
    for step in found:
        step.in_place = True


def _may_be_incremental(step: FoldmapRun) -> bool:
    """Whether aggregates of a superstep of the run may be incremental."""
    if step.change_driven is False or not step.may_be_incremental:
        return False
    asked = step.change_driven is True or step.may_pay
    return asked and bool(step.plan.incremental.gathers)


def _written(step: FoldmapRun) -> set[str]:
    return set(step.plan.facts.writes_next)


def _can_be(step: FoldmapRun) -> bool:
    """Whether no vertex reads what another one commits in the superstep."""
    plan = step.plan
    if not step.plain.kernel.kernel_source.waits or plan.facts.may_push:
        return False
    exchange = step.plain.bound.exchange
    # The kernels that wait differ by target, and all ranks must commit in one way.
    if plan.options.asynchronous or exchange.is_mixed:
        return False
    if _written(step).isdisjoint(plan.facts.seen_elsewhere):
        return True
    found = np.array([step.foldmap.is_independent(step.state)], np.int64)
    return bool(exchange.all_reduce(found, "min")[0])  # a rank tests its own edges
