"""Functions for generated CPU kernels: parallel sweeps, atomics, bits, checked mode.

All can be called from njit code, on several threads. `array` has one to three
dimensions and any layout; `index` is a nonnegative integer or a tuple of such.

======================================================  ================================
``in_parallel(sweep, chunks, arguments)``               none; sweeps all chunks
``atomic_add(array, index, value)`` ``_min`` ``_max``   the old value; int32, int64,
                                                        uint32, uint64, float32, float64
``atomic_or(array, index, value)``                      the old value; integers
``exchange_if(array, index, expected, desired)``        (old, done); compare-and-swap
``atomic_product(array, index, value)``                 none; compare-and-swap loop
``atomic_combine(array, index, value, combine)``        none; combine(old, value) is
                                                        an njit function
``hold(locks, first, second)`` ``release(...)``         none; acquire one or two locks
``wait_for(counts, v, turn)`` ``pass_on(counts, v)``    none; wait until a count has a
                                                        value; add one to it
``set_bit(words, v)``                                   none; sets a bit, atomically
``test_bit(words, v)``                                  bool; False beyond the words
``count_bits(word)``, ``trailing_zeros(word)``          int32 of a uint32; 32 for zero
``count_set(words)``                                    int64: set bits of the words
``lower_bound(row, first, stop, value)``                first place of entries >= value
                                                        in sorted entries
``prefetch(array, index)``                              none; loads into the caches
``checked(index, bound, site, vertex, edge, record)``   bool; see the function
======================================================  ================================

``wins_*``, ``pack_*``, ``unpack_*``, ``sort_triangle``, ``sum_holds`` and ``is_normal``
come from `featgraph.device.ordering`.

Numba has no CPU atomics. These are LLVM's ``atomicrmw`` and ``cmpxchg`` with relaxed
ordering; the end of `in_parallel` orders all memory operations. While no `in_parallel`
runs on several threads of the process, they are plain reads and writes: a locked
instruction takes ten times as long as the test for this.
"""

import ctypes
import time

from llvmlite import binding, ir
from numba import int32, int64, njit, types, uint32
from numba.core import callconv, cgutils
from numba.extending import intrinsic
from numba.np import arrayobj
from numba.np.ufunc.parallel import _launch_threads

from featgraph.device import ordering

PACKED_NONE_FLOAT32 = ordering.PACKED_NONE_FLOAT32
PACKED_NONE_INT32 = ordering.PACKED_NONE_INT32

# Never nnan or ninf: inf and nan must stay testable. The other flags gain nothing here.
_njit = njit(cache=True, error_model="numpy", _nrt=False)

globals().update(ordering.for_target(_njit))

#: Relaxed order, as LLVM names it.
_ORDERING = "monotonic"
_INT32, _INT64, _BYTES = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
#: Number of calls of `in_parallel` in progress on several threads, in memory that
#: compiled code reads; and the name of this memory there.
parallel_regions, _REGIONS = ctypes.c_int32(0), "featgraph_parallel_regions"
binding.add_symbol(_REGIONS, ctypes.addressof(parallel_regions))
#: Longest time, in ns, that a thread waits for a lock or a count before an error; and
#: number of polls between reads of the clock.
LONGEST_WAIT, POLLS = 60_000_000_000, 1024


def _index_types(index):
    return list(index) if isinstance(index, types.BaseTuple) else [index]


def _is_element(array, index):
    """Whether Numba types are those of a writable array and of an index of an entry."""
    indices = _index_types(index)
    return (
        isinstance(array, types.Array)
        and array.mutable
        and len(indices) == array.ndim
        and all(isinstance(each, types.Integer) for each in indices)
    )


def element_pointer(context, builder, array_type, array, index_type, index):
    """Emit code for the address of an entry of an array."""
    indices = _index_types(index_type)
    parts = (
        cgutils.unpack_tuple(builder, index)
        if isinstance(index_type, types.BaseTuple)
        else [index]
    )
    positions = [
        context.cast(builder, part, of_type, types.intp)
        for part, of_type in zip(parts, indices, strict=True)
    ]
    view = arrayobj.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(
        context, builder, array_type, view, positions, wraparound=False
    )


