"""Messages of rows: the choice of the smallest form, encoding to bytes, and decoding.

A message has the rows of each property, one property after the other; the set of rows
(a bitmap, or gaps); and, last, a code. So rows are aligned to their units in memory,
and a message without rows has no bytes at all::

    rows | bitmap, or gaps and their count | code

Properties are in the order of their units, the widest first. The code has the form, the
bits of gaps, and the number of bytes of the count. With a *wire dtype*, float32 and
float64 have 16 bits in a message (`row_loops`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import gcd, prod
from typing import Any

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
    "Arrived",
    "Chosen",
    "SendList",
    "Sending",
    "choose",
    "count_bytes",
    "decode",
    "encode",
    "row_bytes",
    "store",
]

#: "all": all vertices of the owner; "ms": the whole send list; "vr": changed rows, and
#: a bitmap over the send list; "vr-list": changed rows, and the gaps between their
#: positions; "none": no bytes, if no row changed.
FORMS = ("none", "all", "ms", "vr", "vr-list")
#: Bits of a gap. With 8 and 16 alone, messages of rows of one byte would have up to 1.6
#: times the least bytes, in place of 1.16 times (0047).
GAP_BITS = (4, 8, 12, 16, 20, 24)


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
    count = loops().list_changed(changed, link.numbers, positions)
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
    escapes = loops().count_escapes(positions)
    entries = (positions.size + escapes).tolist()
    both = zip(GAP_BITS, entries, strict=True)
    return {bits: -(-bits * entry // 8) for bits, entry in both}


#: Least bytes that are copied on several threads, and most threads: one thread copies
#: half a million rows of four bytes in 1 ms; starting eight threads takes 0.3 ms.
MANY_BYTES, MOST_THREADS = 1 << 21, 8


@dataclass(frozen=True)
class Arrived:
    """The contents of a received message.

    Attributes
    ----------
    positions : array of int32
        The changed positions of the send list, ascending.
    rows : list of array
        Their rows, by property; possibly views of the message.
    """

    positions: npt.NDArray[np.int32]
    rows: list[Array]

    @property
    def places(self) -> slice | npt.NDArray[np.int32]:
        """The positions as an index: a slice if they are 0 to count - 1."""
        count = self.positions.size
        if count == 0 or self.positions[-1] == count - 1:
            return slice(0, count)
        return self.positions


def row_bytes(arrays: Sequence[Array], wire_dtype: str | None = None) -> list[int]:
    """Return the bytes of a row of each property in a message."""
    return [
        (2 if _is_rounded(array, wire_dtype) else array.itemsize)
        * prod(array.shape[1:])
        for array in arrays
    ]


def encode(
    link: SendList,
    chosen: Chosen,
    arrays: Sequence[Array],
    message: Bytes | None = None,
    wire_dtype: str | None = None,
) -> Bytes:
    """Return the message of a chosen form.

    Parameters
    ----------
    link : SendList
        The send list.
    chosen : Chosen
        The result of `choose` for this list and the bytes of these rows.
    arrays : sequence of array
        The properties, in C order, each with the rows of the owner's vertices first.
    message : array of uint8, shape (chosen.nbytes,), optional
        The array to write to. Default: a new one.
    wire_dtype : str, optional
        See `Sending`.

    Raises
    ------
    DivergenceError
        If a finite value is too large for the wire dtype; the message is complete then.
    """
    if message is None:
        message = np.empty(chosen.nbytes, np.uint8)
    if chosen.form == "none":
        return message
    taken = chosen.positions
    if chosen.form == "ms" and taken.size < link.size:
        taken = link.every
    is_all = chosen.form == "all"
    count, end, too_large = link.own if is_all else taken.size, 0, None
    for which, begin, end in _parts(count, arrays, wire_dtype):
        if _is_rounded(arrays[which], wire_dtype):
            source = _matrix(arrays[which])
            out = message[begin:end].view(np.uint16).reshape(count, -1)
            listed = (np.arange(count),) * 2 if is_all else (link.numbers, taken)
            row = loops().round_rows(source, *listed, out, wire_dtype)
            too_large = too_large if row < 0 else (arrays[which].dtype, source[row])
            continue
        source = _units(arrays[which])
        out = message[begin:end].view(source.dtype).reshape(count, -1)
        if is_all or (taken is link.every and link.is_whole):
            out[:] = source[:count]
        else:
            _gather_rows(source, link.numbers, taken, out)
    rows_end = count * sum(row_bytes(arrays, wire_dtype))
    _write_positions(link, chosen, message[rows_end:-1])
    message[-1] = _code(chosen)
    if too_large is not None:
        raise _does_not_fit(*too_large, str(wire_dtype))
    return message


def decode(
    link: SendList,
    message: Bytes,
    like: Sequence[Array],
    wire_dtype: str | None = None,
) -> Arrived:
    """Decode a message.

    Parameters
    ----------
    link : SendList
        The send list of the sender, with the sender's row numbers.
    message : array of uint8
        The result of `encode`.
    like : sequence of array
        Arrays with the dtype and the row shape of each property.
    wire_dtype : str, optional
        The wire dtype of the sender.

    Raises
    ------
    DistributedError
        If the message does not fit this list and these properties.
    """
    row = sum(row_bytes(like, wire_dtype))
    if message.size == 0:
        return Arrived(np.empty(0, np.int32), _split(message, 0, like, wire_dtype))
    code, body = int(message[-1]), message[:-1]
    _check((code & 7) < len(FORMS), link, message)
    form, number = FORMS[code & 7], code >> 3 & 7
    if form in ("all", "ms"):
        count = link.own if form == "all" else link.size
        _check(body.size >= count * row, link, message)
        positions = link.every
        if body.size > count * row:
            positions = _read_bitmap(link, body[count * row :], message)
        return _taken(link, form, positions, _split(body, count, like, wire_dtype))
    if form == "vr":
        begin = body.size - -(-link.size // 8)
        _check(begin >= 0, link, message)
        positions = _read_bitmap(link, body[begin:], message)
        _check(begin == positions.size * row, link, message)
    else:
        end = body.size - (code >> 6) - 1
        _check(form == "vr-list" and number < len(GAP_BITS) and end > 0, link, message)
        count = int.from_bytes(body[end:].tobytes(), "little")
        _check(count <= link.size and count * row <= end, link, message)
        positions = np.empty(count, np.int32)
        data = body[count * row : end]
        ok = loops().unpack_gaps(data, GAP_BITS[number], link.size, positions)
        _check(ok, link, message)
    return Arrived(positions, _split(body, positions.size, like, wire_dtype))


def store(arrived: Arrived, arrays: Sequence[Array], first: int) -> None:
    """Store received rows in arrays, in place.

    Parameters
    ----------
    arrived : Arrived
        The result of `decode`.
    arrays : sequence of array
        The receiver's properties, in C order.
    first : int
        The row of the first ghost from this sender.
    """
    places = arrived.places
    for array, rows in zip(arrays, arrived.rows, strict=True):
        if isinstance(places, slice):
            array[first : first + places.stop] = rows
        else:
            loops().scatter_rows(_units(rows), places, first, _units(array))


def _is_rounded(array: Array, wire_dtype: str | None) -> bool:
    return wire_dtype is not None and array.dtype in (np.float32, np.float64)


def _does_not_fit(dtype: Any, row: Array, wire_dtype: str) -> DivergenceError:
    finite = row[np.isfinite(row)]
    return does_not_fit(str(dtype), str(finite[np.argmax(np.abs(finite))]), wire_dtype)


def does_not_fit(what: str, got: str, wire_dtype: str) -> DivergenceError:
    """Return the error for a finite value that is too large to be rounded."""
    return DivergenceError(
        f"a value of {what} does not fit into {wire_dtype}",
        where="wire_dtype=",
        got=got,
        expected="at most 65504" if wire_dtype == "float16" else "at most 3.39e38",
        fix="wire_dtype='bfloat16'" if wire_dtype == "float16" else "no wire_dtype",
    )


def _unit(array: Array, wire_dtype: str | None = None) -> int:
    """Return the bytes that loops copy at once: 1, 2, 4 or 8, a divisor of a row."""
    return gcd(*row_bytes([array], wire_dtype), 8)


def _matrix(array: Array) -> Array:
    """Return a view of rows as a matrix; raises ArgumentError if not in C order."""
    if not array.flags.c_contiguous:
        raise ArgumentError(
            "rows are sent from, and stored to, arrays in C order",
            got=f"strides {array.strides} of shape {array.shape}",
            fix="np.ascontiguousarray(values)",
        )
    return array.reshape(array.shape[0], prod(array.shape[1:]))


def _units(array: Array) -> Array:
    """Return a view of rows as a matrix of units."""
    unit, matrix = _unit(array), _matrix(array)
    units = matrix.reshape(-1).view(f"u{unit}")
    return units.reshape(array.shape[0], row_bytes([array])[0] // unit)


def _parts(
    count: int, arrays: Sequence[Array], wire_dtype: str | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield each property, and the byte range of its rows in a message."""
    at = 0
    bytes_of = row_bytes(arrays, wire_dtype)
    units = [_unit(array, wire_dtype) for array in arrays]
    for which in sorted(range(len(arrays)), key=lambda w: -units[w]):
        end = at + count * bytes_of[which]
        yield which, at, end
        at = end


