"""Which foldmaps may run their vertices in any order, and which not.

A run whose vertices see some updates early and others late ends where a synchronous one
does if every function is monotone. That cannot be proved of a user's function, so it is
what the caller promises (docs/model.md, S8). What the access table shows against it is
refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from featgraph.base.errors import PlanError
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.change_driven import Changes, changes_of, join_changes
from featgraph.fold.analysis.gathers import combine_of
from featgraph.program.combines import SELECTIVE

__all__ = ["check_any_order", "place_of"]


def check_any_order(analysis: Analysis, others: Iterable[Changes], where: str) -> None:
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
            raise PlanError(f"{place_of(function)} {problem}", where=where, fix=fix)
        if function.kind.gathers:
            for earlier, name in _filters(waiting, moving):
                raise PlanError(
                    f"{place_of(earlier)} runs before a gather and reads {name}, which "
                    "changes in the run: a vertex that it stops would not see what is "
                    "better and comes later",
                    where=where,
                    fix="let it read what does not change, or drop the option",
                )
            if read:
                moving.add(str(function.into))
        waiting.append(function)


def place_of(function: Analysed) -> str:
    """Return where a function stands, and its name."""
    return f"{function.declared.source.where()}: {function.declared.name}"


def _moves(name: str, moving: set[str]) -> bool:
    return name in moving or name.removesuffix("_source") in moving


def _problem(function: Analysed, read: Sequence[str]) -> tuple[str | None, str]:
    """Return what of a function alone forbids it, and how to mend that."""
    drop = "drop the option"
    if not (function.kind.combines or function.kind.writes_vertices):
        article = "an" if function.kind.writes_edges else "a"
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
    if function.kind.reduces and read:
        return (
            f"reduces {read[0]}, which changes in the run: its result shows how far "
            "others have come"
        ), f"reduce it behind the run, or {drop}"
    if not function.kind.gathers or not read:
        return None, ""
    combine = combine_of(function)
    if not combine.rules.selects:
        return (
            f"combines {read[0]}, which changes in the run, with "
            f"{combine.name!r}: what was counted early would stay in it"
        ), f"combine with {', '.join(SELECTIVE)}, or {drop}"
    any_will_do = getattr(function.declared, "first", False)
    if any_will_do and combine.rules.gives != "bool":
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
        if function.kind.writes_vertices
        for access in function.accesses
        if access.mode == "read" and _moves(access.name, moving)
    ]
