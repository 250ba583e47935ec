"""Sums of outer products on the CPU, held in vector registers.

A tile has 4 rows of one vector (64 bytes) each. It stays in registers while the
products of all rows of a batch are added to it, so that each loaded vector serves four
multiply-adds. LLVM splits vectors to the machine's width.

======================================================  ================================
``padded(k, itemsize)``                                 k, rounded up to whole vectors
``zeros(rows, columns, like)``                          zeros, aligned to a cache line
``add_products(matrix, left, right, count, symmetric)`` adds ``left[:count].T @
                                                        right[:count]``
``mirror(matrix, k)``                                   copies the upper triangle down
``add_row(matrix, target, source, factor, first,        ``matrix[target] += factor *
stop)``                                                 matrix[source]`` on whole
                                                        vectors ``first`` to ``stop``
``scale_row(...)``                                      ``matrix[target] = factor *
                                                        matrix[source]``, likewise
``eliminate(...)``, ``subtract_panel(...)``             steps of `cholesky_cpu`
======================================================  ================================

Arrays are float32 or float64, of two dimensions, with contiguous rows; in
`add_products`, `matrix` has ``padded(k)`` rows and columns, `left` and `right` at least
as many columns. Values in the padding are undefined but have no effect: entries of
different columns are never combined.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

#: Bytes of a vector: an AVX-512 register, and a cache line.
VECTOR_BYTES = 64
#: Number of rows of a tile: 4 x 64 bytes fill 8 of AVX2's 16 registers, and 4 of
#: AVX-512's 32.
ROWS = 4

_njit = njit(cache=True, error_model="numpy")


def _is_rows(array):
    """Whether a Numba type is that of a matrix of real numbers."""
    return (
        isinstance(array, types.Array)
        and array.ndim == 2
        and array.dtype in (types.float32, types.float64)
    )


class _Builder:
    """Emits loads, stores and multiply-adds of vectors at places of arrays."""

    def __init__(self, context, builder, array_type):
        self.context, self.builder = context, builder
        self.scalar = context.get_value_type(array_type.dtype)
        self.bytes = array_type.dtype.bitwidth // 8
        self.size = VECTOR_BYTES // self.bytes
        self.vector = ir.VectorType(self.scalar, self.size)
        self.fma = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(self.vector, [self.vector] * 3),
            f"llvm.fma.v{self.size}f{self.bytes * 8}",
        )

    def rows(self, array_type, array):
        """Return the address of an array, and the stride between rows in bytes."""
        view = arrayobj.make_array(array_type)(self.context, self.builder, array)
        first = self.builder.bitcast(view.data, ir.IntType(8).as_pointer())
        return first, self.builder.extract_value(view.strides, 0)

    def place(self, rows, row, column):
        """Return the address of an element."""
        first, stride = rows
        size = ir.Constant(column.type, self.bytes)
        offset = self.builder.add(
            self.builder.mul(row, stride), self.builder.mul(column, size)
        )
        return self.builder.gep(first, [offset])

    def load(self, place, type_):
        """Load a vector or a scalar, aligned to a scalar."""
        pointer = self.builder.bitcast(place, type_.as_pointer())
        return self.builder.load(pointer, align=self.bytes)

    def store(self, value, place):
        """Store a vector."""
        pointer = self.builder.bitcast(place, self.vector.as_pointer())
        self.builder.store(value, pointer, align=self.bytes)

    def spread(self, value):
        """Return a vector filled with `value`."""
        nothing = ir.Constant(self.vector, ir.Undefined)
        index = ir.IntType(32)
        one = self.builder.insert_element(nothing, value, ir.Constant(index, 0))
        everywhere = ir.Constant(ir.VectorType(index, self.size), [0] * self.size)
        return self.builder.shuffle_vector(one, nothing, everywhere)

    def multiply_add(self, a, b, c):
        """Return ``a * b + c``, rounded once."""
        return self.builder.call(self.fma, [a, b, c])


@intrinsic
def _add_tile(typing_context, matrix, left, right, count, row, column):
    """Add ``left[:count, row : row + 4].T @ right[:count, column : ...]``."""
    same = {a.dtype for a in (matrix, left, right) if _is_rows(a)}
    if not all(map(_is_rows, (matrix, left, right))) or len(same) != 1:
        return None

    def generate(context, builder, signature, arguments):
        make = _Builder(context, builder, signature.args[0])
        sums, factors, rows = (
            make.rows(t, a)
            for t, a in zip(signature.args[:3], arguments[:3], strict=True)
        )
        count_, row_, column_ = arguments[3:]
        # Sums are in stack slots, which LLVM promotes to registers.
        held, places = [], []
        for r in range(ROWS):
            below = builder.add(row_, ir.Constant(row_.type, r))
            places.append(make.place(sums, below, column_))
            held.append(cgutils.alloca_once(builder, make.vector))
            builder.store(make.load(places[r], make.vector), held[r])
        with cgutils.for_range(builder, count_) as loop:
            x = make.load(make.place(rows, loop.index, column_), make.vector)
            first = make.place(factors, loop.index, row_)
            for r in range(ROWS):
                offset = ir.Constant(ir.IntType(64), r * make.bytes)
                factor = make.load(builder.gep(first, [offset]), make.scalar)
                total = make.multiply_add(make.spread(factor), x, builder.load(held[r]))
                builder.store(total, held[r])
        for r in range(ROWS):
            make.store(builder.load(held[r]), places[r])
        return context.get_dummy_value()

    places = (types.intp, types.intp, types.intp)
    return types.void(matrix, left, right, *places), generate


def _make_row_operation(adds, doc):
    """Make `add_row`, or `scale_row` without `adds`."""

    @intrinsic
    def operate(typing_context, matrix, target, source, factor, first, stop):
        if not _is_rows(matrix):
            return None

        def generate(context, builder, signature, arguments):
            make = _Builder(context, builder, signature.args[0])
            rows = make.rows(signature.args[0], arguments[0])
            target_, source_, factor_, first_, stop_ = arguments[1:]
            spread = make.spread(factor_)
            step = ir.Constant(first_.type, make.size)
            with cgutils.for_range_slice(builder, first_, stop_, step) as (column, _):
                place = make.place(rows, target_, column)
                x = make.load(make.place(rows, source_, column), make.vector)
                if adds:
                    y = make.load(place, make.vector)
                    make.store(make.multiply_add(spread, x, y), place)
                else:
                    make.store(builder.fmul(spread, x), place)
            return context.get_dummy_value()

        index = types.intp
        return types.void(matrix, index, index, matrix.dtype, index, index), generate

    operate.__doc__ = doc
    return operate


add_row = _make_row_operation(
    True, "Add ``factor * matrix[source]`` to ``matrix[target]``, vector by vector."
)
scale_row = _make_row_operation(
    False, "Leave ``factor * matrix[source]`` in ``matrix[target]``, vector by vector."
)


@intrinsic
def eliminate(typing_context, work, first, right, panel, column):
    """Eliminate the rows of a factorised block from one another, in one column vector.

    The block has as many rows as a vector has elements, from `first` on, and row
    `right`. For j > i, ``work[panel + i, first + j]`` is the factor by which row i is
    added to row j; for j = i, it is minus the inverse of the pivot. The scaled rows are
    stored in the rows from `panel` on.
    """
    if not _is_rows(work):
        return None

    def generate(context, builder, signature, arguments):
        make = _Builder(context, builder, signature.args[0])
        rows = make.rows(signature.args[0], arguments[0])
        first_, right_, panel_, column_ = arguments[1:]

        def moved(place, by):
            return builder.add(place, ir.Constant(place.type, by))

        def scalar(row, column):
            return make.load(make.place(rows, row, column), make.scalar)

        places = [make.place(rows, moved(first_, i), column_) for i in range(make.size)]
        held = [make.load(place, make.vector) for place in places]
        end = make.place(rows, right_, column_)
        last = make.load(end, make.vector)
        for i, own in enumerate(places):
            below = moved(panel_, i)
            inverse = scalar(below, moved(first_, i))
            factor = builder.fmul(inverse, scalar(right_, moved(first_, i)))
            last = make.multiply_add(make.spread(factor), held[i], last)
            for j in range(i + 1, make.size):
                factor = make.spread(scalar(below, moved(first_, j)))
                held[j] = make.multiply_add(factor, held[i], held[j])
            make.store(held[i], own)
            scaled = builder.fmul(make.spread(inverse), held[i])
            make.store(scaled, make.place(rows, below, column_))
        make.store(last, end)
        return context.get_dummy_value()

    index = types.intp
    return types.void(work, index, index, index, index), generate


@_njit
def zeros(rows, columns, like):
    """Return an array of zeros of the type of `like`, aligned to a cache line.

    Vectors that straddle two cache lines load at half the rate.
    """
    size = like.itemsize
    room = np.zeros(rows * columns + VECTOR_BYTES // size, like.dtype)
    skipped = (-room.ctypes.data % VECTOR_BYTES) // size
    return room[skipped : skipped + rows * columns].reshape(rows, columns)


@_njit
def add_products(matrix, left, right, count, symmetric):
    """Add the outer products of the rows of `left` and `right`.

    With `symmetric`, only tiles that meet the upper triangle.
    """
    k = matrix.shape[0]
    size = VECTOR_BYTES // matrix.itemsize
    for column in range(0, k, size):
        stop = min(column + size, k) if symmetric else k
        for row in range(0, stop, ROWS):
            _add_tile(matrix, left, right, count, row, column)


@_njit
def subtract_panel(work, k, first, panel):
    """Subtract the products of a panel's rows from the upper triangle after `first`.

    If a vector has n elements, ``work[first - n : first]`` are the rows of the panel,
    and ``work[panel : panel + n]`` their negative multiples, the left factors.
    """
    size = VECTOR_BYTES // work.itemsize
    left, right = work[panel:], work[first - size :]
    for column in range(first, k, size):
        for row in range(first, column + size, ROWS):
            _add_tile(work, left, right, size, row, column)


@_njit
def mirror(matrix, k):
    """Copy the upper triangle into the lower one."""
    for row in range(1, k):
        for column in range(row):
            matrix[row, column] = matrix[column, row]


def padded(k, itemsize=4):
    """Return `k`, rounded up to whole vectors of elements of `itemsize` bytes."""
    size = VECTOR_BYTES // itemsize
    return -(-k // size) * size
