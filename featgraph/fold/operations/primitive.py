"""The interface of an operation in the folder, and parts that operations share.

A `Primitive` has the type rule of an operation, and a method for each form of a
function. In the unrolled form a varying local p is a named copy for each feature of the
lane, ``p_0``, ``p_1``, ...; in the looped form it is an array, with loops over f; in
the vectorized form it is a few SIMD vectors. `Unrolled`, `Looped` and `Vectorized` are
the interfaces through which an operation adds statements to a function in such a form.
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
    """Base class of operations.

    An operation in which all lanes take part defines `unroll` and `loop`. If it can use
    SIMD vectors, it also defines `fits_vectors` and `vectorize`.

    Attributes
    ----------
    operation : Operation
        The declaration, which user functions call.
    stem : str
        Beginning of the names of results in generated functions.
    edge_array : str
        Array of the graph with the value of the operation at each edge; "" for an
        operation that lanes compute.
    """

    operation: Operation
    stem: str = ""
    edge_array: str = ""
    #: Whether the result is a K x K matrix.
    is_matrix: ClassVar[bool] = False
    #: Whether the operation generates no code: operations that take it read its
    #: operands, as `matvec` does with those of `outer`.
    is_pattern: ClassVar[bool] = False
    #: Whether it needs a K x K work area in memory where registers do not suffice.
    takes_area: ClassVar[bool] = False
    #: Whether it multiplies a matrix by a vector or matrix.
    multiplies: ClassVar[bool] = False
    #: Whether it compares features one by one, which takes long to compile for named
    #: copies.
    compares: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.operation.name

    @property
    def takes_matrix(self) -> bool:
        """Whether the first operand is a K x K matrix."""
        return bool(self.operation.matrix)

    @property
    def is_exact(self) -> bool:
        """Whether the bits of the result do not depend on the order of features."""
        return self.compares

    def typed(self, call: Operate, types: Types) -> str:
        """Convert the operands of `call`, in place; return the type of its result.

        By default operands are real numbers, whole rows and whole matrices, and the
        result is a real number.
        """
        call.args = [types.matrix_or_row(x) for x in call.args]
        return "real"

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Return whether the result of `call` differs between features.

        By default it does. `varies` returns the same for any expression.
        """
        return True

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Add ``target = operation(...)`` over named copies, and over lanes."""
        raise NotImplementedError

    def loop(self, call: Operate, target: str, loops: Looped) -> None:
        """Add ``target = operation(...)`` as loops over features."""
        raise NotImplementedError

    def ends_loop(self, call: Operate) -> bool:
        """Return whether `loop` adds to the loop over features in front of the call."""
        return False

    def fits_vectors(self, call: Operate, facts: VectorFacts) -> bool:
        """Return whether `vectorize` can generate code for the call."""
        return False

    def vectorize(self, call: Operate, target: str, vectors: Vectorized) -> None:
        """Add ``target = operation(...)`` over vectors of features."""
        raise NotImplementedError


#: i -> the elements A[f, i] of column i of a matrix, for f of each named copy.
Column = Callable[[ast.expr], list[ast.expr]]


class Types(Protocol):
    """Interface that types expressions; methods return the converted expression."""

    def typed(self, node: ast.expr) -> tuple[ast.expr, str]:
        """Return any expression and its type, which may be "edge"."""

    def value(self, node: ast.expr) -> tuple[ast.expr, str]:
        """Return a value and its type; raise for an edge."""

    def number(self, node: ast.expr) -> tuple[ast.expr, str]:
        """Return a number and its type; a bool becomes 0 or 1."""

    def condition(self, node: ast.expr) -> ast.expr:
        """Convert an expression to a bool."""

    def real(self, node: ast.expr) -> ast.expr:
        """Convert an expression to a real number."""

    def integer(self, node: ast.expr, what: str) -> ast.expr:
        """Return an integer; raise for a real number, with `what` as its name."""

    def matrix_or_row(self, node: ast.expr) -> ast.expr:
        """Return a whole matrix or row as it is; convert others to real numbers."""

    def error(self, what: str, node: ast.AST, **details: Any) -> UserFunctionError:
        """Return an error at the line of `node`."""


class _Form(Protocol):
    """A function in one form, to which a call ``target = operation(...)`` is added."""

    #: K, and the storage type of real numbers.
    width: int
    real: Real

    def line(self, template: str, **parts: ast.expr) -> None:
        """Add a statement; names in `parts`, in capitals, stand for expressions."""

    def block(self, header: str, **parts: ast.expr) -> AbstractContextManager[None]:
        """Add a branch or loop; statements added in the context are its body."""

    def fresh(self, stem: str) -> str:
        """Return a unique name that begins with `stem`."""

    def type_of(self, node: ast.expr) -> str:
        """Return the type of an operand."""

    def varies(self, node: ast.AST) -> bool:
        """Return whether an expression differs between features."""


class _MatrixForm(_Form, Protocol):
    """A form with work areas in memory, to solve systems of K equations."""

    def new_area(self, columns: int) -> str:
        """Return the name of a new work area of shape (K, `columns`)."""

    def store_inverse(self, target: str, area: str) -> None:
        """Bind the matrix `target` to columns K to 2 K - 1 of a work area."""


class Unrolled(_MatrixForm, Protocol):
    """Named copies ``p_0``, ``p_1``, .. of a local p, for the features of a lane.

    Attributes
    ----------
    count : int
        Copies: features of a lane.
    lanes : int
        Lanes that share the features of a vertex or edge.
    cuda : bool
        Whether the target is CUDA.
    predicated : bool
        Whether several lanes share the features, so that all of them execute all
        statements, and predicates take the place of branches.
    padded : bool
        Whether lanes may have copies beyond the last feature.
    in_registers : bool
        Whether elements of small matrices are variables, which are in registers.
    threads : int
        Threads of the block if a whole block has one vertex; else 0.
    tile : int
        Rows and columns of a tile of a matrix, if a whole block has one vertex.
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
        """Return the flag that copy `j` is a feature; needed if `padded` only."""

    def value(self, node: ast.expr, j: int = 0) -> ast.expr:
        """Return an expression in copy `j`."""

    def operands(
        self, node: ast.expr, identity: ast.expr, masked: bool = True
    ) -> list[ast.expr]:
        """Return an operand for all copies; `identity` for copies that are no feature.

        With `masked`, lanes whose vertex does not reach the call contribute the
        identity, too.
        """

    def element(
        self, matrix: ast.expr, row: ast.expr, column: ast.expr, j: int = 0
    ) -> ast.expr:
        """Return ``matrix[row, column]`` in copy `j`."""

    def in_whole_tiles(self, matrix: ast.expr) -> str:
        """Return the array of a matrix that consists of whole tiles; else ""."""

    def column(self, call: Operate) -> Column:
        """Return the function from i to column i of the matrix of a product.

        Loads that columns need are added when that function is first called.
        """

    def is_guarded(self, node: ast.expr) -> bool:
        """Return whether idle lanes must not evaluate an operand."""

    def is_at_hand(self, matrix: ast.expr) -> bool:
        """Return whether columns of a matrix are taken by constant indices.

        They are where the matrix is staged, or loaded in pieces of rows.
        """


