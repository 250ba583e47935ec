"""Nodes of a loop nest: what a kernel does, and what a schedule has made of it.

Functions and what they fill are named, not held. A leaf is a Python statement for one
feature, ``aggr[f] += weigh(f, u, v, e, d)``: there ``x[f]`` is feature f of what a lane
has, and ``*x`` all that it has. `Features` says for which features it runs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from featgraph.fold.tree.statements import Body, Node

__all__ = [
    "Areas",
    "Called",
    "Comment",
    "Features",
    "ForEdges",
    "FromMemory",
    "Meet",
    "Only",
    "Push",
    "RowLoad",
    "Sweep",
]


# What a phase does. No lane, no place in memory and no copy of a feature stands here.


@dataclass(eq=False)
class Sweep(Node):
    """`body` for each vertex of the set `words`, or for all where that is "".

    `wanted` is what the test is called, that a lane's vertex is one of them.
    """

    vertex: str
    words: str
    wanted: str
    body: Body


@dataclass(eq=False)
class ForEdges(Node):
    """`body` for each edge of a vertex, or of the part of its row that `part` names."""

    vertex: str
    body: Body
    part: str = ""


@dataclass(eq=False)
class Only(Node):
    """`body` for edges for which `test` holds."""

    test: ast.expr
    body: Body


@dataclass(eq=False)
class FromMemory(Node):
    """What earlier phases have gathered for a vertex comes from memory."""

    of: str


@dataclass(eq=False)
class Push(Node):
    """A gather combines it into memory of the edge's end, with an atomic."""

    function: str


# What a schedule leaves: no `Only`, `ForEdges` or `Sweep` any more.


@dataclass(eq=False)
class Areas(Node):
    """Memory that lanes work in is declared, and matrices are brought to hand."""


@dataclass(eq=False)
class Meet(Node):
    """Lanes of a scope, "edge" or "vertex", meet.

    Attributes
    ----------
    what : str
        "sync", so that each sees what others have written; "any" or "all" of a flag;
        "combine" of what each has accumulated.
    names : tuple of str
        The flag and the name of the result, or what is combined.
    """

    what: str
    scope: str
    names: tuple[str, ...] = ()


@dataclass(eq=False)
class Called(Node):
    """All lanes call a function that makes shuffles; `mask` says whose call counts."""

    function: str
    mask: str
    into: str


@dataclass(frozen=True)
class RowLoad:
    """A row of an array of which a lane loads several features at once.

    Attributes
    ----------
    name : str
        What its features are called in a leaf, ``name[f]``.
    array, index : str
        Where it stands; "" where it is in registers already.
    """

    name: str
    array: str = ""
    index: str = ""


@dataclass(eq=False)
class Features(Node):
    """`body` for each feature that a lane has.

    Attributes
    ----------
    shape : str
        "one": there are no features; "wide": each of K; "matrix": each of K x K.
    rows : tuple of RowLoad
        Loaded in front, for as many features as a load takes.
    guarded : bool
        Whether lanes without a feature of their own must be kept out.
    """

    shape: str
    body: Body
    rows: tuple[RowLoad, ...] = ()
    guarded: bool = False


@dataclass(eq=False)
class Comment(Node):
    """A line of its own."""

    text: str
