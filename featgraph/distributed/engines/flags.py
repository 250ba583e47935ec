"""Words of memory that several processes see: loads, stores and waits, in order.

Compiled, and imported when first needed. What a process has written before it publishes
a number is seen by whoever has read that number: a store with *release*, a load with
*acquire*, which plain stores of Python are not on every machine.

A word has one process that writes it.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

__all__ = ["lie_down", "publish", "spin", "store"]

_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
#: Words of this process, and of others. Types are given, so that what is compiled is
#: there when the module is: ranks are not waited for meanwhile.
_OWN = types.Array(types.int64, 1, "C")
_THEIRS = types.Array(types.int64, 1, "C", readonly=True)
_PLACE = types.int64

#: What tells a core that it waits, by machine: an intrinsic of LLVM, and its operands.
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
    """Load a word; nothing behind it is read before."""
    if not _is_word(words, place):  # type: ignore[no-untyped-call]
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, arguments)  # type: ignore[no-untyped-call]
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(words, place), generate


@intrinsic
def _store(typing_context, words, place, value):  # type: ignore[no-untyped-def]
    """Store a word; all that was written before is seen by those who see it."""
    if not (_is_word(words, place) and words.mutable):  # type: ignore[no-untyped-call]
        return None

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, arguments)  # type: ignore[no-untyped-call]
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(words, place, types.int64), generate


@intrinsic
def _fence(typing_context):  # type: ignore[no-untyped-def]
    """Have all stores before seen by others before anything behind is loaded."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _pause(typing_context):  # type: ignore[no-untyped-def]
    """Leave the core to its other thread for a moment."""

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
    """Store a word behind all that was written before."""
    _store(words, place, value)


@njit(types.boolean(_OWN, _PLACE, types.int64, _THEIRS, _PLACE), **_OPTIONS)
def publish(words, place, value, theirs, asleep):  # type: ignore[no-untyped-def]
    """Store a word; return whether the process that waits for it is to be woken."""
    _store(words, place, value)
    _fence()
    return _load(theirs, asleep) != 0


@njit(types.void(_OWN, _PLACE), **_OPTIONS)
def lie_down(words, asleep):  # type: ignore[no-untyped-def]
    """Say that this process sleeps, before it looks for the last time.

    Either it sees then what the other one has published, or that one sees this.
    """
    _store(words, asleep, 1)
    _fence()


@njit(types.int64(_THEIRS, _PLACE, _PLACE, types.int64, types.int64), **_OPTIONS)
def spin(words, place, last, least, rounds):  # type: ignore[no-untyped-def]
    """Look at a word until it has come to a number, or another one is not 0 any more.

    Returns 1 for the one, 2 for the other, and 0 if neither comes in so many rounds.
    """
    for _ in range(rounds + 1):
        if _load(words, place) >= least:
            return 1
        if _load(words, last) != 0:
            # What was said before the last word may have come meanwhile.
            return 1 if _load(words, place) >= least else 2
        _pause()
    return 0
