"""Intrinsics that the CUDA dialect lacks; `featgraph.cuda.dialect` offers them.

Each public function is the typing function of an intrinsic (see
``numba.extending.intrinsic``): from the typing context and the argument types, it
returns a signature and a code generator, or None if the types do not match. The table
in `featgraph.cuda.dialect` describes the intrinsics. Memory order and scope are part of
the PTX instruction; the clobber ``~{memory}`` keeps the compiler from moving other
loads and stores across it.
"""

from __future__ import annotations

from typing import Any

from featgraph.base.interrupts import import_whole
from featgraph.cuda.dialect import dialect_module

__all__ = ["INTRINSICS", "load_vector", "store_vector", "widened"]


def _ir() -> Any:
    """Return the module with LLVM's IR, imported at the first use."""
    return import_whole("llvmlite.ir")


def _types() -> Any:
    """Return the module with the dialect's types."""
    return dialect_module("types")


def _asm(
    builder: Any, text: str, registers: str, operands: list[Any], kind: Any = None,
    name: str = "", has_effects: bool = True,
) -> Any:  # fmt: skip
    """Emit inline PTX with a result of an LLVM type, by default none."""
    form = _ir().FunctionType(kind or _ir().VoidType(), [a.type for a in operands])
    return builder.asm(form, text, registers, operands, has_effects, name)


def widened(builder: Any, value: Any, type_: Any) -> Any:
    """Extend an index of a dialect type to 64 bits."""
    wide = _ir().IntType(64)
    if value.type.width == wide.width:
        return value
    return (builder.sext if type_.signed else builder.zext)(value, wide)


def load_vector(builder: Any, pointer: Any, entries: int, size: int) -> list[Any]:
    """Load an aligned vector of some bytes; return its entries."""
    loaded = builder.load(pointer, align=size)
    places = (_ir().Constant(_ir().IntType(32), entry) for entry in range(entries))
    return [builder.extract_element(loaded, place) for place in places]


def store_vector(builder: Any, pointer: Any, values: list[Any], size: int) -> None:
    """Store values as an aligned vector of some bytes."""
    ir = _ir()
    stored = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for place, value in enumerate(values):
        index = ir.Constant(ir.IntType(32), place)
        stored = builder.insert_element(stored, value, index)
    builder.store(stored, pointer, align=size)


# -- rows: vector loads, which the compiler does not emit without known alignment


