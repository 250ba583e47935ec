"""What the ranks of a run send each other: found in the access table.

A rank runs the functions of its own vertices. What they read at neighbors stands in
ghosts, rows of vertices that other ranks own: before a phase reads them, owners send
what has changed. A halo says which properties these are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from featgraph.fold.analysis.access import AccessRecord
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.plan.options import Options
from featgraph.fold.syntax.names import BUILTIN_ARRAYS
from featgraph.fold.syntax.nodes import Access
from featgraph.fold.syntax.vertex_numbers import is_at_end
from featgraph.program.signature import PropertyKind

__all__ = ["Halo", "Refusal", "find_halo", "why_not_shared"]


@dataclass(frozen=True)
class Halo:
    """What one phase reads at ghosts, and what it writes that others may read there.

    Attributes
    ----------
    reads, reads_next : tuple of str
        Vertex properties that it reads at neighbors: what they are, and what they will
        be in the next superstep as far as earlier phases have come.
    writes : tuple of str
        Vertex properties that it writes in place.
    mirrors : tuple of str
        Vertex properties that it reads at vertices that it computes.
    """

    reads: tuple[str, ...]
    reads_next: tuple[str, ...]
    writes: tuple[str, ...]
    mirrors: tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """Why a program does not run on several ranks.

    Attributes
    ----------
    why, where, fix : str
        As in an error.
    """

    why: str
    where: str
    fix: str


def find_halo(functions: Sequence[Analysed], analysis: Analysis) -> Halo:
    """Return the halo of a phase with these functions."""
    records = [a for f in functions for a in f.accesses if _is_of_vertices(analysis, a)]

    def names(mode: str, version: str, where: str) -> tuple[str, ...]:
        wanted = mode, version, where
        found = {a.name for a in records if (a.mode, a.version, a.where) == wanted}
        return tuple(sorted(found))

    return Halo(
        reads=names("read", "now", "neighbor"),
        reads_next=names("read", "next", "neighbor"),
        writes=names("write", "now", "own"),
        mirrors=names("read", "now", "foreign"),
    )


def _is_of_vertices(analysis: Analysis, record: AccessRecord) -> bool:
    type_ = analysis.signature.get(record.name)
    return type_ is not None and type_.kind is PropertyKind.VERTEX


#: What a function may not do, as a test, and what to do instead.
_TESTS: tuple[tuple[str, str, Callable[[Analysed], bool]], ...] = (
    (
        "edge functions do not run on several ranks yet",
        "gather what they write, at the vertex that reads it",
        lambda f: f.kind == "edge",
    ),
    (
        "triangles are not looked for on several ranks yet",
        "run it on a graph without partition",
        lambda f: f.kind == "triangle",
    ),
    (
        "an atomic operation at another vertex may be at another rank's",
        "gather at that vertex instead",
        lambda f: any(a.mode == "atomic" and a.where != "own" for a in f.accesses),
    ),
    (
        "degrees of vertices that are neither source nor target may be another rank's",
        "have them in a property, and read that",
        lambda f: any(_is_far(n) for s in f.body for n in ast.walk(s)),
    ),
    (
        "the reverse of an edge may be another rank's",
        "gather what it has, at the vertex that reads it",
        lambda f: bool(f.twin_operations) or any(a.where == "twin" for a in f.accesses),
    ),
)


def _is_far(node: ast.AST) -> bool:
    if not isinstance(node, Access) or node.name not in BUILTIN_ARRAYS:
        return False
    return not is_at_end(node)


def why_not_shared(functions: Sequence[Analysed], options: Options) -> Refusal | None:
    """Return why a program does not run on several ranks; None if it does."""
    if options.asynchronous:
        return Refusal(
            "updates within a superstep do not reach other ranks",
            "asynchronous=True",
            "drop asynchronous=True",
        )
    for function in functions:
        for why, fix, holds in _TESTS:
            if holds(function):
                return Refusal(why, function.declared.source.where(), fix)
    return None
