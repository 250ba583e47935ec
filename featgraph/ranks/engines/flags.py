"""Words of memory shared by processes: ordered loads, stores and waits.

Compiled, and imported when first needed. A number is published by a store with
*release*, and read by a load with *acquire*: a process that has read it sees all stores
before it. Plain stores of Python do not guarantee that on every machine.

Each word is written by one process only.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

__all__ = ["announce_sleep", "publish", "spin", "store"]

_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
#: Types of words of this process, and of others. As signatures are explicit, functions
#: are compiled at import, and not while other ranks wait.
_OWN = types.Array(types.int64, 1, "C")
_THEIRS = types.Array(types.int64, 1, "C", readonly=True)
_PLACE = types.int64

#: The pause instruction by machine: an intrinsic of LLVM, and its operands.
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", []), "aarch64": ("llvm.aarch64.hint", [1])}


def _pointer(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
    array_type, index_type = signature.args[:2]
    view = arrayobj.make_array(array_type)(context, builder, arguments[0])
    place = context.cast(builder, arguments[1], index_type, types.intp)
    return cgutils.get_item_pointer(
        context, builder, array_type, view, [place], wraparound=False
    )


def _is_word(words, place):  # type: ignore[no-untyped-def]
    return (
        isinstance(words, types.Array)
        and words.ndim == 1
        and words.dtype == types.int64
        and isinstance(place, types.Integer)
    )


@intrinsic
def _load(typing_context, words, place):  # type: ignore[no-untyped-def]
    """Load a word with acquire."""
    if not _is_word(words, place):  # type: ignore[no-untyped-call]
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, arguments)  # type: ignore[no-untyped-call]
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(words, place), generate


@intrinsic
def _store(typing_context, words, place, value):  # type: ignore[no-untyped-def]
    """Store a word with release."""
    if not (_is_word(words, place) and words.mutable):  # type: ignore[no-untyped-call]
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, arguments)  # type: ignore[no-untyped-call]
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(words, place, types.int64), generate


@intrinsic
def _fence(typing_context):  # type: ignore[no-untyped-def]
    """Order all earlier stores before all later loads."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _pause(typing_context):  # type: ignore[no-untyped-def]
    """Execute the pause instruction, which yields to the core's other thread."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        name, numbers = _PAUSES.get(platform.machine(), ("", []))
        if name:
            operands = [ir.Constant(ir.IntType(32), number) for number in numbers]
            shape = ir.FunctionType(ir.VoidType(), [one.type for one in operands])
            called = cgutils.get_or_insert_function(builder.module, shape, name)
            builder.call(called, operands)
        return context.get_dummy_value()

    return types.void(), generate


@njit(types.void(_OWN, _PLACE, types.int64), **_OPTIONS)
def store(words, place, value):  # type: ignore[no-untyped-def]
    """Store a word after all earlier stores."""
    _store(words, place, value)


@njit(types.boolean(_OWN, _PLACE, types.int64, _THEIRS, _PLACE), **_OPTIONS)
def publish(words, place, value, theirs, asleep):  # type: ignore[no-untyped-def]
    """Store a word; return whether the process that waits for it sleeps."""
    _store(words, place, value)
    _fence()
    return _load(theirs, asleep) != 0


@njit(types.void(_OWN, _PLACE), **_OPTIONS)
def announce_sleep(words, asleep):  # type: ignore[no-untyped-def]
    """Set the flag that this process sleeps, before its last read of a word.

    Either this process then sees the published word, or its publisher sees the flag.
    """
    _store(words, asleep, 1)
    _fence()


@njit(types.int64(_THEIRS, _PLACE, _PLACE, types.int64, types.int64), **_OPTIONS)
def spin(words, place, last, least, rounds):  # type: ignore[no-untyped-def]
    """Poll until a word is `least` or more, or the word `last` is nonzero.

    Returns 1 for the former, 2 for the latter, and 0 if neither holds after `rounds`.
    """
    for _ in range(rounds + 1):
        if _load(words, place) >= least:
            return 1
        if _load(words, last) != 0:
            # A number published before the last word may have arrived meanwhile.
            return 1 if _load(words, place) >= least else 2
        _pause()
    return 0
