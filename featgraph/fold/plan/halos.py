"""Halos: the properties that ranks exchange, found in the access table.

A rank runs the functions of its own vertices, and of the edges into them. Values at
neighbors, and at edges out of own vertices, are in ghosts, copies of rows that other
ranks own. Before a phase reads ghosts, their owners send the rows that have changed. A
`Halo` lists the properties that a phase reads at ghosts, and the properties that it
writes, whose ghosts become stale. `why_not_shared` returns the reason why a program
cannot run on several ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from featgraph.base.dataclass import dataclass
from featgraph.fold.analysis.access import AccessRecord
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import combine_of, declared_along, rounds
from featgraph.fold.tree.statements import Atomic, every
from featgraph.program.combines import RULES
from featgraph.program.signature import PropertyKind

__all__ = [
    "Halo",
    "Refusal",
    "Split",
    "find_halo",
    "why_not_shared",
]


@dataclass(frozen=True)
class EdgeHalo:
    """Edge properties that a phase reads at ghost edges, and those that it writes.

    An edge belongs to the rank that owns its target. Twins of a rank's edges, and edges
    out of its vertices, may belong to other ranks.

    Attributes
    ----------
    reads, reads_next : tuple of str
        Properties read at ghost edges, current and next entries.
    writes, writes_next : tuple of str
        Properties that edge functions write, in place and next entries.
    outboxes : tuple of (str, str, str)
        (outbox, property, operation) for atomics at twins.
    """

    reads: tuple[str, ...]
    reads_next: tuple[str, ...]
    writes: tuple[str, ...]
    writes_next: tuple[str, ...]
    outboxes: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class TriangleHalo:
    """Properties that a triangle function reads at ghost edges, and its atomics.

    Attributes
    ----------
    reads, reads_next : tuple of str
        Edge properties of which it reads current, and next, entries.
    updates : tuple of (str, str)
        (property, operation) for atomics at corners and edges of the triangle.
    """

    reads: tuple[str, ...]
    reads_next: tuple[str, ...]
    updates: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Halo:
    """Properties that a phase reads at ghosts, and writes that ghosts must receive.

    Attributes
    ----------
    reads, reads_next : tuple of str
        Vertex properties of which it reads current, and next, entries at neighbors.
        Next entries are those that earlier phases of the superstep have written.
    writes : tuple of str
        Vertex properties that it writes in place, or atomically at own vertices.
    mirrors, mirrors_next : tuple of (str, str)
        (mirror, property) for reads of current, and next, entries at computed vertices.
    outboxes : tuple of (str, str, str)
        (outbox, property, operation) for atomics at vertices of other ranks.
    edges : EdgeHalo
        Halo of edge properties.
    triangles : TriangleHalo or None
        Halo of the triangle function; None without one.
    """

    reads: tuple[str, ...]
    reads_next: tuple[str, ...]
    writes: tuple[str, ...]
    mirrors: tuple[tuple[str, str], ...]
    mirrors_next: tuple[tuple[str, str], ...]
    outboxes: tuple[tuple[str, str, str], ...]
    edges: EdgeHalo
    triangles: TriangleHalo | None


@dataclass(frozen=True)
class Refusal:
    """The reason why a program does not run on several ranks.

    Attributes
    ----------
    why, where, fix : str
        Text of an error: the problem, the place in the user's code, the smallest fix.
    """

    why: str
    where: str
    fix: str


@dataclass(frozen=True)
class Split:
    """The phase that may be swept in pieces: rows of a finished piece are final.

    Attributes
    ----------
    phase : int
        Position of the phase; -1 for none.
    why_not : str
        Reason why there is none; "" if there is one.
    """

    phase: int
    why_not: str


def find_halo(functions: Sequence[Analysed], analysis: Analysis) -> Halo:
    """Return the halo of a phase with these functions."""
    records = [
        a
        for f in functions
        for a in f.accesses
        if _is_of(PropertyKind.VERTEX, analysis, a)
    ]

    def names(mode: str, version: str, where: str) -> tuple[str, ...]:
        wanted = mode, version, where
        found = {a.name for a in records if (a.mode, a.version, a.where) == wanted}
        return tuple(sorted(found))

    def mirrors(version: str) -> tuple[tuple[str, str], ...]:
        read = names("read", version, "foreign")
        known = analysis.mirrors.items()
        return tuple((m, of) for m, (of, v) in known if v == version and of in read)

    triangles = _find_triangles(functions, analysis)
    # Atomics of a triangle function are in `TriangleHalo.updates`.
    at_own = {a.name for a in records if a.mode == "atomic" and a.where != "foreign"}
    if triangles is not None:
        at_own -= {name for name, _ in triangles.updates}
    return Halo(
        reads=names("read", "now", "neighbor"),
        reads_next=names("read", "next", "neighbor"),
        writes=tuple(sorted({*names("write", "now", "own"), *at_own})),
        mirrors=mirrors("now"),
        mirrors_next=mirrors("next"),
        outboxes=_outboxes(PropertyKind.VERTEX, functions, analysis),
        edges=_find_edges(functions, analysis),
        triangles=triangles,
    )


def _outboxes(
    kind: PropertyKind, functions: Sequence[Analysed], analysis: Analysis
) -> tuple[tuple[str, str, str], ...]:
    """Return the outboxes of atomics at other vertices or edges."""
    updated = {(n.name, n.op) for f in functions for n in _atomics(f)}
    return tuple(
        (name, *of)
        for name, of in analysis.outboxes.items()
        if (name, of[1]) in updated and analysis.signature[name].kind is kind
    )


def _find_triangles(
    functions: Sequence[Analysed], analysis: Analysis
) -> TriangleHalo | None:
    """Return the halo of a triangle function; None without one."""
    if not any(function.kind.intersects for function in functions):
        return None
    [function] = functions
    read = {
        (a.name, a.version)
        for a in function.accesses
        if a.mode == "read" and _is_of(PropertyKind.EDGE, analysis, a)
    }
    updates = {(n.name, n.op) for n in _atomics(function)}
    return TriangleHalo(
        reads=tuple(sorted(n for n, version in read if version == "now")),
        reads_next=tuple(sorted(n for n, version in read if version == "next")),
        updates=tuple(
            sorted((n, op) for n, op in updates if n not in analysis.outboxes)
        ),
    )


def _find_edges(functions: Sequence[Analysed], analysis: Analysis) -> EdgeHalo:
    """Return the edge halo of a phase with these functions.

    Triangle functions are left out: `TriangleHalo` has their accesses.
    """
    accessed: dict[tuple[str, str], set[str]] = {}
    for function in (f for f in functions if not f.kind.intersects):
        goes_out = function.kind.gathers and declared_along(function) != "in"
        for record in function.accesses:
            if not _is_of(PropertyKind.EDGE, analysis, record):
                continue
            mode = "read" if record.mode == "read" else "write"
            in_outbox = (record.mode, record.where) == ("atomic", "twin")
            if mode == "write" and in_outbox:
                continue  # the owner of the twin writes it, from the outbox
            elsewhere = goes_out or record.where == "twin"
            if mode == "write" or elsewhere:
                accessed.setdefault((mode, record.version), set()).add(record.name)

    def names(mode: str, version: str) -> tuple[str, ...]:
        return tuple(sorted(accessed.get((mode, version), ())))

    return EdgeHalo(
        reads=names("read", "now"),
        reads_next=names("read", "next"),
        writes=names("write", "now"),
        writes_next=names("write", "next"),
        outboxes=_outboxes(PropertyKind.EDGE, functions, analysis),
    )


def _atomics(function: Analysed) -> list[Atomic]:
    return [n for n in every(function.body) if isinstance(n, Atomic)]


def _is_of(kind: PropertyKind, analysis: Analysis, record: AccessRecord) -> bool:
    type_ = analysis.signature.get(record.name)
    return type_ is not None and type_.kind is kind


#: (reason, fix, test) for functions that several ranks cannot run.
_TESTS: tuple[tuple[str, str, Callable[[Analysed], bool]], ...] = (
    (
        "an exclusive function writes at both ends of an edge, of which another rank "
        "may own one",
        "run it on a graph that is not distributed",
        lambda f: f.kind.exclusive,
    ),
    (
        "two atomic operations of a triangle function at one property",
        "use a property for each",
        lambda f: (
            f.kind.intersects
            and len(found := {(n.name, n.op) for n in _atomics(f)})
            > len({name for name, _ in found})
        ),
    ),
)


def why_not_shared(
    functions: Sequence[Analysed], analysis: Analysis, in_order: bool = False
) -> Refusal | None:
    """Return why a program does not run on several ranks; None if it does.

    With `in_order`, results of reduces must have the bits of a run on one rank.
    """
    for function in functions:
        is_rounded = function.kind.reduces and rounds(function)
        if in_order and is_rounded and combine_of(function).rules.tree is None:
            known = [
                name
                for name, rules in RULES.items()
                if rules.tree is not None or (rules.selects and rules.exchange)
                if rules.gives != "bool"
            ]
            return Refusal(
                f"ranks combine {function.into} by {combine_of(function).name}, each "
                "what it has, in an order of their own",
                function.declared.source.where(),
                f"combine with {', '.join(known)}, or no deterministic=True",
            )
        for why, fix, holds in _TESTS:
            if holds(function):
                return Refusal(why, function.declared.source.where(), fix)
    return _why_not_combined(functions, analysis)


def _why_not_combined(
    functions: Sequence[Analysed], analysis: Analysis
) -> Refusal | None:
    """Return the refusal of an atomic whose old value is used, or None.

    The owner of the entry applies it behind the phase: other ranks get no old value.
    """
    sent = {name: of for name, (of, _) in analysis.outboxes.items()}
    for function in functions:
        unused = [n.value for n in every(function.body) if isinstance(n, ast.Expr)]
        for node in _atomics(function):
            of = sent.get(node.name, node.name)
            is_sent = of in sent.values() or function.kind.intersects
            if is_sent and not any(node is other for other in unused):
                return Refusal(
                    f"the old value of {of} is used, and atomic operations at vertices "
                    "of other ranks reach them behind the phase",
                    function.declared.source.where(node),
                    "write a form that does not need it, or gather at that vertex",
                )
    return None