class Looped(_MatrixForm, Protocol):
    """Loops over features ``f``; a varying local is an array, one element a feature."""

    #: Whether the target is CUDA.
    cuda: bool

    def each(self, template: str, **parts: ast.expr) -> None:
        """Add a statement for each feature, in the loop of the statements before it."""

    def all_features(self) -> AbstractContextManager[None]:
        """Add a loop over features; statements added in the context are its body."""

    def value(self, node: ast.expr) -> ast.expr:
        """Return an expression for feature f."""

    def element_of(self, target: str) -> str:
        """Return the template of a varying local for feature f: ``rows[2, f]``."""

    def new_row(self, type_: str) -> str:
        """Return the template of an element of a new array: ``rows[2, PLACE]``."""

    def element(self, matrix: ast.expr, row: ast.expr, column: ast.expr) -> ast.expr:
        """Return ``matrix[row, column]``."""


class VectorFacts(Protocol):
    """Interface with the facts that decide whether a function is vectorized."""

    def fits_real(self, node: ast.expr) -> bool:
        """Return whether an expression can be computed as vectors of real numbers."""

    def fits_mask(self, node: ast.expr) -> bool:
        """Return whether a varying condition can be computed as vectors of bools."""

    def is_real_matrix(self, node: ast.expr) -> bool:
        """Return whether an expression is a whole matrix, stored in the real type."""


class Vectorized(Protocol):
    """SIMD vectors of neighboring features: ``p_16`` has features 16 to 31.

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
        """Add a statement; names in `parts`, in capitals, stand for expressions."""

    def vector(self, node: ast.expr, piece: tuple[int, int]) -> ast.expr:
        """Return the vector of an expression for the features of a piece."""

    def new_row(self) -> int:
        """Return the number of a new row of the array ``rows``."""

    def array_of(self, matrix: ast.expr) -> ast.expr:
        """Return the array of a whole matrix."""


def named(name: str) -> ast.expr:
    """Return a name as an expression."""
    return ast.Name(name, ast.Load())


def wide(value: ast.expr, node: ast.expr, copies: Unrolled) -> ast.expr:
    """Return an operand for a shuffle; integers become int64, as in all lanes."""
    return value if copies.type_of(node) == "real" else expression("int64(X)", X=value)


def in_registers(copies: Unrolled, values: Sequence[ast.expr]) -> list[ast.expr]:
    """Assign each value to a new variable, which other lanes can read by shuffles."""
    names = [copies.fresh("register") for _ in values]
    for name, value in zip(names, values, strict=True):
        copies.line(f"{name} = X", X=value)
    return [named(name) for name in names]


def member(copies: Unrolled, registers: list[ast.expr], feature: ast.expr) -> ast.expr:
    """Return the value of `feature`, a computed number, from the lane that has it.

    All copies of that lane are read by shuffles, and one is selected: a register has no
    computed index.
    """
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
