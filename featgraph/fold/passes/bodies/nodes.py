"""Nodes in trees of user functions, between passes.

Statements are Python, for one feature, with expressions of the middle end. Collective
statements, and those that later passes lower to Python, are the nodes below. As in
nests, ``*x`` means x of all features of a lane.
"""

from __future__ import annotations

import ast
from typing import Any

from featgraph.base.dataclass import dataclass, field
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.statements import Body, Node

#: Identity of a row: the array, and the vertex or edge.
Key = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """A row that a function reads in pieces.

    Attributes
    ----------
    key : (str, str)
        Array, and vertex or edge; equal for accesses of the same row.
    name : str
        Name of the loaded tuple. If a lane takes several pieces, the offset of the
        first feature of the piece follows.
    index : str
        The first index.
    register : str
        Name of the copies of a row that is already in registers.
    """

    key: Key
    name: str
    index: str
    register: str = ""

    def __str__(self) -> str:
        return self.register or f"{self.key[0]}[{self.index}]"

    def piece_name(self, j: int, mapping: Mapping) -> str:
        """Return the name of the piece with feature j of the lane."""
        first = j - j % mapping.vector_width
        return (
            self.name
            if mapping.features_per_lane == mapping.vector_width
            else f"{self.name}_{first}"
        )

    def copy(self, j: int, mapping: Mapping) -> str:
        """Return feature j of the lane."""
        if self.register:
            return f"{self.register}_{j}"
        return f"{self.piece_name(j, mapping)}[{j % mapping.vector_width}]"


@dataclass(eq=False)
class Define(Node):
    """A function of the generated module.

    Attributes
    ----------
    name : str
        Name in the module.
    form : str
        Form of its features: see `BodyFacts`.
    roles : tuple of str
        Vertex, edge, feature and data arguments, in order.
    body : Body
        Statements.
    more : tuple of str
        Further arguments.
    varying : frozenset of str
        Names that differ between features.
    areas : tuple of int
        Columns of its k x k work areas.
    arrays : dict
        Type -> number of scratch rows.
    rows : tuple of Row
        Rows whose features are arguments.
    waits : bool
        Whether it stores next entries only where its verdict is True.
    decorator : str
        Decorator that compiles it.
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
    """Assign the result of an operation that all lanes execute together.

    Attributes
    ----------
    call : ast.Assign
        ``target = operation(...)``.
    predicate : str
        Condition under which the operands of a lane count; "" for always.
    runs : bool
        Whether the predicate implies that the function still runs.
    is_masked : bool
        Whether the target keeps its value where the predicate is False.
    """

    call: ast.stmt
    predicate: str = ""
    runs: bool = False
    is_masked: bool = False


@dataclass(eq=False)
class Masked(Node):
    """Statements with side effects only in lanes where all `tests` hold."""

    tests: list[ast.expr]
    body: Body


@dataclass(eq=False)
class LoadRows(Node):
    """Loads of rows of which a function reads all features of a lane."""

    rows: tuple[Row, ...]


@dataclass(eq=False)
class GoOn(Node):
    """Call the split-off rest of a function for each feature, and return.

    Calls continue after one that returns True.
    """

    call: ast.expr


class _Expression(ast.expr):
    """Base of expression nodes; subclasses list fields that hold expressions."""


class AnyFeature(_Expression):
    """True if a condition holds for any feature of a lane.

    With a mask, copies beyond the last feature are left out.
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
    """An index computed by passes, always in range."""

    _fields = ("value",)
    value: ast.expr

    def __init__(self, value: ast.expr, **place: Any) -> None:
        super().__init__(**place)
        self.value = value


class Checked(_Expression):
    """An index that is reported and replaced by 0 if out of range."""

    _fields = ("value",)
    value: ast.expr

    def __init__(self, value: ast.expr, axis: int, site: int, **place: Any) -> None:
        super().__init__(**place)
        self.value = value
        self.axis = axis
        self.site = site
