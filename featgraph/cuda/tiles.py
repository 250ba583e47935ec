"""Tiles: small square matrices in registers, as tuples, for the CUDA dialect.

A *tile* of side s is a tuple of s * s numbers, row by row; a *piece* is a tuple of s
numbers. In Python code, operations on tiles would be loops over local arrays, which the
compiler keeps in registers only if it unrolls every loop. The operations are therefore
intrinsics that emit straight-line code of fused multiply-adds:

======================================  ================================================
``spread(value, count)``                tuple of `count` times `value`
``plus_product(tile, a, b)``            tile + a b^T; ``minus_product``: tile - a b^T
``factored(tile)``                      Cholesky factor L of the tile L L^T: its lower
                                        triangle, with reciprocals on the diagonal
``backward(piece, factor)``             the x with L^T x = piece
``minus_turned(piece, tile, other)``    piece - tile^T @ other
``on_diagonal(tile, piece)``            tile, with the piece added to its diagonal
``turned(tile)``                        transpose of the tile
``load_piece(array, row, column, s)``   s entries of a row; ``store_piece`` stores them
``load_tile(array, row, column, s)``    s entries of s rows; ``store_tile`` stores them
``plus_tile(tile, array, row, column,   tile + the tile in memory; ``plus_piece`` takes
s)``                                    the tile's entries, s in all, from one row
``divided(tile, array, row, column,     the X with X L^T = tile; memory holds the result
s)``                                    of ``turned(factored(..))``, or some rows of it
======================================  ================================================

Loads and stores take 16 bytes at a time: the array is aligned, and columns and row
lengths are multiples of s. A tile that is not positive definite gives nan.

Importing this module needs neither a GPU nor numba-cuda.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from featgraph.base.interrupts import import_whole
from featgraph.cuda import dialect
from featgraph.cuda.intrinsics import load_vector, store_vector, widened

if TYPE_CHECKING:  # `__getattr__` makes them; checks of names find them here
    backward: Any
    divided: Any
    factored: Any
    load_piece: Any
    load_tile: Any
    minus_product: Any
    minus_turned: Any
    on_diagonal: Any
    plus_piece: Any
    plus_product: Any
    plus_tile: Any
    spread: Any
    store_piece: Any
    store_tile: Any
    turned: Any

#: LLVM values of a tuple's entries, in order.
Values = list[Any]
#: Bytes of the widest load.
_WIDEST = 16


def __getattr__(name: str) -> Any:
    """Make an intrinsic at the first access to its name."""
    makers = _ARITHMETIC | _MEMORY
    if name not in makers:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    dialect.require()
    extending: Any = dialect.dialect_module("extending")
    globals()[name] = extending.intrinsic(makers[name])
    return globals()[name]


class _Lines:
    """Emits instructions for numbers of one type.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
    type_ : llvmlite.ir.Type
        float or double.
    """

    def __init__(self, builder: Any, type_: Any) -> None:
        self.builder, self.type = builder, type_
        self.ir: Any = import_whole("llvmlite.ir")

    def plus(self, a: Any, b: Any, to: Any) -> Any:
        """Return a * b + to, rounded once."""
        return self.builder.fma(a, b, to)

    def minus(self, a: Any, b: Any, of: Any) -> Any:
        """Return of - a * b, rounded once."""
        # The compiler's IR has no floating-point negation yet.
        minus = self.builder.fsub(self.ir.Constant(self.type, -0.0), a)
        return self.builder.fma(minus, b, of)

    def times(self, a: Any, b: Any) -> Any:
        """Return a * b."""
        return self.builder.fmul(a, b)

    def reciprocal_root(self, value: Any) -> Any:
        """Return 1 / sqrt(value).

        For float32 it is the hardware's approximation, with an error of two units in
        the last place; the rounding error of the pivot itself is larger.
        """
        module, form = self.builder.module, self.ir.FunctionType(self.type, [self.type])
        if isinstance(self.type, self.ir.FloatType):
            root = _declared(module, form, "llvm.nvvm.rsqrt.approx.f")
            return self.builder.call(root, [value])
        root = _declared(module, form, "llvm.nvvm.sqrt.rn.d")
        one = self.ir.Constant(self.type, 1.0)
        return self.builder.fdiv(one, self.builder.call(root, [value]))


def _declared(module: Any, form: Any, name: str) -> Any:
    """Return an LLVM function by its name, declared in a module."""
    functions: Any = import_whole("numba.core.cgutils")
    return functions.get_or_insert_function(module, form, name)


# -- arithmetic: functions that emit code. They take and return the entries of tuples,
# as LLVM values, and are named like the intrinsics in the table above.


def _plus_product(lines: _Lines, tile: Values, a: Values, b: Values) -> Values:
    s = len(a)
    return [lines.plus(a[n // s], b[n % s], tile[n]) for n in range(s * s)]


def _minus_product(lines: _Lines, tile: Values, a: Values, b: Values) -> Values:
    s = len(a)
    return [lines.minus(a[n // s], b[n % s], tile[n]) for n in range(s * s)]


def _factored(lines: _Lines, tile: Values) -> Values:
    s, found = math.isqrt(len(tile)), list(tile)
    for j in range(s):
        own = found[j * s + j] = lines.reciprocal_root(found[j * s + j])
        for i in range(j + 1, s):
            found[i * s + j] = lines.times(found[i * s + j], own)
        for i in range(j + 1, s):
            for k in range(j + 1, i + 1):
                left, right = found[i * s + j], found[k * s + j]
                found[i * s + k] = lines.minus(left, right, found[i * s + k])
    return found


def _backward(lines: _Lines, piece: Values, factor: Values) -> Values:
    s, found = len(piece), list(piece)
    for j in reversed(range(s)):
        found[j] = lines.times(found[j], factor[j * s + j])
        for i in range(j):
            found[i] = lines.minus(factor[j * s + i], found[j], found[i])
    return found


def _minus_turned(lines: _Lines, piece: Values, tile: Values, other: Values) -> Values:
    s, found = len(piece), list(piece)
    for j in range(s):
        for i in range(s):
            found[i] = lines.minus(tile[j * s + i], other[j], found[i])
    return found


def _on_diagonal(lines: _Lines, tile: Values, piece: Values) -> Values:
    s, found = len(piece), list(tile)
    for j, value in enumerate(piece):
        found[j * s + j] = lines.builder.fadd(found[j * s + j], value)
    return found


def _turned(lines: _Lines, tile: Values) -> Values:
    s = math.isqrt(len(tile))
    return [tile[j * s + i] for i in range(s) for j in range(s)]


def _of_tuples(line: Callable[..., Values]) -> Callable[..., Any]:
    """Return the typing function of an operation on tuples of one number type.

    The result has the type of the first argument.
    """

    def typed(args: Sequence[Any]) -> Any:
        numbers = {getattr(each, "dtype", None) for each in args}
        return (args[0](*args), generate) if len(numbers) == 1 else None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.get_value_type(signature.return_type.dtype)
        operands = [
            [builder.extract_value(value, n) for n in range(type_.count)]
            for type_, value in zip(signature.args, args, strict=True)
        ]
        values = line(_Lines(builder, number), *operands)
        return context.make_tuple(builder, signature.return_type, values)

    takes = line.__code__.co_argcount - 1

    def one(typing: Any, a: Any) -> Any:
        return typed((a,))

    def two(typing: Any, a: Any, b: Any) -> Any:
        return typed((a, b))

    def three(typing: Any, a: Any, b: Any, c: Any) -> Any:
        return typed((a, b, c))

    makers: dict[int, Callable[..., Any]] = {1: one, 2: two, 3: three}
    maker = makers[takes]
    maker.__name__ = line.__name__[1:]
    return maker


def _spreading(typing: Any, value: Any, count: Any) -> Any:
    """Return the signature and the code generator of `spread`."""
    types: Any = dialect.dialect_module("types")
    if not hasattr(count, "literal_value"):
        return None  # the dialect calls again with a literal

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = [args[0]] * signature.return_type.count
        return context.make_tuple(builder, signature.return_type, values)

    return types.UniTuple(value, count.literal_value)(value, count), generate


# -- memory


def _pointers(context: Any, builder: Any, types: Any, args: Any) -> Iterator[Any]:
    """Yield (pointer, entries, bytes) of each vector of consecutive rows.

    `types` are those of the array, the row, the column and the side, and then the
    number of rows; `args` are LLVM values of the first three.
    """
    ir: Any = import_whole("llvmlite.ir")
    arrays: Any = dialect.dialect_module("np.arrayobj")
    array, side, rows = types[0], types[3].literal_value, types[4]
    item = array.dtype.bitwidth // 8
    entries = min(side, _WIDEST // item)
    element = context.get_value_type(array.dtype)
    vector = ir.VectorType(element, entries)
    made = arrays.make_array(array)(context, builder, args[0])
    length = builder.extract_value(made.shape, array.ndim - 1)
    row = builder.mul(widened(builder, args[1], types[1]), length)
    first = builder.add(row, widened(builder, args[2], types[2]))
    for _ in range(rows):
        base = builder.gep(made.data, [first])
        for place in range(0, side, entries):
            own = builder.gep(base, [ir.Constant(ir.IntType(64), place)])
            yield builder.bitcast(own, vector.as_pointer()), entries, entries * item
        first = builder.add(first, length)


def _loading(square: bool) -> Callable[..., Any]:
    """Return the typing function of `load_tile`, or of `load_piece`."""

    def maker(typing: Any, array: Any, row: Any, column: Any, side: Any) -> Any:
        types: Any = dialect.dialect_module("types")
        if not hasattr(side, "literal_value"):
            return None  # the dialect calls again with a literal
        rows = side.literal_value if square else 1

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = list[Any]()
            operands = (*signature.args, rows)
            for pointer, entries, size in _pointers(context, builder, operands, args):
                values += load_vector(builder, pointer, entries, size)
            return context.make_tuple(builder, signature.return_type, values)

        result = types.UniTuple(array.dtype, side.literal_value * rows)
        return result(array, row, column, side), generate

    maker.__name__ = "load_tile" if square else "load_piece"
    return maker


def _plus_row(lines: _Lines, tile: Values, row: int, piece: Values) -> None:
    """Add a piece to a row of a tile."""
    s = len(piece)
    for j, value in enumerate(piece):
        tile[row * s + j] = lines.builder.fadd(tile[row * s + j], value)


def _divide_column(lines: _Lines, tile: Values, column: int, piece: Values) -> None:
    """Finish a column of X in X L^T = tile, by a row of the factor's transpose."""
    s = len(piece)
    for i in range(0, len(tile), s):
        own = tile[i + column] = lines.times(tile[i + column], piece[column])
        for j in range(column + 1, s):
            tile[i + j] = lines.minus(piece[j], own, tile[i + j])