def _split(
    body: Bytes, count: int, like: Sequence[Array], wire_dtype: str | None
) -> list[Array]:
    """Return the rows of each property: views of the message, unless rounded."""
    rows: dict[int, Array] = {}
    for which, begin, end in _parts(count, like, wire_dtype):
        part, dtype = body[begin:end], like[which].dtype
        if _is_rounded(like[which], wire_dtype):
            rows[which] = loops().widen(part.view(np.uint16), dtype, wire_dtype)
        else:
            rows[which] = part.view(dtype)
    return [rows[w].reshape(count, *like[w].shape[1:]) for w in range(len(like))]


def _taken(
    link: SendList,
    form: str,
    positions: npt.NDArray[np.int32],
    rows: list[Array],
) -> Arrived:
    """Select the changed rows of a message with all rows."""
    if form == "all":
        chosen = link.numbers[positions]
        return Arrived(positions, [np.take(r, chosen, axis=0) for r in rows])
    if positions.size < link.size:
        rows = [np.take(r, positions, axis=0) for r in rows]
    return Arrived(positions, rows)


def _code(chosen: Chosen) -> int:
    """Return the last byte of a message."""
    width = GAP_BITS.index(chosen.gap_bits) if chosen.gap_bits else 0
    count = count_bytes(chosen.positions.size) - 1 if chosen.gap_bits else 0
    return FORMS.index(chosen.form) | width << 3 | count << 6


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


