"""Checks of options that not every program allows.

`check_in_place` checks programs that commit inside of their kernel, where other
vertices see the new values at once. `check_wire_dtype` checks programs whose ghosts
receive rounded rows (``wire_dtype``).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.base.errors import PlanError
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.changes import changes_of, place_of
from featgraph.fold.analysis.gathers import combine_of
from featgraph.fold.plan.options import IN_PLACE, Options
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.tree.expressions import Access, Whole
from featgraph.program.signature import PropertyKind

__all__ = ["check_in_place", "check_wire_dtype"]


def check_in_place(
    analysis: Analysis, phases: Sequence[Phase], options: Options
) -> None:
    """Refuse foldmaps that cannot commit inside of their kernel.

    Raises
    ------
    PlanError
        Names the option or function, the reason, and a fix.
    """
    if options.deterministic:
        raise PlanError(
            "values that a vertex sees of its superstep are not repeatable",
            where=IN_PLACE,
            got="deterministic=True",
            fix="drop one of the two",
        )
    if options.incremental is not None:
        raise PlanError(
            "kept aggregates account for what sources were when a superstep began",
            where=IN_PLACE,
            got="change_driven=True",
            fix="use change_driven='auto', which keeps nothing here",
        )
    own = [p for p in phases if not p.kind.reduces]
    first = own[0].functions[0] if own else 0
    pushed = next((p for p in own if p.kind.pushes), None)
    if pushed is not None:
        function = analysis.functions[pushed.functions[0]]
        raise PlanError(
            f"{place_of(function)} is pushed: it is complete only when all sources are "
            "done",
            where=IN_PLACE,
            fix="use direction='pull'",
        )
    if len(own) > 1:
        function = analysis.functions[own[1].functions[0]]
        raise PlanError(
            f"{place_of(function)} needs a kernel of its own behind "
            f"{analysis.functions[first].declared.name}: {own[1].reason}",
            where=IN_PLACE,
            fix="write a foldmap that folds into one kernel, or drop the option",
        )
    _check_torn(analysis)


def _check_torn(analysis: Analysis) -> None:
    """Refuse reads of several values of a vertex that may be committing them."""
    changes = changes_of(analysis).announced
    seen: tuple[str, str] | None = None
    for function in analysis.functions:
        elsewhere = {
            a.name
            for a in function.accesses
            if a.mode == "read" and a.where in {"neighbor", "foreign"}
        }
        for name in sorted(elsewhere.intersection(changes)):
            if seen is not None and seen[0] != name:
                raise PlanError(
                    f"{place_of(function)} reads {name} at other vertices, and "
                    f"{seen[1]} reads {seen[0]} there: of a vertex that is committing, "
                    "one may be new and the other old",
                    where=IN_PLACE,
                    fix="read one property elsewhere, or drop the option",
                )
            seen = seen or (name, function.declared.name)
            _check_feature(function, name)


def _check_feature(function: Analysed, name: str) -> None:
    """Refuse reads of several features at another vertex."""
    for node in (n for s in function.body for n in ast.walk(s)):
        if not isinstance(node, Access | Whole) or node.name != name:
            continue
        entity = node.indices[0]
        if isinstance(entity, ast.Name) and entity.id == "v":
            continue
        features = node.indices[1:]
        is_own = all(isinstance(i, ast.Name) and i.id == "f" for i in features)
        if isinstance(node, Whole) or node.is_row or not is_own or len(features) > 1:
            raise PlanError(
                f"{place_of(function)} reads other features of {name} at another "
                "vertex than its own: of one that is committing, some may be new and "
                "others old",
                where=IN_PLACE,
                fix=f"index {name} with f there, or drop the option",
            )
    if function.collective and function.kind.gathers:
        raise PlanError(
            f"{place_of(function)} makes a collaborative call of {name} at another "
            "vertex, of which some features may be new and others old",
            where=IN_PLACE,
            fix="make no collaborative call in the gather, or drop the option",
        )


def check_wire_dtype(plan: FoldPlan) -> None:
    """Refuse programs in which rounded rows give a different, not a close, result.

    Raises
    ------
    PlanError
        For ``deterministic=True``, integers or booleans at neighbors, argmin and
        argmax, and edge operations at the reverse of an edge.
    """
    wire_dtype = plan.options.wire_dtype
    if wire_dtype is None:
        return
    if plan.options.deterministic:
        raise _refusal(
            wire_dtype,
            "rounded rows give other bits on each number of ranks",
            got="deterministic=True",
        )
    operation, where = plan.facts.twins_at
    if operation:
        raise _refusal(
            wire_dtype, f"fg.{operation} reads edges as other ranks have them", where
        )
    for function in plan.analysis.functions:
        _check_function(plan, function, wire_dtype)


def _check_function(plan: FoldPlan, function: Analysed, wire_dtype: str) -> None:
    where = function.declared.source.where()
    if function.kind.gathers and combine_of(function).is_arg:
        best = "least" if combine_of(function).rules.order == "min" else "largest"
        raise _refusal(
            wire_dtype,
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
                wire_dtype,
                f"{function.declared.name} reads {access.name} at a neighbor, which is "
                "not real",
                where,
                got=f"{access.name} of {type_.dtype}",
                expected="float32 or float64",
            )


def _refusal(wire_dtype: str, why: str, where: str = "", **more: str) -> PlanError:
    at = f"wire_dtype={wire_dtype!r}" + (f", {where}" if where else "")
    return PlanError(why, where=at, **more, fix="no wire_dtype")