def regions_pointer(builder):
    """Return a pointer to `parallel_regions` in the module of a builder."""
    module = builder.module
    known = module.globals.get(_REGIONS)
    return known or ir.GlobalVariable(module, _INT32, _REGIONS)


def _unless_alone(builder, plain, atomic):
    """Emit two versions of code: `plain` runs outside of parallel regions.

    Each function returns LLVM values; the result has the values of the version that
    ran.
    """
    alone = builder.icmp_signed("==", builder.load(regions_pointer(builder)), _INT32(0))
    forms = []
    with builder.if_else(alone) as branches:
        for branch, emit in zip(branches, (plain, atomic), strict=True):
            with branch:
                values = emit()
                forms.append((values, builder.block))
    (values, block), (others, other_block) = forms
    merged = []
    for value, other in zip(values, others, strict=True):
        phi = builder.phi(value.type)
        phi.add_incoming(value, block)
        phi.add_incoming(other, other_block)
        merged.append(phi)
    return merged


def _operation(name, dtype):
    """Return LLVM's instruction for an operation on a type; None without one."""
    if isinstance(dtype, types.Float):
        return {"add": "fadd", "min": "fmin", "max": "fmax"}.get(name)
    if not isinstance(dtype, types.Integer) or dtype.bitwidth < 8:
        return None
    if name in {"min", "max"} and not dtype.signed:
        return f"u{name}"
    return name


def _applied(builder, operation, old, value):
    """Emit an operation of `_operation` as a plain instruction; return the result."""
    if operation in {"fmin", "fmax"}:  # a NaN has no effect
        type_ = ir.FunctionType(value.type, [value.type] * 2)
        function = builder.module.declare_intrinsic(
            f"llvm.{operation[1:]}num", [value.type], type_
        )
        return builder.call(function, [old, value])
    if operation.endswith(("min", "max")):
        sign = "unsigned" if operation.startswith("u") else "signed"
        order = "<" if operation.endswith("min") else ">"
        wins = getattr(builder, f"icmp_{sign}")(order, value, old)
        return builder.select(wins, value, old)
    named = {"add": builder.add, "fadd": builder.fadd, "or": builder.or_}
    return named[operation](old, value)


def _read_modify_write(name):
    """Make an intrinsic ``(array, index, value)`` that applies an operation."""

    def typed(typing_context, array, index, value):
        if not _is_element(array, index) or _operation(name, array.dtype) is None:
            return None
        signature = array.dtype(array, index, array.dtype)

        def generate(context, builder, signature, arguments):
            array_type, index_type, _ = signature.args
            array, index, value = arguments
            pointer = element_pointer(
                context, builder, array_type, array, index_type, index
            )
            operation = _operation(name, array_type.dtype)

            def plain():
                old = builder.load(pointer)
                builder.store(_applied(builder, operation, old, value), pointer)
                return [old]

            def atomic():
                return [builder.atomic_rmw(operation, pointer, value, _ORDERING)]

            [old] = _unless_alone(builder, plain, atomic)
            return old

        return signature, generate

    typed.__name__ = f"_atomic_{name}"
    return intrinsic(typed)


_atomic_add = _read_modify_write("add")
_atomic_min = _read_modify_write("min")
_atomic_max = _read_modify_write("max")
_atomic_or = _read_modify_write("or")


@_njit
def atomic_add(array, index, value):
    """Add to an entry; return its previous value."""
    return _atomic_add(array, index, value)


@_njit
def atomic_min(array, index, value):
    """Lower an entry to the value; return the previous one. NaN has no effect."""
    return _atomic_min(array, index, value)


@_njit
def atomic_max(array, index, value):
    """Raise an entry to the value; return the previous one. NaN has no effect."""
    return _atomic_max(array, index, value)


@_njit
def atomic_or(array, index, value):
    """Set the bits of an integer entry; return its previous value."""
    return _atomic_or(array, index, value)


