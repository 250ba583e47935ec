"""Which programs may have ghosts whose rows were rounded (``wire_dtype``)."""

from __future__ import annotations

from featgraph.base.errors import PlanError
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import combine_of
from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.signature import PropertyKind

__all__ = ["check_wire_dtype"]


def check_wire_dtype(plan: FoldPlan) -> None:
    """Refuse what a rounded row could make another answer, and not a near one.

    Raises
    ------
    PlanError
        For ``deterministic=True``, integers or booleans at neighbors, argmin and
        argmax, and edge operations at the reverse of an edge.
    """
    asked = plan.options.wire_dtype
    if asked is None:
        return
    if plan.options.deterministic:
        raise _refusal(
            asked,
            "rounded rows give other bits on each number of ranks",
            got="deterministic=True",
        )
    operation, where = plan.facts.twins_at
    if operation:
        raise _refusal(
            asked, f"fg.{operation} reads edges as other ranks have them", where
        )
    for function in plan.analysis.functions:
        _check_function(plan, function, asked)


def _check_function(plan: FoldPlan, function: Analysed, asked: str) -> None:
    where = function.declared.source.where()
    if function.kind.gathers and combine_of(function).is_arg:
        best = "least" if combine_of(function).rules.order == "min" else "largest"
        raise _refusal(
            asked,
            f"{function.declared.name} asks which neighbor is the {best}, and rounded "
            "rows tie",
            where,
        )
    types = plan.analysis.signature
    for access in function.accesses:
        type_ = types.get(access.name)
        if type_ is None or (access.mode, access.where) != ("read", "neighbor"):
            continue
        if type_.kind is PropertyKind.VERTEX and not type_.is_real:
            raise _refusal(
                asked,
                f"{function.declared.name} reads {access.name} at a neighbor, which is "
                "not real",
                where,
                got=f"{access.name} of {type_.dtype}",
                expected="float32 or float64",
            )


def _refusal(asked: str, why: str, where: str = "", **more: str) -> PlanError:
    at = f"wire_dtype={asked!r}" + (f", {where}" if where else "")
    return PlanError(why, where=at, **more, fix="no wire_dtype")
