"""Which target each rank of a group runs on, and what runs on several of them."""

from __future__ import annotations

import numpy as np

from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import PlanError
from featgraph.fold.plan.plan import FoldPlan

__all__ = ["check_plan", "targets_of"]


def targets_of(engine: Engine, own: str) -> tuple[str, ...]:
    """Return the target of each rank; all of them call it with theirs."""
    told = np.frombuffer(own.encode(), np.uint8)
    about = "the target of each rank, where a graph is first run on it"
    found = engine.all_gather(told, about=about)
    return tuple(one.tobytes().decode() for one in found)


def check_plan(plan: FoldPlan, targets: tuple[str, ...]) -> None:
    """Refuse what ranks of these targets do not do together; all of them call it.

    Raises
    ------
    PlanError
        Names the option, or the function, the targets, and a fix.
    """
    facts, options = plan.facts, plan.options
    if "cuda" in targets and any(halo.edges.outboxes for halo in facts.halos):
        raise PlanError(
            "atomic operations at the reverse of an edge run on ranks of the CPU only",
            where=facts.twins_at[1],
            got=_said(targets),
            fix="target='cpu', or gather what they combine",
        )
    if len(set(targets)) == 1:
        return
    if options.deterministic:
        raise PlanError(
            "each target has bits of its own: sums are taken in blocks of its own, and "
            "functions rounded by another compiler",
            where="deterministic=True",
            got=_said(targets),
            expected="one target on all ranks",
            fix='target="cpu" on all ranks, or no deterministic=True',
        )
    if options.exchange in {"all", "ms"}:
        raise PlanError(
            "GPUs send the rows that changed, and no others",
            where="exchange=",
            got=f"{options.exchange!r} with {_said(targets)}",
            expected="'auto', 'vr' or 'vr-list'",
            fix='target="cpu" on all ranks sends rows in every form',
        )


def _said(targets: tuple[str, ...]) -> str:
    """Return which ranks run on which target."""
    if len(set(targets)) == 1:
        return f"target={targets[0]!r}"
    parts = []
    for target in sorted(set(targets)):
        ranks = [str(rank) for rank, one in enumerate(targets) if one == target]
        named = f"ranks {', '.join(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}"
        parts.append(f"{target!r} on {named}")
    return "targets " + ", ".join(parts)
