"""Nodes in trees of user functions, between passes.

Most statements are Python statements for one feature, with the expressions of the
middle end (`fold.tree.statements`). The nodes below are statements and expressions that
later passes lower to Python. As in nests, ``*x`` means x of all features of a lane.
"""

from __future__ import annotations

import ast

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
        Name of the loaded tuple. If a lane loads several pieces, the number of the
        first feature of the piece is appended.
    index : str
        Text of the first index: the vertex or edge.
    register : str
        Name of the variables of a row that is already in registers; "" for others.
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
    """Load the features of a lane of some rows, in front of all other statements."""

    rows: tuple[Row, ...]


@dataclass(eq=False)
class GoOn(Node):
    """Call the split-off rest of a function for each feature, and return.

    A True result does not end the calls: the rest may store entries of each feature.
    """

    call: ast.expr


@dataclass(eq=False)
class AnyFeature(ast.expr):
    """True if a condition holds for any feature of a lane.

    If `is_masked`, features past the end of the row do not count.
    """

    _fields = ("value",)
    value: ast.expr
    is_masked: bool = False


@dataclass(eq=False)
class Array(ast.expr):
    """``d.name``: the array of a property, or of its next entries."""

    name: str
    version: str = "now"


@dataclass(eq=False)
class Place(ast.expr):
    """An index that a pass computes: always in range, so it is not checked."""

    _fields = ("value",)
    value: ast.expr


@dataclass(eq=False)
class Checked(ast.expr):
    """An index that is reported and replaced by 0 if out of range."""

    _fields = ("value",)
    value: ast.expr
    axis: int
    site: int
