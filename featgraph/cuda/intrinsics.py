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

__all__ = ["INTRINSICS"]

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
    ir: Any = import_whole("llvmlite.ir")
    entries = min(sizes[1], 16 // item)
    if sizes[1] % entries or entries & (entries - 1):
        return None
    is_float = type(array.dtype).__name__ == "Float"
    floats = {4: ir.FloatType(), 8: ir.DoubleType()}
    element = floats[item] if is_float else ir.IntType(8 * item)
    return ir.VectorType(element, entries), entries, entries * item


def _row_pointers(context: Any, builder: Any, types: Any, args: Any) -> Any:
    """Yield (pointer, entries, bytes) of each vector of a piece of a row."""
    ir: Any = import_whole("llvmlite.ir")
    arrays: Any = dialect_module("np.arrayobj")
    array, width, count = types[0], types[3].literal_value, types[4].literal_value
    vector, entries, size = _vectors(array, types[3], types[4])
    wide, byte = ir.IntType(64), ir.IntType(8)

    def widened(place: int) -> Any:
        value, type_ = args[place], types[place]
        if value.type.width == wide.width:
            return value
        extend = builder.sext if type_.signed else builder.zext
        return extend(value, wide)

    # Both factors are constants: row * 4 K is one instruction.
    item = array.dtype.bitwidth // 8
    row = builder.mul(widened(1), ir.Constant(wide, width * item))
    column = builder.mul(widened(2), ir.Constant(wide, item))
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
    types: Any = dialect_module("types")
    ir: Any = import_whole("llvmlite.ir")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = []
        places = _row_pointers(context, builder, signature.args, args)
        for pointer, entries, size in places:
            loaded = builder.load(pointer, align=size)
            for entry in range(entries):
                index = ir.Constant(ir.IntType(32), entry)
                values.append(builder.extract_element(loaded, index))
        return context.make_tuple(builder, signature.return_type, values)

    result = types.UniTuple(array.dtype, count.literal_value)
    return result(array, row, column, width, count), generate


def store_row(
    typing: Any, array: Any, row: Any, column: Any, width: Any, count: Any, values: Any
) -> Any:
    """Store a tuple where `load_row` would load it."""
    if _vectors(array, width, count) is None:
        return None
    types: Any = dialect_module("types")
    ir: Any = import_whole("llvmlite.ir")
    operands = types.UniTuple(array.dtype, count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _vectors(*(signature.args[place] for place in (0, 3, 4)))[0]
        left = [
            builder.extract_value(args[5], place)
            for place in range(signature.args[4].literal_value)
        ]
        places = _row_pointers(context, builder, signature.args, args)
        for pointer, entries, size in places:
            stored = ir.Constant(vector, ir.Undefined)
            for entry in range(entries):
                index = ir.Constant(ir.IntType(32), entry)
                stored = builder.insert_element(stored, left.pop(0), index)
            builder.store(stored, pointer, align=size)
        return context.get_dummy_value()

    return types.void(array, row, column, width, count, operands), generate


def anew(typing: Any, index: Any) -> Any:
    """Copy an index by a volatile instruction, through which nothing is inferred."""
    types: Any = dialect_module("types")
    ir: Any = import_whole("llvmlite.ir")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        value = context.cast(builder, args[0], signature.args[0], types.uint32)
        form = ir.FunctionType(word, [word])
        return builder.asm(form, "mov.b32 $0, $1;", "=r,r", [value], True, "anew")

    return types.uint32(index), generate


#: Letters of the constraints for registers in inline PTX: of floats by kind and bits,
#: and of all other numbers by their bits.
_REGISTERS = {("Float", 32): "f", ("Float", 64): "d"}
_WORDS = {32: "r", 64: "l"}


def select(typing: Any, test: Any, first: Any, second: Any) -> Any:
    """Return ``first if test else second`` by one instruction, never by a branch."""
    types: Any = dialect_module("types")
    ir: Any = import_whole("llvmlite.ir")
    bits = getattr(first, "bitwidth", 0)
    if test != types.boolean or first != second or bits not in _WORDS:
        return None
    letter = _REGISTERS.get((type(first).__name__, bits), _WORDS[bits])

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(first)
        word = ir.IntType(32)
        form = ir.FunctionType(kind, [kind, kind, word])
        # NVVM has no constraint letter for predicate registers.
        text = "{ .reg .pred p; setp.ne.s32 p, $3, 0; "
        text += f"selp.b{bits} $0, $1, $2, p; }}"
        operands = [args[1], args[2], builder.zext(args[0], word)]
        registers = f"={letter},{letter},{letter},r"
        return builder.asm(form, text, registers, operands, False)

    return first(test, first, second), generate


# -- addresses: memory of other GPUs, for which the dialect has no arrays


def _pointer_to(
    context: Any, builder: Any, signature: Any, args: Any, kind: Any
) -> Any:
    """Emit the conversion of an address to a pointer into global memory."""
    types: Any = dialect_module("types")
    wide = context.cast(builder, args[0], signature.args[0], types.int64)
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
    types: Any = dialect_module("types")
    number: Any = getattr(kind, "dtype", None)
    if not hasattr(number, "bitwidth"):
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.get_data_type(number)
        pointer = _pointer_to(context, builder, signature, args, data)
        operands = context.cast(builder, args[1], signature.args[1], number)
        builder.store(operands, pointer, align=number.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(address, value, kind), generate


def acquire_at(typing: Any, address: Any) -> Any:
    """Load an int64 from an address, in acquire order and system scope."""
    types: Any = dialect_module("types")
    ir: Any = import_whole("llvmlite.ir")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(64)
        operands = [context.cast(builder, args[0], signature.args[0], types.int64)]
        text, form = (
            "ld.acquire.sys.global.s64 $0, [$1];",
            ir.FunctionType(wide, [wide]),
        )
        registers = "=l,l,~{memory}"
        return builder.asm(form, text, registers, operands, True, "acquire_at")

    return types.int64(address), generate


def raise_at(typing: Any, address: Any, value: Any) -> Any:
    """Store an int64 at an address, relaxed and in system scope."""
    types: Any = dialect_module("types")
    ir: Any = import_whole("llvmlite.ir")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(64)
        pairs = zip(args, signature.args, strict=True)
        operands = [context.cast(builder, *pair, types.int64) for pair in pairs]
        form = ir.FunctionType(ir.VoidType(), [wide, wide])
        text = "st.relaxed.sys.global.s64 [$0], $1;"
        builder.asm(form, text, "l,l,~{memory}", operands, True, "raise_at")
        return context.get_dummy_value()

    return types.void(address, value), generate


# -- entries that synchronize threads of one GPU, and prefetches


def _entry_pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Emit code for a pointer to entry ``args[1]`` of the array ``args[0]``."""
    arrays: Any = dialect_module("np.arrayobj")
    types: Any = dialect_module("types")
    array, index = signature.args[:2]
    place = context.cast(builder, args[1], index, types.int64)
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
        form = _ir().FunctionType(kind, [pointer.type])
        text, registers = (
            f"ld.acquire.gpu.b{bits} $0, [$1];",
            f"={letter},l,~{{memory}}",
        )
        return builder.asm(form, text, registers, [pointer], True, "acquire")

    return array.dtype(array, index), generate


def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of an entry into the L1 cache."""
    types: Any = dialect_module("types")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _entry_pointer(context, builder, signature, args)
        form = _ir().FunctionType(_ir().VoidType(), [pointer.type])
        text = "{ .reg .u64 p; cvta.to.global.u64 p, $0; prefetch.global.L1 [p]; }"
        builder.asm(form, text, "l", [pointer], True, "prefetch")
        return context.get_dummy_value()

    return types.void(array, index), generate


def fence(typing: Any) -> Any:
    """Order all memory operations before it against all after it, in GPU scope."""
    types: Any = dialect_module("types")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        form = _ir().FunctionType(_ir().VoidType(), [])
        builder.asm(form, "fence.acq_rel.gpu;", "~{memory}", [], True, "fence")
        return context.get_dummy_value()

    return types.void(), generate


def _ir() -> Any:
    """Return the module with LLVM's IR, imported at the first use."""
    return import_whole("llvmlite.ir")


# -- kernels in CUDA graphs: the clock, and conditional nodes


def clock_ns(typing: Any) -> Any:
    """Return the global timer of the GPU, in ns."""
    types: Any = dialect_module("types")
    ir: Any = import_whole("llvmlite.ir")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        form, text = ir.FunctionType(ir.IntType(64), []), "mov.u64 $0, %globaltimer;"
        return builder.asm(form, text, "=l", [], True, "clock_ns")

    return types.int64(), generate


def set_condition(typing: Any, handle: Any, value: Any) -> Any:
    """Set the condition of a conditional node of a CUDA graph, by its handle."""
    types: Any = dialect_module("types")
    ir: Any = import_whole("llvmlite.ir")

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