@intrinsic
def _exchange_if(typing_context, array, index, expected, desired):
    """Compare and swap: return the old value, and whether it was replaced."""
    if not _is_element(array, index):
        return None
    dtype = array.dtype
    signature = types.Tuple((dtype, types.boolean))(array, index, dtype, dtype)

    def generate(context, builder, signature, arguments):
        array_type, index_type, _, _ = signature.args
        array, index, expected, desired = arguments
        pointer = element_pointer(
            context, builder, array_type, array, index_type, index
        )
        value_type = expected.type
        # cmpxchg takes integers only; bits also make NaN equal to itself.
        bits = ir.IntType(array_type.dtype.bitwidth)
        pointer = builder.bitcast(pointer, bits.as_pointer())
        expected, desired = (builder.bitcast(v, bits) for v in (expected, desired))

        def plain():
            old = builder.load(pointer)
            done = builder.icmp_unsigned("==", old, expected)
            builder.store(builder.select(done, desired, old), pointer)
            return [old, done]

        def atomic():
            found = builder.cmpxchg(pointer, expected, desired, _ORDERING, _ORDERING)
            return [builder.extract_value(found, number) for number in range(2)]

        old, done = _unless_alone(builder, plain, atomic)
        old = builder.bitcast(old, value_type)
        return context.make_tuple(builder, signature.return_type, [old, done])

    return signature, generate


@_njit
def exchange_if(array, index, expected, desired):
    """Replace an entry if it holds exactly the bits of `expected`.

    Returns the previous value, and whether it was replaced.
    """
    return _exchange_if(array, index, expected, desired)


def _of_element(returns, emit):
    """Make an intrinsic ``(array, index)`` from code for a pointer to the entry."""

    @intrinsic
    def at_element(typing_context, array, index):
        signature = returns(array, index)

        def generate(context, builder, signature, arguments):
            array_type, index_type = signature.args
            array, index = arguments
            pointer = element_pointer(
                context, builder, array_type, array, index_type, index
            )
            found = emit(builder, pointer)
            return context.get_dummy_value() if returns is types.void else found

        return signature, generate

    return at_element


def _swap_in_one(builder, pointer):
    """Emit an attempt to change 0 to 1; the result is whether it succeeded."""
    found = builder.cmpxchg(pointer, _INT32(0), _INT32(1), "acquire", "monotonic")
    return builder.extract_value(found, 1)


_try_lock = _of_element(types.boolean, _swap_in_one)
_unlock = _of_element(
    types.void, lambda builder, p: builder.store_atomic(_INT32(0), p, "release", 4)
)
_count_at = _of_element(
    types.int32, lambda builder, p: builder.load_atomic(p, "acquire", 4)
)
_count_on = _of_element(
    types.void, lambda builder, p: builder.atomic_rmw("add", p, _INT32(1), "release")
)


@intrinsic
def _give_way(typing_context):
    """Yield the processor to other threads."""

    def generate(context, builder, signature, arguments):
        type_ = ir.FunctionType(_INT32, [])
        builder.call(
            cgutils.get_or_insert_function(builder.module, type_, "sched_yield"), []
        )
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _clock_ns(typing_context):
    """Return the monotonic clock, in ns."""

    def generate(context, builder, signature, arguments):
        pair = cgutils.alloca_once(builder, ir.ArrayType(_INT64, 2))
        pair = builder.bitcast(pair, _BYTES)
        type_ = ir.FunctionType(_INT32, [_INT32, _BYTES])
        ask = cgutils.get_or_insert_function(builder.module, type_, "clock_gettime")
        builder.call(ask, [_INT32(time.CLOCK_MONOTONIC), pair])
        pair = builder.bitcast(pair, _INT64.as_pointer())
        seconds, more = builder.load(pair), builder.load(builder.gep(pair, [_INT32(1)]))
        return builder.add(builder.mul(seconds, _INT64(1_000_000_000)), more)

    return types.int64(), generate


@_njit
def _wait(polls, begun):
    """Yield to other threads; return the time when the wait began, in ns, or 0.

    The clock is read in one of `POLLS` calls, which `polls` counts; before the first
    read the begin is 0. Raises TimeoutError after `LONGEST_WAIT`.
    """
    _give_way()
    if polls % POLLS != 0:
        return begun
    now = _clock_ns()
    if begun != 0 and now - begun > LONGEST_WAIT:
        raise TimeoutError("a worker waited for 60 s")
    return begun if begun != 0 else now


