"""Vectors of adjacent features on the CPU, as values of generated code.

LLVM vectorizes a loop over features only if it can prove that arrays do not overlap,
and has unrolled loops of up to 32 iterations before it tries. Code written with vectors
is vectorized in any case, and sums over edges stay in registers.

========================================================  ==============================
``load_N(array, index)``                                  N elements from `index` on
``store_N(array, index, vector)``                         stores them
``spread_N(number)``                                      `number` N times
``a + b``, ``-``, ``*``, ``/``, ``-a``, ``a < b`` ..      each element; one side may be
                                                          a number
``absolute(a)``, ``is_finite(a)``, ``negated(mask)``      each element
``both(a, b)``, ``either(a, b)``                          each element of two masks
``where(mask, a, b)``                                     each element of `a` or `b`
``total(a)``, ``any_of(mask)``, ``all_of(mask)``          over the elements
``multiply(matrix, rows, source, target, k)``             ``rows[target] = matrix @
                                                          rows[source]``
``multiply_turned(matrix, rows, source, target, k)``      the same by ``matrix.T``
========================================================  ==============================

N is one of `SIZES`. Arrays are float32 or float64 with consecutive elements in a row;
`index` is a nonnegative integer or a tuple of such. ``total`` always adds in the order
of the same tree.
"""

import operator

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from featgraph.device.cpu import element_pointer

#: Numbers of elements of a vector. 16 float32 fill an AVX-512 register; LLVM splits
#: them for other machines.
SIZES = (16, 8, 4, 2, 1)

# Never nnan or ninf: inf and nan must stay testable.
_FAST = ("reassoc", "contract", "nsz", "arcp", "afn")
_njit = njit(cache=True, error_model="numpy", fastmath=set(_FAST))


class Vector(types.Type):
    """Numba type of a vector: `size` elements of float32, float64 or bool (a mask)."""

    def __init__(self, dtype, size):
        self.dtype, self.size = dtype, size
        super().__init__(f"Vector({dtype}, {size})")

    @property
    def key(self):
        """The identity of the type: element type and size."""
        return self.dtype, self.size


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    """The LLVM type of a `Vector`: elements of a mask have one bit."""

    def __init__(self, manager, type_):
        bits = ir.IntType(1)
        elements = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
        element = elements.get(type_.dtype, bits)
        super().__init__(manager, type_, ir.VectorType(element, type_.size))


def _is_real(type_):
    return isinstance(type_, Vector) and type_.dtype != types.boolean


def _is_mask(type_):
    return isinstance(type_, Vector) and type_.dtype == types.boolean


def _spread(builder, value, size):
    """Emit a vector of `size` times a value."""
    vector = ir.VectorType(value.type, size)
    nothing, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
    one = builder.insert_element(nothing, value, ir.Constant(index, 0))
    everywhere = ir.Constant(ir.VectorType(index, size), [0] * size)
    return builder.shuffle_vector(one, nothing, everywhere)


def _as_vector(context, builder, value, type_, wanted):
    """Return a number or vector as a vector of the type `wanted`."""
    if isinstance(type_, Vector):
        return value
    number = context.cast(builder, value, type_, wanted.dtype)
    return _spread(builder, number, wanted.size)


def _joined(arguments):
    """Return the vector type of a mix of vectors and numbers.

    None if there is no vector of reals, or vectors differ.
    """
    vectors = {a for a in arguments if _is_real(a)}
    others = [a for a in arguments if not _is_real(a)]
    if len(vectors) != 1 or not all(isinstance(a, types.Number) for a in others):
        return None
    return vectors.pop()


def _define(function, emit, compares):
    """Define a Python operator on vectors, or on a vector and a number.

    `emit` makes the LLVM instruction; with `compares`, the result is a mask.
    """

    class Operator(AbstractTemplate):
        def generic(self, arguments, keywords):
            wanted = _joined(arguments)
            if wanted is None:
                return None
            result = Vector(types.boolean, wanted.size) if compares else wanted
            return signature(result, *arguments)

    Operator.__name__ = f"Vector_{function.__name__}"
    infer_global(function)(Operator)

    def lower(context, builder, signature_, arguments):
        wanted = _joined(signature_.args)
        values = [
            _as_vector(context, builder, value, type_, wanted)
            for value, type_ in zip(arguments, signature_.args, strict=True)
        ]
        return emit(builder, *values)

    for kinds in ((Vector, Vector), (Vector, types.Number), (types.Number, Vector)):
        lower_builtin(function, *kinds)(lower)