def _vectors(array: Any, width: Any, count: Any) -> Any:
    """Return the LLVM type of a vector, its entries and its bytes.

    None if the row cannot be accessed by whole vectors.

    A vector has at most 16 bytes, and is aligned to its size: `count` divides the row's
    `width`, the column is a multiple of `count`, and arrays are aligned to 256 bytes.
    The matrix of a vertex or edge is one row of all its entries.
    """
    sizes = [getattr(each, "literal_value", 0) for each in (width, count)]
    item = getattr(getattr(array, "dtype", None), "bitwidth", 0) // 8
    fits = min(sizes) > 0 and sizes[0] % sizes[1] == 0 and item in {4, 8}
    if not fits or array.ndim not in {2, 3} or array.layout != "C":
        return None
    ir, entries = _ir(), min(sizes[1], 16 // item)
    if sizes[1] % entries or entries & (entries - 1):
        return None
    is_float = type(array.dtype).__name__ == "Float"
    floats = {4: ir.FloatType(), 8: ir.DoubleType()}
    element = floats[item] if is_float else ir.IntType(8 * item)
    return ir.VectorType(element, entries), entries, entries * item


def _row_pointers(context: Any, builder: Any, types: Any, args: Any) -> Any:
    """Yield (pointer, entries, bytes) of each vector of a piece of a row."""
    ir, arrays = _ir(), dialect_module("np.arrayobj")
    array, width, count = types[0], types[3].literal_value, types[4].literal_value
    vector, entries, size = _vectors(array, types[3], types[4])
    wide, byte = ir.IntType(64), ir.IntType(8)
    # Both factors are constants: row * 4 K is one instruction.
    item = array.dtype.bitwidth // 8
    row = widened(builder, args[1], types[1])
    row = builder.mul(row, ir.Constant(wide, width * item))
    column = widened(builder, args[2], types[2])
    column = builder.mul(column, ir.Constant(wide, item))
    data = arrays.make_array(array)(context, builder, args[0]).data
    base = builder.gep(
        builder.bitcast(data, byte.as_pointer()), [builder.add(row, column)]
    )
    for place in range(count // entries):
        own = builder.gep(base, [ir.Constant(wide, place * size)])
        yield builder.bitcast(own, vector.as_pointer()), entries, size


def load_row(
    typing: Any, array: Any, row: Any, column: Any, width: Any, count: Any
) -> Any:
    """Load `count` entries, from `column` on, of a row of `width` entries; a tuple."""
    if _vectors(array, width, count) is None:
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = list[Any]()
        places = _row_pointers(context, builder, signature.args, args)
        for pointer, entries, size in places:
            values += load_vector(builder, pointer, entries, size)
        return context.make_tuple(builder, signature.return_type, values)

    result = _types().UniTuple(array.dtype, count.literal_value)
    return result(array, row, column, width, count), generate


def store_row(
    typing: Any, array: Any, row: Any, column: Any, width: Any, count: Any, values: Any
) -> Any:
    """Store a tuple where `load_row` would load it."""
    if _vectors(array, width, count) is None:
        return None
    types = _types()
    operands = types.UniTuple(array.dtype, count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        count = signature.args[4].literal_value
        left = [builder.extract_value(args[5], place) for place in range(count)]
        places = _row_pointers(context, builder, signature.args, args)
        for pointer, entries, size in places:
            store_vector(builder, pointer, left[:entries], size)
            left = left[entries:]
        return context.get_dummy_value()

    return types.void(array, row, column, width, count, operands), generate


def anew(typing: Any, index: Any) -> Any:
    """Copy an index by a volatile instruction, through which nothing is inferred."""
    types = _types()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.cast(builder, args[0], signature.args[0], types.uint32)
        text = "mov.b32 $0, $1;"
        return _asm(builder, text, "=r,r", [value], value.type, "anew")

    return types.uint32(index), generate


#: Letters of the constraints for registers in inline PTX: of floats by kind and bits,
#: and of all other numbers by their bits.
_REGISTERS = {("Float", 32): "f", ("Float", 64): "d"}
_WORDS = {32: "r", 64: "l"}


def select(typing: Any, test: Any, first: Any, second: Any) -> Any:
    """Return ``first if test else second`` by one instruction, never by a branch."""
    bits = getattr(first, "bitwidth", 0)
    if test != _types().boolean or first != second or bits not in _WORDS:
        return None
    letter = _REGISTERS.get((type(first).__name__, bits), _WORDS[bits])

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # NVVM has no constraint letter for predicate registers.
        text = "{ .reg .pred p; setp.ne.s32 p, $3, 0; "
        text += f"selp.b{bits} $0, $1, $2, p; }}"
        operands = [args[1], args[2], builder.zext(args[0], _ir().IntType(32))]
        registers, kind = f"={letter},{letter},{letter},r", args[1].type
        return _asm(builder, text, registers, operands, kind, has_effects=False)

    return first(test, first, second), generate


# -- addresses: memory of other GPUs, for which the dialect has no arrays


def _pointer_to(
    context: Any, builder: Any, signature: Any, args: Any, kind: Any
) -> Any:
    """Emit the conversion of an address to a pointer into global memory."""
    wide = context.cast(builder, args[0], signature.args[0], _types().int64)
    return builder.inttoptr(wide, kind.as_pointer(addrspace=1))


def load_at(typing: Any, address: Any, kind: Any) -> Any:
    """Load a number of type `kind` from an address."""
    number: Any = getattr(kind, "dtype", None)
    if not hasattr(number, "bitwidth"):
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.get_data_type(number)
        pointer = _pointer_to(context, builder, signature, args, data)
        return builder.load(pointer, align=number.bitwidth // 8)

    return number(address, kind), generate


def store_at(typing: Any, address: Any, value: Any, kind: Any) -> Any:
    """Store a value, cast to the type `kind`, at an address."""
    number: Any = getattr(kind, "dtype", None)
    if not hasattr(number, "bitwidth"):
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.get_data_type(number)
        pointer = _pointer_to(context, builder, signature, args, data)
        operands = context.cast(builder, args[1], signature.args[1], number)
        builder.store(operands, pointer, align=number.bitwidth // 8)
        return context.get_dummy_value()

    return _types().void(address, value, kind), generate


def acquire_at(typing: Any, address: Any) -> Any:
    """Load an int64 from an address, in acquire order and system scope."""
    types = _types()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = context.cast(builder, args[0], signature.args[0], types.int64)
        text, registers = "ld.acquire.sys.global.s64 $0, [$1];", "=l,l,~{memory}"
        return _asm(builder, text, registers, [place], place.type, "acquire_at")

    return types.int64(address), generate


def raise_at(typing: Any, address: Any, value: Any) -> Any:
    """Store an int64 at an address, relaxed and in system scope."""
    types = _types()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pairs = zip(args, signature.args, strict=True)
        operands = [context.cast(builder, *pair, types.int64) for pair in pairs]
        text = "st.relaxed.sys.global.s64 [$0], $1;"
        _asm(builder, text, "l,l,~{memory}", operands, name="raise_at")
        return context.get_dummy_value()

    return types.void(address, value), generate


# -- entries that synchronize threads of one GPU, and prefetches


def _entry_pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Emit code for a pointer to entry ``args[1]`` of the array ``args[0]``."""
    arrays: Any = dialect_module("np.arrayobj")
    array, index = signature.args[:2]
    place = context.cast(builder, args[1], index, _types().int64)
    data = arrays.make_array(array)(context, builder, args[0]).data
    return builder.gep(data, [place])


def acquire(typing: Any, array: Any, index: Any) -> Any:
    """Load an entry of 32 or 64 bits, in acquire order and GPU scope."""
    bits = getattr(array.dtype, "bitwidth", 0)
    if bits not in _WORDS:
        return None
    letter = _WORDS[bits]

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _entry_pointer(context, builder, signature, args)
        kind = context.get_value_type(array.dtype)
        text = f"ld.acquire.gpu.b{bits} $0, [$1];"
        registers = f"={letter},l,~{{memory}}"
        return _asm(builder, text, registers, [pointer], kind, "acquire")

    return array.dtype(array, index), generate


def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of an entry into the L1 cache."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _entry_pointer(context, builder, signature, args)
        text = "{ .reg .u64 p; cvta.to.global.u64 p, $0; prefetch.global.L1 [p]; }"
        _asm(builder, text, "l", [pointer], name="prefetch")
        return context.get_dummy_value()

    return _types().void(array, index), generate


def fence(typing: Any) -> Any:
    """Order all memory operations before it against all after it, in GPU scope."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _asm(builder, "fence.acq_rel.gpu;", "~{memory}", [], name="fence")
        return context.get_dummy_value()

    return _types().void(), generate


# -- kernels in CUDA graphs: the clock, and conditional nodes


def clock_ns(typing: Any) -> Any:
    """Return the global timer of the GPU, in ns."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        text, wide = "mov.u64 $0, %globaltimer;", _ir().IntType(64)
        return _asm(builder, text, "=l", [], wide, "clock_ns")

    return _types().int64(), generate


def set_condition(typing: Any, handle: Any, value: Any) -> Any:
    """Set the condition of a conditional node of a CUDA graph, by its handle."""
    types, ir = _types(), _ir()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide, word = ir.IntType(64), ir.IntType(32)
        name, known = "cudaGraphSetConditional", builder.module.globals
        function = known.get(name) or ir.Function(  # resolved by the linker
            builder.module, ir.FunctionType(ir.VoidType(), [wide, word]), name
        )
        to = types.uint64, types.uint32
        operands = zip(args, signature.args, to, strict=True)
        builder.call(function, [context.cast(builder, *each) for each in operands])
        return context.get_dummy_value()

    return types.void(handle, value), generate


#: Name of an intrinsic -> its typing function.
INTRINSICS = {
    function.__name__: function
    for function in (
        load_row,
        store_row,
        anew,
        select,
        load_at,
        store_at,
        acquire_at,
        raise_at,
        acquire,
        prefetch,
        fence,
        clock_ns,
        set_condition,
    )
}
