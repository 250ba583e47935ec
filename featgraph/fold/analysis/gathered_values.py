"""Reads of gathered values at other features than the function's own.

A gather leaves ``d.into[v, f]`` to the lane of feature f. An entry at a constant
feature is a value that all lanes need: it becomes an `Entry`, a temporary of its own
that is the same for all features. Every other index is computed where the function
runs, so what it goes to must stand in memory; a kernel boundary sees to that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from featgraph.base.dataclass import dataclass
from featgraph.fold.tree.expressions import Access
from featgraph.program.functions import UserFunction

__all__ = [
    "INDEXED",
    "Entry",
    "base_name",
    "check_gathered",
    "entry_stem",
    "separate_gathered",
]

#: Version of an access that goes to what a gather has left in memory.
INDEXED = "indexed"


@dataclass(frozen=True)
class Entry:
    """One entry of what a gather leaves, at a constant feature.

    Attributes
    ----------
    of : str
        ``into``, or the sources of an argmin or argmax, ``into_source``.
    feature : int
        Which.
    """

    of: str
    feature: int


def base_name(name: str, temporaries: Iterable[str]) -> str | None:
    """Return the ``into`` that a name is or is the sources of; None for others."""
    if name in temporaries:
        return name
    stem = name.removesuffix("_source")
    return stem if stem != name and stem in temporaries else None


def entry_stem(name: str, temporaries: Iterable[str]) -> str:
    """Return the prefix of the names of entries of a temporary.

    With a number behind it, it is neither another temporary nor a copy of one.
    """
    stem, others = f"{name}_at", set(temporaries)
    while any(n == stem or n.startswith(f"{stem}_") for n in others):
        stem += "_"
    return stem


def check_gathered(
    function: UserFunction, body: list[ast.stmt], kinds: Mapping[str, str]
) -> None:
    """Refuse gathered values of another vertex: only its own lanes have them.

    Reduces and triangle functions have none at all (`check_accesses`).

    Raises
    ------
    UserFunctionError
        For a read at another vertex than v, and for any read in an edge function.
    """
    for node in (n for s in body for n in ast.walk(s)):
        name = getattr(node, "name", "")
        if kinds.get(name) != "into" or function.kind.is_silent:
            continue
        indices: list[ast.expr] = getattr(node, "indices", [])
        first = indices[0] if indices else None
        is_own = isinstance(first, ast.Name) and first.id == "v"
        if is_own and not function.kind.writes_edges:
            continue
        where = "where" if function.kind.writes_edges else "at a vertex where"
        shown = ast.unparse(first) if isinstance(first, ast.Name) else "another vertex"
        raise function.source.error(
            f"{name!r} is read {where} it was not gathered",
            node,
            got=f"d.{name} in an edge function"
            if function.kind.writes_edges
            else f"d.{name} at {shown}",
            expected=f"d.{name} at v, in a vertex function or gather behind its gather",
            fix="store it in a property, and read that in a second foldmap",
        )


def separate_gathered(
    function: UserFunction,
    body: list[ast.stmt],
    shapes: Mapping[str, tuple[int, ...]],
    stems: Mapping[str, str],
) -> tuple[dict[str, Entry], frozenset[str]]:
    """Tell apart the reads of gathered values; `body` is changed.

    Parameters
    ----------
    function : UserFunction
        One that runs once for each element of a matrix has no lane of feature f.
    body : list of ast.stmt
        It, typed.
    shapes : mapping
        Shape of an entry of each temporary, by ``into``.
    stems : mapping
        What names of entries begin with (`entry_stem`).

    Returns
    -------
    entries : dict
        Name of a temporary of its own -> the entry at a constant feature.
    indexed : frozenset of str
        What it reads at features that it computes. Elements of matrices are not among
        them: those stand in an array where they are gathered.
    """
    by_element = bool(getattr(function, "matrix", False))
    entries: dict[str, Entry] = {}
    indexed: set[str] = set()
    for node in (n for s in body for n in ast.walk(s)):
        if not isinstance(node, Access):
            continue
        base = base_name(node.name, shapes)
        if base is None or len(shapes[base]) != 1:
            continue
        last = node.indices[-1]
        if isinstance(last, ast.Constant):
            entry = Entry(node.name, int(last.value))  # type: ignore[arg-type]
            name = f"{stems[node.name]}_{entry.feature}"
            entries[name] = entry
            node.name, node.indices = name, node.indices[:1]
        elif by_element or not (isinstance(last, ast.Name) and last.id == "f"):
            node.version = INDEXED
            indexed.add(base)
    return entries, frozenset(indexed)
