"""Which foldmaps may see updates of their own superstep, in any order, and which not.

A run whose vertices see some updates early and others late ends where a synchronous one
does if every function is monotone. That cannot be proved of a user's function, so it is
what the caller promises (docs/model.md, S8). What the access table shows against it is
refused here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from featgraph.errors import PlanError
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.change_driven import Changes, changes_of, join_changes
from featgraph.fold.plan.options import Options
from featgraph.fold.syntax.nodes import Access, Whole

if TYPE_CHECKING:
    from featgraph.fold.plan.plan import Phase

__all__ = ["IN_PLACE", "check_in_place", "check_unordered"]

#: How the option is called in messages.
IN_PLACE = "asynchronous=True"
#: Combines to which it is all the same how often and in which order they see a value.
IDEMPOTENT = ("min", "max", "any", "argmin", "argmax")


def check_unordered(analysis: Analysis, others: Iterable[Changes], where: str) -> None:
    """Refuse functions whose result could depend on which vertices run when.

    Parameters
    ----------
    analysis : Analysis
        The middle end's result for one foldmap.
    others : iterable of Changes
        What the other foldmaps of the run change.
    where : str
        The option that asks for it.

    Raises
    ------
    PlanError
        Names the function, what it does, and a fix.
    """
    changes = join_changes([changes_of(analysis), *others])
    #: What moves during the run; grows by what is made of it.
    moving = {*changes.announced, *changes.silent}
    waiting: list[Analysed] = []
    for function in analysis.functions:
        read = sorted({a.name for a in function.accesses if _moves(a.name, moving)})
        problem, fix = _problem(function, read)
        if problem is not None:
            raise PlanError(f"{_place(function)} {problem}", where=where, fix=fix)
        if function.kind == "gather":
            for earlier, name in _filters(waiting, moving):
                raise PlanError(
                    f"{_place(earlier)} runs before a gather and reads {name}, which "
                    "changes in the run: a vertex that it stops would not see what is "
                    "better and comes later",
                    where=where,
                    fix="let it read what does not change, or drop the option",
                )
            if read:
                moving.add(str(function.into))
        waiting.append(function)


def _place(function: Analysed) -> str:
    return f"{function.declared.source.where()}: {function.declared.name}"


def _moves(name: str, moving: set[str]) -> bool:
    return name in moving or name.removesuffix("_source") in moving


def _problem(function: Analysed, read: Sequence[str]) -> tuple[str | None, str]:
    """Return what of a function alone forbids it, and how to mend that."""
    drop = "drop the option"
    if function.kind not in {"vertex", "gather", "reduce"}:
        article = "an" if function.kind == "edge" else "a"
        return (
            f"is {article} {function.kind} function: it runs where the superstep "
            "before has committed"
        ), f"write it as a gather, or {drop}"
    if "superstep" in function.scalars:
        return "reads d.superstep, and supersteps do not count the same", drop
    written = sorted(function.writes("now"))
    if written:
        return (
            f"writes {written[0]} in place, which shows how often it ran"
        ), f"declare {written[0]} with iterated=True and write d.{written[0]}_next"
    if any(a.mode == "atomic" for a in function.accesses):
        return "uses fg.atomic, which shows how often it ran", drop
    if function.kind == "reduce" and read:
        return (
            f"reduces {read[0]}, which changes in the run: its result shows how far "
            "others have come"
        ), f"reduce it behind the run, or {drop}"
    operator = getattr(function.declared, "combine", None)
    if function.kind == "gather" and read and operator.name not in IDEMPOTENT:  # type: ignore[union-attr]
        return (
            f"combines {read[0]}, which changes in the run, with "
            f"{operator.name!r}: what was counted early would stay in it"  # type: ignore[union-attr]
        ), f"combine with {', '.join(IDEMPOTENT)}, or {drop}"
    any_will_do = getattr(function.declared, "first", False)
    if any_will_do and read and operator.name != "any":  # type: ignore[union-attr]
        return (
            f"takes the first of what {read[0]} contributes, which changes in the run: "
            "another one may be better"
        ), f"drop first=True, or {drop}"
    return None, ""


def _filters(
    earlier: Sequence[Analysed], moving: set[str]
) -> list[tuple[Analysed, str]]:
    """Return the vertex functions that may stop a vertex for what it is now."""
    return [
        (function, access.name)
        for function in earlier
        if function.kind == "vertex"
        for access in function.accesses
        if access.mode == "read" and _moves(access.name, moving)
    ]


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
            "what a vertex sees of its superstep is not repeatable",
            where=IN_PLACE,
            got="deterministic=True",
            fix="drop one of the two",
        )
    if options.keep is not None:
        raise PlanError(
            "kept aggregates account for what sources were when a superstep began",
            where=IN_PLACE,
            got="change_driven=True",
            fix="use change_driven='auto', which keeps nothing here",
        )
    own = [p for p in phases if p.kind != "reduce"]
    first = own[0].functions[0] if own else 0
    pushed = next((p for p in own if p.kind == "push"), None)
    if pushed is not None:
        function = analysis.functions[pushed.functions[0]]
        raise PlanError(
            f"{_place(function)} is pushed: it is complete only when all sources are "
            "done",
            where=IN_PLACE,
            fix="use direction='pull'",
        )
    if len(own) > 1:
        function = analysis.functions[own[1].functions[0]]
        raise PlanError(
            f"{_place(function)} needs a kernel of its own behind "
            f"{analysis.functions[first].declared.name}: {own[1].reason}",
            where=IN_PLACE,
            fix="write a foldmap that folds into one kernel, or drop the option",
        )
    _check_torn(analysis)


def _check_torn(analysis: Analysis) -> None:
    """Refuse reading several numbers of a vertex that is committing them."""
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
                    f"{_place(function)} reads {name} at other vertices, and {seen[1]} "
                    f"reads {seen[0]} there: of a vertex that is committing, one may "
                    "be new and the other old",
                    where=IN_PLACE,
                    fix="read one property elsewhere, or drop the option",
                )
            seen = seen or (name, function.declared.name)
            _check_feature(function, name)


def _check_feature(function: Analysed, name: str) -> None:
    """Refuse what is read of several features at another vertex."""
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
                f"{_place(function)} reads other features of {name} at another vertex "
                "than its own: of one that is committing, some may be new and others "
                "old",
                where=IN_PLACE,
                fix=f"index {name} with f there, or drop the option",
            )
    if function.collective and function.kind == "gather":
        raise PlanError(
            f"{_place(function)} makes a collaborative call of {name} at another "
            "vertex, of which some features may be new and others old",
            where=IN_PLACE,
            fix="make no collaborative call in the gather, or drop the option",
        )