@_njit
def hold(locks, first, second):
    """Acquire two locks, or one if they are equal; wait until both are free.

    A thread holds no lock while it waits, so that threads cannot block each other.
    """
    polls, begun = 0, int64(0)
    while True:
        if _try_lock(locks, first):
            if first == second or _try_lock(locks, second):
                return
            _unlock(locks, first)
        polls += 1
        begun = _wait(polls, begun)


@_njit
def release(locks, first, second):
    """Release locks acquired by `hold`, with all earlier writes."""
    _unlock(locks, first)
    if first != second:
        _unlock(locks, second)


@_njit
def wait_for(counts, v, turn):
    """Wait until `turn` edges of a vertex have run, and acquire their writes."""
    polls, begun = 0, int64(0)
    while _count_at(counts, v) != turn:
        polls += 1
        begun = _wait(polls, begun)


@_njit
def pass_on(counts, v):
    """Count an edge of a vertex as having run, and release its writes."""
    _count_on(counts, v)


@_njit
def atomic_product(array, index, value):
    """Multiply an entry by the value."""
    done = False
    old = array[index]
    while not done:
        old, done = _exchange_if(array, index, old, old * value)


@njit(error_model="numpy", _nrt=False)
def atomic_combine(array, index, value, combine):
    """Replace an entry by ``combine(entry, value)``."""
    done = False
    old = array[index]
    while not done:
        old, done = _exchange_if(array, index, old, combine(old, value))


