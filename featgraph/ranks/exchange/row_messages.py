"""Messages of rows: the choice of the smallest form, encoding to bytes, and decoding.

`choose` selects the form of a message, `encode` writes it on the sender, `decode` reads
it on the receiver, and `store` stores its rows. A `Packing` is the layout of the rows
of some properties in a message. It is computed once for their dtypes and shapes.

A message has the rows of each property, one property after the other; the set of rows
(a bitmap, or gaps); and, last, a code. So rows are aligned to their units in memory,
and a message without rows has no bytes at all::

    rows | bitmap, or gaps and their count | code

Properties are in the order of their units, the widest first. The code has the form, the
bits of gaps, and the number of bytes of the count. With a *wire dtype*, float32 and
float64 have 16 bits in a message (`row_loops`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import pairwise
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError, DistributedError, DivergenceError
from featgraph.base.interrupts import import_whole
from featgraph.ranks.engines.messages import Bytes
from featgraph.ranks.engines.protocol import Array

__all__ = [
    "AS_FITS",
    "FORMS",
    "GAP_BITS",
    "NOT_SENT",
    "Arrived",
    "SendList",
    "Sending",
    "choose",
    "decode",
    "encode",
    "packing_of",
    "store",
]

#: "all": all vertices of the owner; "ms": the whole send list; "vr": changed rows, and
#: a bitmap over the send list; "vr-list": changed rows, and the gaps between their
#: positions; "none": no bytes, if no row changed.
FORMS = ("none", "all", "ms", "vr", "vr-list")
#: By the three bits of a code; "" for those that no sender writes.
_FORM_OF = (*FORMS, "", "", "")
#: Bits of a gap. With 8 and 16 alone, messages of rows of one byte would have up to 1.6
#: times the least bytes, in place of 1.16 times (0047).
GAP_BITS = (4, 8, 12, 16, 20, 24)
_GAP_BITS = np.array(GAP_BITS)


@cache
def loops() -> Any:
    """Return the compiled loops."""
    return import_whole("featgraph.ranks.exchange.row_loops")


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


#: The default: each message has the form with the fewest bytes, and full precision.
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

    def __getitem__(self, some: slice) -> SendList:
        """Return a range of the list."""
        return SendList(self.numbers[some], self.own)

    @classmethod
    def whole(cls, count: int) -> SendList:
        """Return the list of all rows of an owner."""
        return cls(np.arange(count, dtype=np.int32), count)

    @cached_property
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

    def changed(self, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
        """Return the positions whose vertices are in a set: int32, ascending.

        Parameters
        ----------
        words : array of uint32
            A bitvector over the owner's vertices.

        Raises
        ------
        ArgumentError
            If `words` is no such bitvector.
        """
        if words.dtype != np.uint32 or words.size * 32 < self.own:
            raise ArgumentError(
                "not a bitvector over the owner's vertices",
                got=f"{words.size} words of {words.dtype}",
                expected=f"{-(-self.own // 32)} of uint32",
            )
        # Without a look at each listed vertex if all vertices are in the set.
        whole, rest = divmod(self.own, 32)
        tail = (1 << rest) - 1
        if (words[:whole] == 0xFFFFFFFF).all() and (
            not rest or int(words[whole]) & tail == tail
        ):
            return self.every
        positions = np.empty(self.size + 1, np.int32)
        return positions[: loops().list_changed(words, self.numbers, positions)]


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
    link: SendList, positions: npt.NDArray[np.int32], row: int, form: str = "auto"
) -> Chosen:
    """Choose the form of a message.

    Parameters
    ----------
    link : SendList
        The send list.
    positions : array of int32
        The changed positions of the list, ascending.
    row : int
        Bytes of a row of all properties that are sent: see `Packing`.
    form : str
        "auto": the form with the fewest bytes; or one of `FORMS` but "none". If no row
        changed, the form is "none" unless "all" or "ms" is given.

    Raises
    ------
    ArgumentError
        If `form` is unknown.
    """
    if form not in ("auto", *FORMS[1:]):
        expected = ", ".join(("auto", *FORMS[1:]))
        raise ArgumentError("unknown form of rows", got=repr(form), expected=expected)
    size, count = link.size, positions.size
    if size == 0 or (count == 0 and form not in ("all", "ms")):
        return NOT_SENT
    if form == "auto" and count == size:
        # The whole list without a bitmap is never larger than other forms.
        return Chosen("ms", 0, positions, size * row + 1)
    bitmap = -(-size // 8)
    behind = 0 if count == size else bitmap
    body, bits = {"ms": size * row + behind, "vr": count * row + bitmap}, 0
    if form == "all":
        body["all"] = link.own * row + behind
    if form in ("auto", "vr-list"):
        entries = count + loops().count_escapes(positions)
        sizes = -(-_GAP_BITS * entries // 8)
        least = int(sizes.argmin())
        bits = GAP_BITS[least]
        body["vr-list"] = count * row + count_bytes(count) + int(sizes[least])
    taken = min(body, key=body.__getitem__) if form == "auto" else form
    return Chosen(taken, bits if taken == "vr-list" else 0, positions, body[taken] + 1)


#: The message without bytes.
NOT_SENT = Chosen("none", 0, np.empty(0, np.int32), 0)


def count_bytes(count: int) -> int:
    """Return the number of bytes of a count, at least 1."""
    return max(1, -(-int(count).bit_length() // 8))


#: Least bytes that are copied on several threads, and most threads: one thread copies
#: half a million rows of four bytes in 1 ms; starting eight threads takes 0.3 ms.
MANY_BYTES, MOST_THREADS = 1 << 21, 8


class _Part(NamedTuple):
    """The rows of one property in a message.

    Attributes
    ----------
    which : int
        Its index among the properties.
    row : int
        Bytes of a row in the message.
    unit : dtype
        Unsigned integers by which loops copy its rows.
    is_rounded : bool
        Whether its reals have 16 bits in the message.
    dtype : dtype
    shape : tuple of int
        Of a row in memory.
    """

    which: int
    row: int
    unit: np.dtype[Any]
    is_rounded: bool
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Packing:
    """The layout of the rows of some properties in a message.

    Attributes
    ----------
    parts : tuple of _Part
        The properties, those with the widest units first.
    row : int
        Bytes of a row of all properties.
    wire_dtype : str or None
        See `Sending`.
    """

    parts: tuple[_Part, ...]
    row: int
    wire_dtype: str | None

    def split(self, body: Bytes, count: int) -> list[Array]:
        """Return `count` rows of each property: views of a message, unless rounded."""
        rows, end = [body] * len(self.parts), 0
        for which, row, _, is_rounded, dtype, shape in self.parts:
            begin, end = end, end + count * row
            found = body[begin:end].view(np.uint16 if is_rounded else dtype)
            if is_rounded:
                found = loops().widen(found, dtype, self.wire_dtype)
            rows[which] = found.reshape(count, *shape)
        return rows


def packing_of(arrays: Sequence[Array], wire_dtype: str | None = None) -> Packing:
    """Return the layout of rows of arrays, the properties that are sent together."""
    return _packing(tuple([(one.dtype, one.shape[1:]) for one in arrays]), wire_dtype)


# Supersteps send the same properties again.
@lru_cache(maxsize=256)
def _packing(
    rows: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...], wire_dtype: str | None
) -> Packing:
    parts, widths = [], []
    for which, (dtype, shape) in enumerate(rows):
        is_rounded = wire_dtype is not None and dtype in (np.float32, np.float64)
        row = (2 if is_rounded else dtype.itemsize) * prod(shape)
        unit = np.dtype(f"u{gcd(dtype.itemsize * prod(shape), 8)}")
        parts.append(_Part(which, row, unit, is_rounded, dtype, shape))
        widths.append(gcd(row, 8))
    parts.sort(key=lambda part: -widths[part.which])
    return Packing(tuple(parts), sum(part.row for part in parts), wire_dtype)


@dataclass(frozen=True)
class Arrived:
    """The contents of a received message.

    Attributes
    ----------
    positions : array of int32
        The changed positions of the send list, ascending.
    rows : list of array
        Their rows, by property; possibly views of the message.
    packing : Packing
        Of the message.
    """

    positions: npt.NDArray[np.int32]
    rows: list[Array]
    packing: Packing

    @cached_property
    def places(self) -> slice | npt.NDArray[np.int32]:
        """The positions as an index: a slice if they are 0 to count - 1."""
        count = self.positions.size
        # Positions ascend: if the last one is count - 1, all before it are listed.
        if count == 0 or self.positions[-1] == count - 1:
            return slice(0, count)
        return self.positions


def encode(
    link: SendList,
    chosen: Chosen,
    packing: Packing,
    arrays: Sequence[Array],
    message: Bytes | None = None,
) -> Bytes:
    """Return the message of a chosen form.

    Parameters
    ----------
    link : SendList
        The send list.
    chosen : Chosen
        The result of `choose` for this list and the rows of this packing.
    packing : Packing
    arrays : sequence of array
        The properties, in C order, each with the rows of the owner's vertices first.
    message : array of uint8, shape (chosen.nbytes,), optional
        The array to write to. Default: a new one.

    Raises
    ------
    DivergenceError
        If a finite value is too large for the wire dtype; the message is complete then.
    """
    if message is None:
        message = np.empty(chosen.nbytes, np.uint8)
    if chosen.form == "none":
        return message
    is_all, taken = chosen.form == "all", chosen.positions
    if chosen.form == "ms":
        taken = link.every
    has_whole_range = is_all or (taken is link.every and link.is_whole)
    count, end, too_large = link.own if is_all else taken.size, 0, None
    for which, row, unit, is_rounded, dtype, _ in packing.parts:
        begin, end = end, end + count * row
        source = _matrix(arrays[which], dtype if is_rounded else unit)
        out = message[begin:end].view(np.uint16 if is_rounded else unit)
        out = out.reshape(count, source.shape[1])
        if is_rounded:
            listed = (np.arange(count),) * 2 if is_all else (link.numbers, taken)
            large = loops().round_rows(source, *listed, out, packing.wire_dtype)
            too_large = too_large if large < 0 else (str(dtype), source[large])
        elif has_whole_range:
            out[:] = source[:count]
        else:
            _gather_rows(source, link.numbers, taken, out)
    _write_positions(chosen, message[end:])
    if too_large is not None:
        what, row = too_large
        value = max(row[np.isfinite(row)], key=abs)
        raise does_not_fit(what, str(value), str(packing.wire_dtype))
    return message


def decode(link: SendList, message: Bytes, packing: Packing) -> Arrived:
    """Decode a message.

    Parameters
    ----------
    link : SendList
        The send list of the sender, with the sender's row numbers.
    message : array of uint8
        The result of `encode`.
    packing : Packing
        That of the sender.

    Raises
    ------
    DistributedError
        If the message does not fit this list and these properties.
    """
    if message.size == 0:
        return Arrived(NOT_SENT.positions, packing.split(message, 0), packing)
    code, body, row = int(message[-1]), message[:-1], packing.row
    form, number = _FORM_OF[code & 7], code >> 3 & 7
    if form in ("all", "ms"):
        count = link.own if form == "all" else link.size
        if body.size < count * row:
            raise _unreadable(link, message)
        positions = link.every
        if body.size > count * row:
            positions = _read_bitmap(link, body[count * row :], message)
        rows = packing.split(body, count)
        if form == "all" or positions.size < link.size:
            chosen = link.numbers[positions] if form == "all" else positions
            rows = [np.take(one, chosen, axis=0) for one in rows]
        return Arrived(positions, rows, packing)
    if form == "vr":
        end = body.size - -(-link.size // 8)
        positions = _read_bitmap(link, body[max(end, 0) :], message)
        is_whole = end == positions.size * row
    else:
        end = body.size - (code >> 6) - 1
        if form != "vr-list" or number >= len(GAP_BITS) or end <= 0:
            raise _unreadable(link, message)
        count = int.from_bytes(body[end:].tobytes(), "little")
        if count > link.size or count * row > end:
            raise _unreadable(link, message)
        positions, data = np.empty(count, np.int32), body[count * row : end]
        bits = GAP_BITS[number]
        is_whole = loops().unpack_gaps(data, bits, link.size, positions)
    if not is_whole:
        raise _unreadable(link, message)
    return Arrived(positions, packing.split(body, positions.size), packing)


def store(arrived: Arrived, arrays: Sequence[Array | None], first: int) -> None:
    """Store received rows in arrays, in place.

    Parameters
    ----------
    arrived : Arrived
        The result of `decode`.
    arrays : sequence of array or None
        The receiver's properties, in C order; None for those that it does not store.
    first : int
        The row of the first ghost from this sender.
    """
    places = arrived.places
    for which, _, unit, *_ in arrived.packing.parts:
        rows, array = arrived.rows[which], arrays[which]
        if array is None:
            continue
        if isinstance(places, slice):
            array[first : first + places.stop] = rows
        else:
            units = _matrix(rows, unit), places, first, _matrix(array, unit)
            loops().scatter_rows(*units)


def does_not_fit(what: str, got: str, wire_dtype: str) -> DivergenceError:
    """Return the error for a finite value that is too large to be rounded."""
    return DivergenceError(
        f"a value of {what} does not fit into {wire_dtype}",
        where="wire_dtype=",
        got=got,
        expected="at most 65504" if wire_dtype == "float16" else "at most 3.39e38",
        fix="wire_dtype='bfloat16'" if wire_dtype == "float16" else "no wire_dtype",
    )


def _matrix(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return a view of rows as a matrix of another dtype.

    Raises
    ------
    ArgumentError
        If the array is not in C order.
    """
    if not array.flags.c_contiguous:
        raise ArgumentError(
            "rows are sent from, and stored to, arrays in C order",
            got=f"strides {array.strides} of shape {array.shape}",
            fix="np.ascontiguousarray(values)",
        )
    row = array.itemsize * prod(array.shape[1:])
    return array.reshape(-1).view(dtype).reshape(len(array), row // dtype.itemsize)


def _gather_rows(source: Array, numbers: Array, taken: Array, out: Array) -> None:
    """Copy the rows ``source[numbers[taken]]`` to `out`, on several threads if many."""
    gather = loops().gather_rows
    threads = 1
    if out.nbytes >= MANY_BYTES:
        threads = min(import_whole("numba").get_num_threads(), MOST_THREADS)
    if threads == 1:
        gather(source, numbers, taken, out)
        return
    cuts = [len(taken) * part // threads for part in range(threads + 1)]
    with ThreadPoolExecutor(threads, "featgraph-rows") as pool:
        done = [
            pool.submit(gather, source, numbers, taken[begin:end], out[begin:end])
            for begin, end in pairwise(cuts)
        ]
    for one in done:
        one.result()


def _write_positions(chosen: Chosen, out: Bytes) -> None:
    """Write the set of rows of a message, unless it has all of them, and its code."""
    count, code = chosen.positions.size, FORMS.index(chosen.form)
    if chosen.form == "vr-list":
        width = count_bytes(count)
        code |= GAP_BITS.index(chosen.gap_bits) << 3 | width - 1 << 6
        loops().pack_gaps(chosen.positions, chosen.gap_bits, out[: -width - 1])
        out[-width - 1 : -1] = np.frombuffer(count.to_bytes(width, "little"), np.uint8)
    elif out.size > 1:
        out[:-1] = 0
        loops().pack_bits(chosen.positions, out)
    out[-1] = code


def _read_bitmap(link: SendList, data: Bytes, message: Bytes) -> npt.NDArray[np.int32]:
    tail = link.size % 8
    if data.size != -(-link.size // 8) or (tail and int(data[-1]) >> tail):
        raise _unreadable(link, message)
    positions = np.empty(link.size + 1, np.int32)
    return positions[: loops().unpack_bits(data, link.size, positions)]


def _unreadable(link: SendList, message: Bytes) -> DistributedError:
    return DistributedError(
        "a message of rows cannot be read",
        got=f"{message.size} bytes, of code {message[-1]}",
        expected=f"rows of a list of {link.size} vertices of {link.own}",
        fix="one send list and the same properties, in one order, on both sides; "
        "one version of featgraph on all ranks",
    )
