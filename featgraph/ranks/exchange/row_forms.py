"""The forms of a message of rows, their sizes, and the choice of the smallest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError
from featgraph.base.interrupts import import_whole

__all__ = [
    "AS_FITS",
    "FORMS",
    "GAP_BITS",
    "Chosen",
    "SendList",
    "Sending",
    "choose",
    "count_bytes",
]

#: "all": all vertices of the owner; "ms": the whole send list; "vr": changed rows, and
#: a bitmap over the send list; "vr-list": changed rows, and the gaps between their
#: positions; "none": no bytes, if no row changed.
FORMS = ("none", "all", "ms", "vr", "vr-list")
#: Bits of a gap. With 8 and 16 alone, messages of rows of one byte would have up to 1.6
#: times the least bytes, in place of 1.16 times (0047).
GAP_BITS = (4, 8, 12, 16, 20, 24)


def packing() -> Any:
    """Return the compiled loops."""
    return import_whole("featgraph.ranks.exchange.row_packing")


@dataclass(frozen=True)
class Sending:
    """The form and dtype in which a run sends rows.

    Attributes
    ----------
    exchange : str
        "auto": each message has the form with the fewest bytes; or one of `FORMS` but
        "none".
    wire_dtype : str or None
        "float16" or "bfloat16", to which reals are rounded once; None: not rounded.
    """

    exchange: str = "auto"
    wire_dtype: str | None = None


#: The default.
AS_FITS = Sending()


@dataclass(frozen=True)
class SendList:
    """The vertices of an owner that are ghosts on one rank; the same on both sides.

    Attributes
    ----------
    numbers : array of int32 or int64
        The owner's row numbers of the vertices that are ghosts on the receiver, in the
        order of these ghosts.
    own : int
        Number of vertices of the owner, numbered from 0.

    Raises
    ------
    ArgumentError
        If `numbers` has another dtype or shape, or numbers out of range.
    """

    numbers: npt.NDArray[np.integer]
    own: int

    def __post_init__(self) -> None:
        numbers = self.numbers
        if numbers.ndim != 1 or numbers.dtype not in (np.int32, np.int64):
            raise ArgumentError(
                "not a send list",
                got=f"{numbers.dtype} of shape {numbers.shape}",
                expected="one dimension of int32 or int64",
            )
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.own:
            raise ArgumentError(
                "a send list has numbers that its owner does not have",
                got=f"{numbers.min()} to {numbers.max()}",
                expected=f"0 to {self.own - 1}",
            )

    @property
    def size(self) -> int:
        """Number of vertices in the list."""
        return self.numbers.size

    @cached_property
    def is_whole(self) -> bool:
        """Whether the list has all vertices of the owner in their order."""
        return self.size == self.own and bool((self.numbers == self.every).all())

    @cached_property
    def every(self) -> npt.NDArray[np.int32]:
        """All positions: int32, shape (size,), read-only."""
        positions = np.arange(self.size, dtype=np.int32)
        positions.flags.writeable = False
        return positions


@dataclass(frozen=True)
class Chosen:
    """The form of one message.

    Attributes
    ----------
    form : str
        One of `FORMS`.
    gap_bits : int
        Bits of a gap; 0 without gaps.
    positions : array of int32
        The changed positions of the send list, ascending.
    nbytes : int
        Exact bytes of the message.
    """

    form: str
    gap_bits: int
    positions: npt.NDArray[np.int32]
    nbytes: int


def choose(
    link: SendList,
    changed: npt.NDArray[np.uint32],
    row_bytes: Sequence[int],
    form: str = "auto",
) -> Chosen:
    """Choose the form of a message.

    Parameters
    ----------
    link : SendList
        The send list.
    changed : array of uint32
        A bitvector over the owner's vertices: those whose rows changed.
    row_bytes : sequence of int
        Bytes of a row of each property that is sent.
    form : str
        "auto": the form with the fewest bytes; or one of `FORMS` but "none". If no row
        changed, the form is "none" unless "all" or "ms" is given.

    Raises
    ------
    ArgumentError
        If `form` is unknown, or `changed` is no such bitvector.
    """
    if form not in ("auto", *FORMS[1:]):
        expected = ", ".join(("auto", *FORMS[1:]))
        raise ArgumentError("no form of rows", got=repr(form), expected=expected)
    if changed.dtype != np.uint32 or changed.size * 32 < link.own:
        raise ArgumentError(
            "not a bitvector over the owner's vertices",
            got=f"{changed.size} words of {changed.dtype}",
            expected=f"{-(-link.own // 32)} of uint32",
        )
    if form == "auto" and link.size and _is_full(changed, link.own):
        # The whole list without a bitmap is never larger than other forms.
        return Chosen("ms", 0, link.every, link.size * sum(row_bytes) + 1)
    positions = np.empty(link.size + 1, np.int32)
    count = packing().list_changed(changed, link.numbers, positions)
    positions = positions[:count]
    if (count == 0 and form not in ("all", "ms")) or link.size == 0:
        return Chosen("none", 0, positions, 0)
    row = sum(row_bytes)
    sizes = _list_bytes(positions, link.size) if form in ("auto", "vr-list") else {}
    listed = min(sizes, key=lambda bits: sizes[bits]) if sizes else 0
    body = {
        "all": link.own * row + _bitmap_bytes(link, count),
        "ms": link.size * row + _bitmap_bytes(link, count),
        "vr": count * row + -(-link.size // 8),
    }
    if listed:
        body["vr-list"] = count * row + count_bytes(count) + sizes[listed]
    taken = form
    if form == "auto":
        taken = min(("ms", "vr", "vr-list"), key=lambda f: body.get(f, np.inf))
    bits = listed if taken == "vr-list" else 0
    return Chosen(taken, bits, positions, body[taken] + 1)


def count_bytes(count: int) -> int:
    """Return the number of bytes of a count, at least 1."""
    return max(1, -(-int(count).bit_length() // 8))


def _is_full(changed: npt.NDArray[np.uint32], own: int) -> bool:
    """Whether a bitvector has all of the first `own` vertices."""
    words, rest = divmod(own, 32)
    tail = (1 << rest) - 1
    return bool((changed[:words] == 0xFFFFFFFF).all()) and (
        not rest or int(changed[words]) & tail == tail
    )


def _bitmap_bytes(link: SendList, count: int) -> int:
    return 0 if count == link.size else -(-link.size // 8)


def _list_bytes(positions: npt.NDArray[np.int32], size: int) -> dict[int, int]:
    """Return the bytes of all gaps, by bits of a gap."""
    escapes = packing().count_escapes(positions)
    entries = (positions.size + escapes).tolist()
    both = zip(GAP_BITS, entries, strict=True)
    return {bits: -(-bits * entry // 8) for bits, entry in both}
