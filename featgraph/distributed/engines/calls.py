"""What a rank calls, as ranks compare it, and what they raise where it differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from featgraph.distributed.engines.protocol import Array
from featgraph.errors import ArgumentError, RankMismatchError

__all__ = ["Call", "lent", "mismatch", "ragged", "whole"]

#: Booleans, integers, real and complex numbers: what is bytes on every machine.
KINDS = "biufc"


@dataclass(frozen=True)
class Call:
    """A call that all ranks make together.

    Attributes
    ----------
    number : int
        How many calls the rank had made, this one included.
    text : str
        The call with what must agree: operator, root, dtype, sizes.
    about : str
        What the caller says that it is for.
    given : str
        What the rank has been given since the call before, and must agree, too.
    """

    number: int
    text: str
    about: str = ""
    given: str = ""

    def __str__(self) -> str:
        about = f", for {self.about}" if self.about else ""
        given = f", given {self.given}" if self.given else ""
        return f"{self.text}, its exchange {self.number}{about}{given}"


def lent(array: Array) -> Array:
    """Return an array as its bytes are sent: native and in C order, else copied."""
    found = np.asarray(array)
    if found.dtype.kind not in KINDS:
        raise ArgumentError(
            "ranks exchange arrays of booleans and numbers only",
            got=f"dtype {found.dtype}",
        )
    return np.asarray(found, found.dtype.newbyteorder("="), order="C")


def whole(array: Array) -> str:
    """Describe an array whose sizes must all agree."""
    return f"{array.dtype}{list(array.shape)}"


def ragged(array: Array) -> str:
    """Describe an array whose first size is its own."""
    if array.ndim == 0 or 0 in array.shape[1:]:
        raise ArgumentError(
            "an array has no rows that could be counted",
            got=f"shape {array.shape}",
            expected="one dimension or more, none but the first of size 0",
            fix="array.reshape(1) of a single value",
        )
    sizes = ", ".join(["*", *map(str, array.shape[1:])])
    return f"{array.dtype}[{sizes}]"


def mismatch(
    calls: Mapping[int, Call], ended: Mapping[int, int]
) -> RankMismatchError | None:
    """Return what is wrong where ranks do not make one call together.

    Parameters
    ----------
    calls : mapping
        What each rank calls.
    ended : mapping
        Of ranks that have come to their end, how many exchanges they had.
    """
    rank, call = min(calls.items())
    if ended:
        other, count = min(ended.items())
        got = f"has come to its end, after {count} exchanges"
    else:
        different = [r for r in sorted(calls) if calls[r] != call]
        if not different:
            return None
        other = different[0]
        if replace(calls[other], given=call.given) == call:
            one, two = _different(call.given, calls[other].given)
            return RankMismatchError(
                f"ranks {rank} and {other} were given different values",
                got=f"rank {rank}: {one}; rank {other}: {two}",
                expected="the same scalars and arrays on every rank",
                fix="let no argument differ between ranks, and give seeds to random "
                "numbers",
            )
        got = f"calls {calls[other]}"
    return RankMismatchError(
        f"ranks {rank} and {other} went different ways",
        got=f"rank {rank} calls {call}; rank {other} {got}",
        expected="the same calls in the same order on every rank",
        fix="let nothing that differs between ranks decide what is called: not the "
        "rank, nor what only this rank has, nor a clock",
    )


def _different(one: str, other: str) -> tuple[str, str]:
    """Return what two ranks were given at the first place where that differs."""
    pairs = zip_longest(one.split("; "), other.split("; "), fillvalue="nothing")
    return next((a, b) for a, b in pairs if a != b)