for _names, _emitted in (
    (("add", "iadd"), ir.IRBuilder.fadd),
    (("sub", "isub"), ir.IRBuilder.fsub),
    (("mul", "imul"), ir.IRBuilder.fmul),
    (("truediv", "itruediv"), ir.IRBuilder.fdiv),
):
    for _name in _names:
        _define(getattr(operator, _name), _emitted, compares=False)


def _comparison(symbol):
    """Return the emitter of a comparison; with NaN, only ``!=`` is true."""
    ordered = symbol != "!="

    def emit(builder, a, b):
        compare = builder.fcmp_ordered if ordered else builder.fcmp_unordered
        return compare(symbol, a, b)

    return emit


for _name, _symbol in (
    ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="),
):  # fmt: skip
    _define(getattr(operator, _name), _comparison(_symbol), compares=True)


@infer_global(operator.neg)
class _Negative(AbstractTemplate):
    """The type of ``-a``: that of the vector `a`."""

    def generic(self, arguments, keywords):
        if len(arguments) == 1 and _is_real(arguments[0]):
            return signature(arguments[0], arguments[0])
        return None


@lower_builtin(operator.neg, Vector)
def _negative(context, builder, signature_, arguments):
    return builder.fneg(arguments[0])


def _address(context, builder, array_type, array, index_type, index, vector):
    """Return the address of a vector in an array."""
    first = element_pointer(context, builder, array_type, array, index_type, index)
    return builder.bitcast(first, vector.as_pointer())


def _holds(array, index):
    """Whether Numba types are those of an array of reals and of an index into it."""
    count = len(index) if isinstance(index, types.BaseTuple) else 1
    return (
        isinstance(array, types.Array)
        and array.dtype in (types.float32, types.float64)
        and array.ndim == count
    )


