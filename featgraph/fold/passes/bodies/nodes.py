"""Nodes of user functions between passes: what features, lanes and memory make of them.

Statements are Python's, for one feature, with the middle end's expressions. What all
features take part in, or what is not yet said in Python, is a node. As in nests, ``*x``
is x of all features that a lane has.
"""

from __future__ import annotations

import ast
from typing import Any

from featgraph.base.dataclass import dataclass, field
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.statements import Body, Node

#: What tells a row from others: the array, and the vertex or edge.
Key = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """A row that a function reads in pieces.

    Attributes
    ----------
    key : (str, str)
        The array, and the vertex or edge: what accesses are known by.
    name : str
        Of the loaded tuple, where a lane takes one piece; else with the place of the
        piece's first feature behind it.
    index : str
        The first index.
    register : str
        Where the row is in registers anyway: what its copies are called.
    """

    key: Key
    name: str
    index: str
    register: str = ""

    def __str__(self) -> str:
        return self.register or f"{self.key[0]}[{self.index}]"

    def piece_name(self, j: int, mapping: Mapping) -> str:
        """Return the name of the piece that has a lane's feature j."""
        first = j - j % mapping.vector_width
        return (
            self.name
            if mapping.features_per_lane == mapping.vector_width
            else f"{self.name}_{first}"
        )

    def copy(self, j: int, mapping: Mapping) -> str:
        """Return a lane's feature j."""
        if self.register:
            return f"{self.register}_{j}"
        return f"{self.piece_name(j, mapping)}[{j % mapping.vector_width}]"


@dataclass(eq=False)
class Define(Node):
    """A function of the module.

    Attributes
    ----------
    name : str
        Name in the module.
    form : str
        What becomes of its features: see `facts.FORMS`.
    roles : tuple of str
        Vertices, edges, features and data that it takes, in order.
    body : Body
        What it does.
    more : tuple of str
        What it takes behind them.
    varying : frozenset of str
        Names that differ between features.
    areas : tuple of int
        Columns of the k x k work areas that it takes.
    arrays : dict
        Type -> rows of scratch that it takes.
    rows : tuple of Row
        Rows of which it takes features.
    waits : bool
        Whether it stores next entries only where its verdict is True.
    decorator : str
        How it is compiled.
    """

    name: str
    form: str
    roles: tuple[str, ...]
    body: Body
    more: tuple[str, ...] = ()
    varying: frozenset[str] = frozenset()
    areas: tuple[int, ...] = ()
    arrays: dict[str, int] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    waits: bool = False
    decorator: str = ""


@dataclass(eq=False)
class Collective(Node):
    """An assignment of what all lanes compute together, also those that are elsewhere.

    Attributes
    ----------
    call : ast.Assign
        ``target = operation(...)``.
    predicate : str
        Where the operands of a lane count; "" for everywhere.
    runs : bool
        Whether the predicate holds only where the function still runs.
    is_masked : bool
        Whether the target stays as it is where the predicate does not hold.
    """

    call: ast.stmt
    predicate: str = ""
    runs: bool = False
    is_masked: bool = False


@dataclass(eq=False)
class Masked(Node):
    """Statements for lanes for which all `tests` hold: others must leave no trace."""

    tests: list[ast.expr]
    body: Body


@dataclass(eq=False)
class LoadRows(Node):
    """The loads of rows of which a function reads all features that a lane has."""

    rows: tuple[Row, ...]


@dataclass(eq=False)
class GoOn(Node):
    """Return what the rest of a function does, called for each feature.

    All features are called for, also behind one that returns True.
    """

    call: ast.expr


class _Expression(ast.expr):
    """An expression of passes; subclasses say which of their parts are expressions."""


class AnyFeature(_Expression):
    """Whether a condition holds for any feature that a lane has.

    Masked, a lane asks only those of its features that there are.
    """

    _fields = ("value",)
    value: ast.expr

    def __init__(self, value: ast.expr, is_masked: bool = False, **place: Any) -> None:
        super().__init__(**place)
        self.value = value
        self.is_masked = is_masked


class Array(_Expression):
    """``d.name``: the array of a property, or of its next entries."""

    _fields = ()

    def __init__(self, name: str, version: str = "now", **place: Any) -> None:
        super().__init__(**place)
        self.name = name
        self.version = version


class Place(_Expression):
    """A place in an array that the passes compute, and which is in range."""

    _fields = ("value",)
    value: ast.expr

    def __init__(self, value: ast.expr, **place: Any) -> None:
        super().__init__(**place)
        self.value = value


class Checked(_Expression):
    """An index that is reported, and 0, where it is not in the range of its axis."""

    _fields = ("value",)
    value: ast.expr

    def __init__(self, value: ast.expr, axis: int, site: int, **place: Any) -> None:
        super().__init__(**place)
        self.value = value
        self.axis = axis
        self.site = site
