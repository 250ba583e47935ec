"""The interface of an operation in the folder, and parts that operations share.

A `Primitive` has the type rule of an operation and one method for each form of a
function: unrolled, looped or vectorized. The contexts are the interfaces through which
an operation emits statements into a form. Shuffles, identities and registers of
operations over named copies are shared here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import UserFunctionError
from featgraph.fold.tree.statements import Operate, expression
from featgraph.program.operations import Operation
from featgraph.program.signature import Real

__all__ = [
    "Column",
    "Looped",
    "Primitive",
    "Types",
    "Unrolled",
    "VectorFacts",
    "Vectorized",
    "in_registers",
    "member",
    "named",
    "wide",
]


@dataclass(frozen=True)
class Primitive:
    """One operation; families derive from it.

    An operation whose lanes take part together has `unroll` and `loop`. One that can be
    done with vectors has `fits_vectors` and `vectorize`, too.

    Attributes
    ----------
    operation : Operation
        Its declaration.
    stem : str
        What its results are called in generated functions.
    edge_array : str
        The array of the graph with its value at each edge; "" for what lanes compute.
    """

    operation: Operation
    stem: str = ""
    edge_array: str = ""
    #: Whether it gives a k x k matrix.
    is_matrix: ClassVar[bool] = False
    #: Whether it stands for its operands only: what takes it reads them.
    is_pattern: ClassVar[bool] = False
    #: Whether it works in a k x k area of memory where registers do not suffice.
    takes_area: ClassVar[bool] = False
    #: Whether it multiplies by a matrix, entry by entry.
    multiplies: ClassVar[bool] = False
    #: Whether it compares features one by one: named copies take long to compile.
    compares: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.operation.name

    @property
    def takes_matrix(self) -> bool:
        """Whether its first operand is a k x k matrix."""
        return bool(self.operation.matrix)

    @property
    def is_exact(self) -> bool:
        """Whether its bits do not depend on the order in which features come."""
        return self.compares

    def typed(self, call: Operate, types: Types) -> str:
        """Type the operands of a call, which it changes; return the type it gives.

        Unless overridden: real numbers, and what is given as a whole.
        """
        call.args = [types.matrix_or_row(x) for x in call.args]
        return "real"

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Return whether the result differs between features, given what else does.

        Unless overridden, it has an entry for each feature.
        """
        return True

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Add ``target = operation(...)`` over named copies, and over lanes."""
        raise NotImplementedError

    def loop(self, call: Operate, target: str, loops: Looped) -> None:
        """Add ``target = operation(...)`` as loops over features."""
        raise NotImplementedError

    def ends_loop(self, call: Operate) -> bool:
        """Return whether it can end the loop of the statements in front of it."""
        return False

    def fits_vectors(self, call: Operate, facts: VectorFacts) -> bool:
        """Return whether it can be made over vectors of features."""
        return False

    def vectorize(self, call: Operate, target: str, vectors: Vectorized) -> None:
        """Add ``target = operation(...)`` over vectors of features."""
        raise NotImplementedError


#: Gives A[f, i], one for each copy, from i.
Column = Callable[[ast.expr], list[ast.expr]]


class Types(Protocol):
    """Types expressions; each method returns the expression as it is from then on."""

    def typed(self, node: ast.expr) -> tuple[ast.expr, str]:
        """Type any expression, an edge included."""

    def value(self, node: ast.expr) -> tuple[ast.expr, str]:
        """Type what has a value."""

    def number(self, node: ast.expr) -> tuple[ast.expr, str]:
        """Type a number; truth values become 0 and 1."""

    def condition(self, node: ast.expr) -> ast.expr:
        """Convert to a truth value."""

    def real(self, node: ast.expr) -> ast.expr:
        """Convert to a real number."""

    def integer(self, node: ast.expr, what: str) -> ast.expr:
        """Refuse a real number; the error names the operand by `what`."""

    def matrix_or_row(self, node: ast.expr) -> ast.expr:
        """Convert to real numbers what is not given as a whole."""

    def error(self, what: str, node: ast.AST, **details: Any) -> UserFunctionError:
        """Return an error at the line of `node`."""


class _Form(Protocol):
    """The form of one function, at one statement ``target = operation(...)``."""

    #: Features in all, and the storage type of real numbers.
    width: int
    real: Real

    def line(self, template: str, **parts: ast.expr) -> None:
        """Add a statement; a name in capitals stands for an expression."""

    def block(self, header: str, **parts: ast.expr) -> AbstractContextManager[None]:
        """Add a branch or a loop, into which go the statements that follow."""

    def fresh(self, stem: str) -> str:
        """Return a name that nothing else has."""

    def type_of(self, node: ast.expr) -> str:
        """Return the type of an operand."""

    def varies(self, node: ast.AST) -> bool:
        """Return whether an expression differs between features."""


class _MatrixForm(_Form, Protocol):
    """A form that can solve systems of K equations."""

    def new_area(self, columns: int) -> str:
        """Return the name of a further work area of K rows."""

    def store_inverse(self, target: str, area: str) -> None:
        """Let elements of the matrix `target` be those right of column K of an area."""


class Unrolled(_MatrixForm, Protocol):
    """Named copies: ``p_0``, ``p_1``, .. for the features of a thread, or of a lane.

    Attributes
    ----------
    count : int
        Copies.
    lanes : int
        Lanes that share the features.
    cuda : bool
    predicated : bool
        Whether lanes share the features, so that all of them go everywhere.
    padded : bool
        Whether lanes may have copies beyond the last feature.
    in_registers : bool
        Whether small matrices stand in registers, an element a name.
    threads : int
        Threads of the block that has a vertex; 0 where none has.
    tile : int
        Side of the tiles of matrices that these have.
    """

    count: int
    lanes: int
    cuda: bool
    predicated: bool
    padded: bool
    in_registers: bool
    threads: int
    tile: int

    def names(self, target: str) -> list[str]:
        """Return the names of all copies."""

    def feature(self, j: int) -> ast.expr:
        """Return the feature of copy `j`."""

    def inside(self, j: int) -> str:
        """Return the name of the test that copy `j` is a feature; only if padded."""

    def value(self, node: ast.expr, j: int = 0) -> ast.expr:
        """Return an expression in copy `j`."""

    def operands(
        self, node: ast.expr, identity: ast.expr, masked: bool = True
    ) -> list[ast.expr]:
        """Return an operand in all copies, `identity` where a lane has none.

        Masked, lanes that do not make the call have the identity, too.
        """

    def element(
        self, matrix: ast.expr, row: ast.expr, column: ast.expr, j: int = 0
    ) -> ast.expr:
        """Return ``matrix[row, column]`` in copy `j`."""

    def in_whole_tiles(self, matrix: ast.expr) -> str:
        """Return the array that a matrix is, if it consists of whole tiles; else ""."""

    def column(self, call: Operate) -> Column:
        """Return which entries of the matrix of a product go with one of the vector.

        What must be loaded before is added when they are asked for.
        """

    def is_guarded(self, node: ast.expr) -> bool:
        """Return whether only lanes that write may read an operand."""

    def is_at_hand(self, matrix: ast.expr) -> bool:
        """Return whether columns of a matrix are taken by constant indices."""


class Looped(_MatrixForm, Protocol):
    """Loops over features ``f``; what varies has an array, one element a feature."""

    #: Whether a thread of CUDA runs it.
    cuda: bool

    def each(self, template: str, **parts: ast.expr) -> None:
        """Add a loop over the features, with the statements that wait for one."""

    def all_features(self) -> AbstractContextManager[None]:
        """Add a loop over the features."""

    def value(self, node: ast.expr) -> ast.expr:
        """Return an expression for feature f."""

    def element_of(self, target: str) -> str:
        """Return the template of a varying local for feature f: ``rows[2, f]``."""

    def new_row(self, type_: str) -> str:
        """Return the template of an element of a further array: ``rows[2, PLACE]``."""

    def element(self, matrix: ast.expr, row: ast.expr, column: ast.expr) -> ast.expr:
        """Return ``matrix[row, column]``."""


class VectorFacts(Protocol):
    """Which expressions of a function vectors can stand for."""

    def fits_real(self, node: ast.expr) -> bool:
        """Return whether vectors of real numbers can stand for an expression."""

    def fits_mask(self, node: ast.expr) -> bool:
        """Return whether masks can stand for a condition that varies."""

    def is_real_matrix(self, node: ast.expr) -> bool:
        """Return whether a matrix is given whole, and stored in the real type."""


class Vectorized(Protocol):
    """Vectors of neighboring features: ``p_16`` has features 16 to 31.

    Attributes
    ----------
    width : int
        K.
    pieces : list of tuple
        (first feature, features) of each vector.
    """

    width: int
    pieces: list[tuple[int, int]]

    def line(self, template: str, **parts: ast.expr) -> None:
        """Add a statement; a name in capitals stands for an expression."""

    def vector(self, node: ast.expr, piece: tuple[int, int]) -> ast.expr:
        """Return one vector of an expression."""

    def new_row(self) -> int:
        """Return the number of a further row of the array ``rows``."""

    def array_of(self, matrix: ast.expr) -> ast.expr:
        """Return the array of a matrix given as a whole."""


def named(name: str) -> ast.expr:
    """Return a name as an expression."""
    return ast.Name(name, ast.Load())


def wide(value: ast.expr, node: ast.expr, copies: Unrolled) -> ast.expr:
    """Return an operand for a shuffle: the same type on all lanes, so int64."""
    return value if copies.type_of(node) == "real" else expression("int64(X)", X=value)


def in_registers(copies: Unrolled, values: Sequence[ast.expr]) -> list[ast.expr]:
    """Give each value a name of its own, for lanes to read."""
    names = [copies.fresh("register") for _ in values]
    for name, value in zip(names, values, strict=True):
        copies.line(f"{name} = X", X=value)
    return [named(name) for name in names]


def member(copies: Unrolled, registers: list[ast.expr], feature: ast.expr) -> ast.expr:
    """Return the value of `feature`, which another lane may have."""
    count = copies.count
    lane = expression(f"int32(F // {count})", F=feature)
    parts = [
        expression(f"warp.broadcast(X, LANE, {copies.lanes})", X=x, LANE=lane)
        for x in registers
    ]
    chosen = parts[-1]
    for j in range(count - 2, -1, -1):
        test = expression(f"F % {count} == {j}", F=feature)
        parts_ = {"TEST": test, "X": parts[j], "OTHER": chosen}
        chosen = expression("cuda.selp(TEST, X, OTHER)", **parts_)
    return chosen