def _with_rows(
    step: Callable[..., None], name: str, square: bool = True
) -> Callable[..., Any]:
    """Return the typing function of an operation on a tile and one in memory.

    The tile in memory has s rows or, without `square`, all entries in one row. It is
    loaded row by row, since two tiles in registers would spill; `step` takes one row.
    """

    def maker(
        typing: Any, tile: Any, array: Any, row: Any, column: Any, side: Any
    ) -> Any:
        if not hasattr(side, "literal_value"):
            return None  # the dialect calls again with a literal
        s = side.literal_value

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = [builder.extract_value(args[0], n) for n in range(tile.count)]
            lines = _Lines(builder, context.get_value_type(tile.dtype))
            rows = s if square else 1
            operands, piece, place = (*signature.args[1:], rows), list[Any](), 0
            for pointer, entries, size in _pointers(
                context, builder, operands, args[1:]
            ):
                piece += load_vector(builder, pointer, entries, size)
                if len(piece) == s:
                    step(lines, values, place, piece)
                    piece, place = [], place + 1
            return context.make_tuple(builder, signature.return_type, values)

        return tile(tile, array, row, column, side), generate

    maker.__name__ = name
    return maker


def _storing(square: bool) -> Callable[..., Any]:
    """Return the typing function of `store_tile`, or of `store_piece`."""

    def maker(
        typing: Any, array: Any, row: Any, column: Any, side: Any, values: Any
    ) -> Any:
        types: Any = dialect.dialect_module("types")
        if not hasattr(side, "literal_value"):
            return None  # the dialect calls again with a literal
        rows = side.literal_value if square else 1

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            count = rows * side.literal_value
            left = [builder.extract_value(args[4], n) for n in range(count)]
            operands = (*signature.args[:4], rows)
            for pointer, entries, size in _pointers(context, builder, operands, args):
                store_vector(builder, pointer, left[:entries], size)
                left = left[entries:]
            return context.get_dummy_value()

        operands = types.UniTuple(array.dtype, side.literal_value * rows)
        return types.void(array, row, column, side, operands), generate

    maker.__name__ = "store_tile" if square else "store_piece"
    return maker


#: Name of an intrinsic -> its typing function: on registers, and with memory.
_ARITHMETIC = {
    line.__name__[1:]: _of_tuples(line)
    for line in (
        _backward,
        _factored,
        _minus_product,
        _minus_turned,
        _on_diagonal,
        _plus_product,
        _turned,
    )
}
_MEMORY = {
    "spread": _spreading,
    "load_piece": _loading(square=False),
    "load_tile": _loading(square=True),
    "plus_piece": _with_rows(_plus_row, "plus_piece", square=False),
    "plus_tile": _with_rows(_plus_row, "plus_tile"),
    "divided": _with_rows(_divide_column, "divided"),
    "store_piece": _storing(square=False),
    "store_tile": _storing(square=True),
}