def _write_positions(link: SendList, chosen: Chosen, out: Bytes) -> None:
    """Write the set of rows of a message, unless it has all of them."""
    count = chosen.positions.size
    if chosen.form == "vr-list":
        width = count_bytes(count)
        loops().pack_gaps(chosen.positions, chosen.gap_bits, out[:-width])
        out[-width:] = np.frombuffer(count.to_bytes(width, "little"), np.uint8)
    elif out.size:
        out[:] = 0
        loops().pack_bits(chosen.positions, out)


def _read_bitmap(link: SendList, data: Bytes, message: Bytes) -> npt.NDArray[np.int32]:
    _check(data.size == -(-link.size // 8), link, message)
    tail = link.size % 8
    _check(not tail or int(data[-1]) >> tail == 0, link, message)
    positions = np.empty(link.size + 1, np.int32)
    return positions[: loops().unpack_bits(data, link.size, positions)]


def _check(holds: bool, link: SendList, message: Bytes) -> None:
    if not holds:
        raise DistributedError(
            "a message of rows cannot be read",
            got=f"{message.size} bytes, of code {message[-1]}",
            expected=f"rows of a list of {link.size} vertices of {link.own}",
            fix="one send list and the same properties, in one order, on both sides; "
            "one version of featgraph on all ranks",
        )