@intrinsic
def _population(typing_context, word):
    """Return the number of set bits."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint32(types.uint32), generate


@intrinsic
def _zeros_below(typing_context, word):
    """Return the number of zero bits below the lowest set bit."""

    def generate(context, builder, signature, arguments):
        # The flag makes the result for zero defined: the width.
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint32(types.uint32), generate


@_njit
def set_bit(words, v):
    """Set bit `v % 32` of word `v // 32`, atomically."""
    bit = uint32(uint32(1) << (uint32(v) & uint32(31)))
    _atomic_or(words, uint32(v) >> uint32(5), bit)


@_njit
def test_bit(words, v):
    """Return whether a bit is set; bits beyond the words are not."""
    word = uint32(uint32(v) >> uint32(5))
    if word >= uint32(words.shape[0]):
        return False
    return uint32((words[word] >> (uint32(v) & uint32(31))) & uint32(1)) != 0


@_njit
def join_bit(words, v):
    """Set a bit as `set_bit` does, if it is not set yet."""
    if not test_bit(words, v):
        set_bit(words, v)


@_njit
def count_bits(word):
    """Count the set bits of a uint32."""
    return int32(_population(uint32(word)))


@_njit
def trailing_zeros(word):
    """Return the index of the lowest set bit of a uint32, or 32."""
    return int32(_zeros_below(uint32(word)))


@_njit
def count_set(words):
    """Count the set bits of an array of uint32 words."""
    total = int64(0)
    for word in words:
        total += int64(_population(word))
    return total


@_njit
def lower_bound(row, first, stop, value):
    """Return the first place of an entry >= value in ascending entries.

    Exponential search from `first`, which is fast if the place is near, as in
    successive searches for ascending values.
    """
    place, step = first, 1
    while place < stop and row[place] < value:
        first = place + 1
        place += step
        step += step
    stop = min(place, stop)
    while first < stop:
        middle = (first + stop) >> 1
        if row[middle] < value:
            first = middle + 1
        else:
            stop = middle
    return first


@_njit
def checked(index, bound, site, vertex, edge, record):
    """Return whether ``0 <= index < bound``; record the first violation.

    `record` is int64[6], zero before: taken, site, vertex, edge, index, bound.
    """
    if 0 <= int64(index) < int64(bound):
        return True
    _, first = _exchange_if(record, 0, int64(0), int64(1))
    if first:
        record[1] = site
        record[2] = vertex
        record[3] = edge
        record[4] = index
        record[5] = bound
    return False


@intrinsic
def prefetch(typing_context, array, index):
    """Load an entry into the caches without waiting; it may be beyond the array."""
    if not isinstance(array, types.Array) or not isinstance(index, types.Integer):
        return None

    def generate(context, builder, signature, arguments):
        given, place = arguments
        pointer = element_pointer(context, builder, array, given, index, place)
        type_ = ir.FunctionType(ir.VoidType(), [_BYTES, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTES], type_)
        # To read, data, for all caches.
        how = _INT32(0), _INT32(3), _INT32(1)
        builder.call(function, [builder.bitcast(pointer, _BYTES), *how])
        return context.get_dummy_value()

    return types.void(array, index), generate


#: Types of a sweep's first arguments: number and bounds of its chunk.
_BOUNDS = (types.int64,) * 3
#: Type of the function of a thread, as Numba's threading layers call it: addresses of
#: arguments, counts, strides, and one pointer that all threads share.
_TURN = ir.FunctionType(
    ir.VoidType(),
    [_BYTES.as_pointer(), _INT64.as_pointer(), _INT64.as_pointer(), _BYTES],
)
#: ``numba_parallel_for(function, addresses, counts, strides, shared, inner loops,
#: addresses that are moved, threads)``.
_PARALLEL_FOR = ir.FunctionType(
    ir.VoidType(), [_BYTES, *_TURN.args, _INT64, _INT64, _INT32]
)
#: Fields of the record that all threads share: the next chunk, the number of chunks,
#: their offsets, the arguments of the sweep, and code and information of an error.
_NEXT, _COUNT, _OFFSETS, _ARGUMENTS, _CODE, _ERROR = range(6)


def _field(builder, record, number):
    """Return a pointer to a field of the record."""
    return builder.gep(record, [_INT32(0), _INT32(number)], inbounds=True)


@intrinsic
def in_parallel(typing_context, sweep, chunks, arguments):
    """Call a sweep for all chunks, with the chunk's number and bounds, and arguments.

    It runs on Numba's threads, in any threading layer. A free thread takes the next
    chunk: due vertices are often adjacent, and a static division of chunks would leave
    threads idle. An error in a sweep is raised when all threads have ended; chunks that
    no thread has begun by then are skipped.

    `sweep` is a compiled function, `chunks` int64[n + 1] and contiguous, `arguments` a
    tuple. A ``prange`` would do the same, but runs Numba's parallel pass and compiles
    three more functions for each sweep.
    """
    is_known = (
        isinstance(sweep, types.Dispatcher)
        and isinstance(chunks, types.Array)
        and (chunks.dtype, chunks.ndim, chunks.layout) == (types.int64, 1, "C")
        and isinstance(arguments, types.BaseTuple)
    )
    if not is_known:
        return None
    own = (*_BOUNDS, *arguments.types)
    called = sweep.get_call_type(typing_context, own, {})
    signature = types.void(sweep, chunks, arguments)

    def generate(context, builder, signature, values):
        swept = sweep.dispatcher.overloads[called.args]
        library = context.active_code_library
        library.add_linking_library(swept.library)
        # Starts the threads before the first call, also for code from the disk cache.
        _launch_threads()
        library._reload_init.add(_launch_threads)
        offsets = context.make_array(chunks)(context, builder, values[1])
        count = builder.sub(builder.extract_value(offsets.shape, 0), _INT64(1))
        error = ir.PointerType(callconv.excinfo_t)
        borrowed = _borrowed(context, builder, arguments, values[2])
        shared = [_INT64(0), count, offsets.data, borrowed, _INT32(0), error(None)]
        record = cgutils.alloca_once(
            builder, ir.LiteralStructType([value.type for value in shared])
        )
        for number, value in enumerate(shared):
            builder.store(value, _field(builder, record, number))
        turn = _take_chunks(context, builder.module, record.type, swept, called)
        _run_on_threads(builder, turn, record, count)
        code = builder.load(_field(builder, record, _CODE))
        raised = builder.load(_field(builder, record, _ERROR))
        status = context.call_conv._get_return_status(builder, code, raised)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return signature, generate


def _borrowed(context, builder, type_, value):
    """Return arguments with arrays that own no reference; the caller keeps them alive.

    Otherwise threads update the reference counts of shared arrays in inner loops: label
    propagation with 8 classes took 0.24 s instead of 0.05 s on two threads (Intel
    Xeon, 2026-11-28).
    """
    if isinstance(type_, types.Array):
        array = context.make_array(type_)(context, builder, value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()
    if isinstance(type_, types.BaseTuple) and len(type_):
        parts = cgutils.unpack_tuple(builder, value, len(type_))
        pairs = zip(type_.types, parts, strict=True)
        borrowed = [_borrowed(context, builder, t, part) for t, part in pairs]
        return context.make_tuple(builder, type_, borrowed)
    return value


def _take_chunks(context, module, record_type, swept, called):
    """Emit the function of a thread, which sweeps chunks until none is left."""
    name = module.get_unique_name("take_chunks")
    turn = ir.Function(module, _TURN, name)
    turn.linkage = "internal"
    builder = ir.IRBuilder(turn.append_basic_block("entry"))
    record = builder.bitcast(turn.args[3], record_type)

    def load(number):
        return builder.load(_field(builder, record, number))

    count, offsets, packed = load(_COUNT), load(_OFFSETS), load(_ARGUMENTS)
    unpacked = cgutils.unpack_tuple(builder, packed)
    take, sweep, end = (turn.append_basic_block(n) for n in ("take", "sweep", "end"))
    builder.branch(take)

    builder.position_at_end(take)
    following = _field(builder, record, _NEXT)
    chunk = builder.atomic_rmw("add", following, _INT64(1), _ORDERING)
    builder.cbranch(builder.icmp_signed("<", chunk, count), sweep, end)

    builder.position_at_end(sweep)
    first = builder.load(builder.gep(offsets, [chunk]))
    last = builder.load(builder.gep(offsets, [builder.add(chunk, _INT64(1))]))
    status, _ = context.call_conv.call_function(
        builder,
        context.declare_function(module, swept.fndesc),
        called.return_type,
        called.args,
        [chunk, first, last, *unpacked],
    )
    with cgutils.if_unlikely(builder, status.is_error):
        # Only the first error is kept; it also marks all chunks as taken.
        failed = _field(builder, record, _CODE)
        found = builder.cmpxchg(failed, _INT32(0), status.code, _ORDERING, _ORDERING)
        with builder.if_then(builder.extract_value(found, 1)):
            builder.store(status.excinfoptr, _field(builder, record, _ERROR))
        builder.atomic_rmw("max", following, count, _ORDERING)
    builder.branch(take)

    builder.position_at_end(end)
    builder.ret_void()
    return turn


def _run_on_threads(builder, turn, record, count):
    """Emit code that calls a function on each thread, on no more than `count`."""
    module = builder.module
    ask = cgutils.get_or_insert_function(
        module, ir.FunctionType(_INT32, []), "get_num_threads"
    )
    threads = builder.call(ask, [])
    most = builder.zext(threads, _INT64)
    turns = builder.select(builder.icmp_signed("<", count, most), count, most)
    shared = builder.bitcast(record, _BYTES)
    run = cgutils.get_or_insert_function(module, _PARALLEL_FOR, "numba_parallel_for")
    addresses, counts, strides = (
        cgutils.alloca_once_value(builder, value)
        for value in (shared, turns, _INT64(0))
    )
    function = builder.bitcast(turn, _BYTES)
    # The arguments are in the record: pass a dummy array of stride 0.
    arrays = [addresses, counts, strides, shared, _INT64(0), _INT64(1)]
    # Counted before any thread starts, so that all of them use atomic instructions.
    one = builder.zext(builder.icmp_signed(">", turns, _INT64(1)), _INT32)
    builder.atomic_rmw("add", regions_pointer(builder), one, "seq_cst")
    builder.call(run, [function, *arrays, threads])
    builder.atomic_rmw("sub", regions_pointer(builder), one, "seq_cst")