def _make_load(size):
    """Make the intrinsic `load_N` of a size."""

    @intrinsic
    def load(typing_context, array, index):
        if not _holds(array, index):
            return None
        vector = Vector(array.dtype, size)

        def generate(context, builder, signature_, arguments):
            of_llvm = context.get_value_type(vector)
            place = _address(
                context, builder, signature_.args[0], arguments[0],
                signature_.args[1], arguments[1], of_llvm,
            )  # fmt: skip
            return builder.load(place, align=array.dtype.bitwidth // 8)

        return vector(array, index), generate

    return load


def _make_store(size):
    """Make the intrinsic `store_N` of a size."""

    @intrinsic
    def store(typing_context, array, index, vector):
        if not _holds(array, index) or vector != Vector(array.dtype, size):
            return None

        def generate(context, builder, signature_, arguments):
            place = _address(
                context, builder, signature_.args[0], arguments[0],
                signature_.args[1], arguments[1], arguments[2].type,
            )  # fmt: skip
            builder.store(arguments[2], place, align=array.dtype.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(array, index, vector), generate

    return store


def _make_spread(size):
    """Make the intrinsic `spread_N` of a size."""

    @intrinsic
    def spread(typing_context, number):
        if not isinstance(number, types.Float):
            return None

        def generate(context, builder, signature_, arguments):
            return _spread(builder, arguments[0], size)

        return Vector(number, size)(number), generate

    return spread


load_16, load_8, load_4, load_2, load_1 = map(_make_load, SIZES)
store_16, store_8, store_4, store_2, store_1 = map(_make_store, SIZES)
spread_16, spread_8, spread_4, spread_2, spread_1 = map(_make_spread, SIZES)


def _llvm(builder, name, result, arguments, vector, fast=()):
    """Call an intrinsic of LLVM that is named after the type of its vector."""
    element = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(vector.element, "i1")
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(result, [a.type for a in arguments]),
        f"llvm.{name}.v{vector.count}{element}",
    )
    return builder.call(function, arguments, fastmath=fast)


@intrinsic
def absolute(typing_context, a):
    """Return the absolute values."""
    if not _is_real(a):
        return None

    def generate(context, builder, signature_, arguments):
        type_ = arguments[0].type
        return _llvm(builder, "fabs", type_, arguments, type_)

    return a(a), generate


@intrinsic
def is_finite(typing_context, a):
    """Return a mask of the elements that are neither infinite nor nan."""
    if not _is_real(a):
        return None

    def generate(context, builder, signature_, arguments):
        type_ = arguments[0].type
        size = _llvm(builder, "fabs", type_, arguments, type_)
        infinite = ir.Constant(type_.element, float("inf"))
        return builder.fcmp_ordered("<", size, _spread(builder, infinite, a.size))

    return Vector(types.boolean, a.size)(a), generate


@intrinsic
def total(typing_context, a):
    """Return the sum of the elements."""
    if not _is_real(a):
        return None

    def generate(context, builder, signature_, arguments):
        vector = arguments[0].type
        nothing = ir.Constant(vector.element, -0.0)
        return _llvm(
            builder, "vector.reduce.fadd", vector.element, [nothing, arguments[0]],
            vector, _FAST,
        )  # fmt: skip

    return a.dtype(a), generate


def _make_vote(name, doc):
    """Make an intrinsic that reduces a mask to a bool, by LLVM's reduction `name`."""

    @intrinsic
    def vote(typing_context, mask):
        if not _is_mask(mask):
            return None

        def generate(context, builder, signature_, arguments):
            vector = arguments[0].type
            return _llvm(builder, name, vector.element, arguments, vector)

        return types.boolean(mask), generate

    vote.__doc__ = doc
    return vote


any_of = _make_vote("vector.reduce.or", "Return whether any element is true.")
all_of = _make_vote("vector.reduce.and", "Return whether all elements are true.")


def _make_logic(emit):
    """Make an intrinsic that combines two masks."""

    @intrinsic
    def logic(typing_context, a, b):
        if not _is_mask(a) or a != b:
            return None

        def generate(context, builder, signature_, arguments):
            return emit(builder, *arguments)

        return a(a, b), generate

    return logic


both = _make_logic(ir.IRBuilder.and_)
either = _make_logic(ir.IRBuilder.or_)


@intrinsic
def negated(typing_context, mask):
    """Return the mask with each element negated."""
    if not _is_mask(mask):
        return None

    def generate(context, builder, signature_, arguments):
        return builder.not_(arguments[0])

    return mask(mask), generate


@intrinsic
def where(typing_context, mask, a, b):
    """Return the elements of `a` where `mask` is true, elsewhere those of `b`."""
    wanted = _joined((a, b))
    if not _is_mask(mask) or wanted is None or wanted.size != mask.size:
        return None

    def generate(context, builder, signature_, arguments):
        first, second = (
            _as_vector(context, builder, value, type_, wanted)
            for value, type_ in zip(arguments[1:], signature_.args[1:], strict=True)
        )
        return builder.select(arguments[0], first, second)

    return wanted(mask, a, b), generate


@_njit
def multiply(matrix, rows, source, target, k):
    """Store ``matrix @ rows[source]`` in ``rows[target]``.

    Four rows of the matrix are processed at once, since the additions of one sum depend
    on one another.
    """
    zero, whole, row = rows.dtype.type(0), k // 16 * 16, 0
    while row + 4 <= k:
        a = spread_16(zero)
        b, c, e = a, a, a
        for column in range(0, whole, 16):
            x = load_16(rows, (source, column))
            a += load_16(matrix, (row, column)) * x
            b += load_16(matrix, (row + 1, column)) * x
            c += load_16(matrix, (row + 2, column)) * x
            e += load_16(matrix, (row + 3, column)) * x
        sums = (total(a), total(b), total(c), total(e))
        for r in range(4):
            rows[target, row + r] = sums[r]
        row += 4
    for r in range(row, k):
        a = spread_16(zero)
        for column in range(0, whole, 16):
            a += load_16(matrix, (r, column)) * load_16(rows, (source, column))
        rows[target, r] = total(a)
    for r in range(k):
        for column in range(whole, k):
            rows[target, r] += matrix[r, column] * rows[source, column]


@_njit
def multiply_turned(matrix, rows, source, target, k):
    """Store ``matrix.T @ rows[source]`` in ``rows[target]``.

    Four vectors of columns are summed at once, down all rows.
    """
    zero, whole = rows.dtype.type(0), k // 16 * 16
    for first in range(0, whole, 64):
        a = spread_16(zero)
        b, c, e = a, a, a
        if first + 64 <= whole:
            for row in range(k):
                x = rows[source, row]
                a += load_16(matrix, (row, first)) * x
                b += load_16(matrix, (row, first + 16)) * x
                c += load_16(matrix, (row, first + 32)) * x
                e += load_16(matrix, (row, first + 48)) * x
            store_16(rows, (target, first), a)
            store_16(rows, (target, first + 16), b)
            store_16(rows, (target, first + 32), c)
            store_16(rows, (target, first + 48), e)
        else:
            for column in range(first, whole, 16):
                a = spread_16(zero)
                for row in range(k):
                    a += load_16(matrix, (row, column)) * rows[source, row]
                store_16(rows, (target, column), a)
    for column in range(whole, k):
        rows[target, column] = zero
    for row in range(k):
        for column in range(whole, k):
            rows[target, column] += matrix[row, column] * rows[source, row]
