"""Descriptions of collective calls, which ranks compare before they exchange data.

`Call` names one call of one rank; `mismatch` makes the error that all ranks raise where
their calls differ. `whole` and `ragged` describe arrays, `sendable` prepares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from featgraph.base.errors import ArgumentError, RankMismatchError
from featgraph.ranks.engines.protocol import Array

__all__ = ["Call", "mismatch", "ragged", "sendable", "whole"]

#: Booleans, integers, real and complex numbers.
KINDS = "biufc"


class Call(NamedTuple):
    """A call that all ranks make together.

    Attributes
    ----------
    number : int
        The number of calls the rank had made, this one included.
    text : str
        The call with what must agree: operator, root, dtype, sizes.
    about : str
        The purpose, in the caller's words.
    given : str
        The arguments of the rank since the call before; they must agree, too.
    """

    number: int
    text: str
    about: str = ""
    given: str = ""

    def __str__(self) -> str:
        about = f", for {self.about}" if self.about else ""
        given = f", given {self.given}" if self.given else ""
        return f"{self.text}, its exchange {self.number}{about}{given}"


def sendable(array: Array) -> Array:
    """Return an array in native byte order and C order, copied only if it is not."""
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
    """Describe an array whose first size may differ between ranks."""
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
    """Return the error for ranks whose calls differ; None if all make the same call.

    Parameters
    ----------
    calls : mapping
        The call of each rank that makes one.
    ended : mapping
        The number of exchanges of each rank that has ended.
    """
    does: dict[Call | None, list[int]] = {}
    for rank in sorted({*calls, *ended}):
        # All ranks that have ended are in one group, whatever they had called before.
        does.setdefault(None if rank in ended else calls[rank], []).append(rank)
    if len(does) == 1:
        return None
    # The largest group is taken as right; of equal ones, that of the lowest rank.
    groups = sorted(does.items(), key=lambda group: (-len(group[1]), group[1][0]))
    (known, ranks), *others = groups
    culprit = min(other for _, group in others for other in group)
    if known is not None and not ended:
        call = next(call for call, group in others if culprit in group)
        if call is not None and call._replace(given=known.given) == known:
            one, two = _different(known.given, call.given)
            return RankMismatchError(
                f"ranks {ranks[0]} and {culprit} were given different values",
                rank=culprit,
                got=f"rank {ranks[0]}: {one}; rank {culprit}: {two}",
                expected="the same scalars and arrays on every rank",
                fix="pass the same arguments on all ranks, and seeds of random numbers",
            )
    wrong = sorted(other for _, group in others for other in group)
    return RankMismatchError(
        f"{_named(wrong)} went another way than {_named(ranks)}",
        rank=culprit,
        got="; ".join(_clause(call, group, ended) for call, group in groups),
        expected="the same calls in the same order on every rank",
        fix="make the same calls on all ranks: no condition may depend on the rank, "
        "its own data or a clock",
    )


#: At most so many ranks are listed in an error; others are counted.
_MOST_NAMED = 6


def _named(ranks: Sequence[int]) -> str:
    """Return the ranks' numbers as a phrase; of many, the first ones and a count."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MOST_NAMED:
        some = ", ".join(map(str, ranks[: _MOST_NAMED - 1]))
        return f"ranks {some} and {len(ranks) - _MOST_NAMED + 1} others"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _clause(call: Call | None, ranks: Sequence[int], ended: Mapping[int, int]) -> str:
    """Return a clause with the call that ranks make, or with their end."""
    is_one = len(ranks) == 1
    if call is not None:
        return f"{_named(ranks)} {'calls' if is_one else 'call'} {call}"
    counts = sorted({ended[rank] for rank in ranks})
    count = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
    has, end = ("has", "its") if is_one else ("have", "their")
    return f"{_named(ranks)} {has} come to {end} end, after {count} exchanges"


def _different(one: str, other: str) -> tuple[str, str]:
    """Return the first pair of arguments that differ between two ranks."""
    pairs = zip_longest(one.split("; "), other.split("; "), fillvalue="nothing")
    return next((a, b) for a, b in pairs if a != b)
