"""Supersteps that write to the current buffers, where the result is the same.

See docs/design/0022-in-place.md.
"""

from __future__ import annotations

import numpy as np

from featgraph.runtime.loops.foldmap_run import Step

__all__ = ["commit_in_place"]


def commit_in_place(steps: list[Step]) -> None:
    """Have those foldmaps of a run commit in place that can.

    A step with incremental aggregates needs earlier values. And where buffers change
    places for one foldmap, they do for all that write the property.
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


def _may_be_incremental(step: Step) -> bool:
    """Whether aggregates of a superstep of the run may be incremental."""
    if step.change_driven is False or not step.may_be_incremental:
        return False
    asked = step.change_driven is True or step.may_pay
    return asked and bool(step.plan.incremental.gathers)


def _written(step: Step) -> set[str]:
    return set(step.plan.facts.writes_next)


def _can_be(step: Step) -> bool:
    """Whether nothing that a superstep commits is read by others in it, or undone."""
    plan = step.plan
    if not step.plain.kernel.kernel_source.waits or plan.facts.may_push:
        return False
    if plan.options.asynchronous:
        return False
    if _written(step).isdisjoint(plan.facts.seen_elsewhere):
        return True
    found = np.array([step.foldmap.is_independent(step.state)], np.int64)
    # A rank knows of its own edges.
    return bool(step.plain.bound.exchange.all_reduce(found, "min")[0])
