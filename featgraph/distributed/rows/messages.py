"""Rows of several properties as one message of bytes, and back.

A message has the rows of each property, one property behind the other; which rows they
are (a bitmap, or gaps); and, last, its form. So rows begin at multiples of their units
in memory, and a message without rows has no bytes at all::

    rows | bitmap, or gaps and their count | code

Properties stand in the order of their units, the widest first. The code says the form,
the width of gaps, and how many bytes the count has. With a *wire dtype*, float32 and
float64 have 16 bits in a message (`rounding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._interrupts import import_whole
from featgraph.distributed.engines.messages import Bytes
from featgraph.distributed.engines.protocol import Array
from featgraph.distributed.rows.forms import (
    FORMS,
    GAP_BITS,
    Chosen,
    SendList,
    count_bytes,
    packing,
)
from featgraph.errors import ArgumentError, DistributedError, DivergenceError

__all__ = ["Arrived", "decode", "encode", "row_bytes", "store"]

#: Rows of so many bytes are copied on several threads, at most so many: one takes a
#: millisecond for half a million rows of four bytes, and to start eight a third of one.
MANY_BYTES, MOST_THREADS = 1 << 21, 8


@dataclass(frozen=True)
class Arrived:
    """What a message brought.

    Attributes
    ----------
    positions : array of int32
        Which ghosts of the sender's changed, ascending.
    rows : list of array
        Their rows, by property. They may be memory of the message.
    """

    positions: npt.NDArray[np.int32]
    rows: list[Array]

    @property
    def places(self) -> slice | npt.NDArray[np.int32]:
        """The positions as an index: a slice where they are all from the first on."""
        count = self.positions.size
        if count == 0 or self.positions[-1] == count - 1:
            return slice(0, count)
        return self.positions


def row_bytes(arrays: Sequence[Array], wire_dtype: str | None = None) -> list[int]:
    """Return the bytes of a row of each property, in a message."""
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
    """Return the message of a form that was chosen.

    Parameters
    ----------
    link : SendList
        What may be sent.
    chosen : Chosen
        As `choose` returned it for this link and the bytes of these rows.
    arrays : sequence of array
        The properties, in C order, each with the rows of the owner's vertices first.
    message : array of uint8, optional
        Where to write it, of as many bytes as were chosen.
    wire_dtype : str, optional
        As `Sending` has it.

    Raises
    ------
    DivergenceError
        If a finite value is too large for the wire dtype; the message is whole then.
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
            row = rounding().round_rows(source, *listed, out, wire_dtype)
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
    """Return what a message brought.

    Parameters
    ----------
    link : SendList
        That of the sender, with the sender's numbers.
    message : array of uint8
        What `encode` returned.
    like : sequence of array
        Arrays of the dtype and the shape of rows of each property.
    wire_dtype : str, optional
        That of the sender.

    Raises
    ------
    DistributedError
        Where the message is none of this link and these properties.
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
        ok = packing().unpack_gaps(data, GAP_BITS[number], link.size, positions)
        _check(ok, link, message)
    return Arrived(positions, _split(body, positions.size, like, wire_dtype))


def store(arrived: Arrived, arrays: Sequence[Array], first: int) -> None:
    """Write the rows that arrived into arrays, in place.

    Parameters
    ----------
    arrived : Arrived
        What `decode` returned.
    arrays : sequence of array
        The receiver's properties, in C order.
    first : int
        Where the sender's ghosts begin among their rows.
    """
    places = arrived.places
    for array, rows in zip(arrays, arrived.rows, strict=True):
        if isinstance(places, slice):
            array[first : first + places.stop] = rows
        else:
            packing().scatter_rows(_units(rows), places, first, _units(array))


def rounding() -> Any:
    """Return the compiled loops that round."""
    return import_whole("featgraph.distributed.rows.rounding")


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
    """Return the bytes that a row is a multiple of: what loops copy at once."""
    return gcd(*row_bytes([array], wire_dtype), 8)


def _matrix(array: Array) -> Array:
    """Return rows as a matrix, without a copy."""
    if not array.flags.c_contiguous:
        raise ArgumentError(
            "rows are sent from, and stored to, arrays in C order",
            got=f"strides {array.strides} of shape {array.shape}",
            fix="np.ascontiguousarray(values)",
        )
    return array.reshape(array.shape[0], prod(array.shape[1:]))


def _units(array: Array) -> Array:
    """Return rows as a matrix of units, without a copy."""
    unit, matrix = _unit(array), _matrix(array)
    units = matrix.reshape(-1).view(f"u{unit}")
    return units.reshape(array.shape[0], row_bytes([array])[0] // unit)


def _parts(
    count: int, arrays: Sequence[Array], wire_dtype: str | None = None
) -> Iterator[tuple[int, int, int]]:
    """Give each property, and where so many rows of it begin and end."""
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
    """Return the rows of each property, as memory of the message if not rounded."""
    rows: dict[int, Array] = {}
    for which, begin, end in _parts(count, like, wire_dtype):
        part, dtype = body[begin:end], like[which].dtype
        if _is_rounded(like[which], wire_dtype):
            rows[which] = rounding().widen(part.view(np.uint16), dtype, wire_dtype)
        else:
            rows[which] = part.view(dtype)
    return [rows[w].reshape(count, *like[w].shape[1:]) for w in range(len(like))]


def _taken(
    link: SendList,
    form: str,
    positions: npt.NDArray[np.int32],
    rows: list[Array],
) -> Arrived:
    """Take the rows that changed of all that came."""
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
    """Copy the rows of the numbers at positions one behind the other."""
    gather = packing().gather_rows
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
    """Write which rows a message has, where that is not all of them."""
    count = chosen.positions.size
    if chosen.form == "vr-list":
        width = count_bytes(count)
        packing().pack_gaps(chosen.positions, chosen.gap_bits, out[:-width])
        out[-width:] = np.frombuffer(count.to_bytes(width, "little"), np.uint8)
    elif out.size:
        out[:] = 0
        packing().pack_bits(chosen.positions, out)


def _read_bitmap(link: SendList, data: Bytes, message: Bytes) -> npt.NDArray[np.int32]:
    _check(data.size == -(-link.size // 8), link, message)
    tail = link.size % 8
    _check(not tail or int(data[-1]) >> tail == 0, link, message)
    positions = np.empty(link.size + 1, np.int32)
    return positions[: packing().unpack_bits(data, link.size, positions)]


def _check(holds: bool, link: SendList, message: Bytes) -> None:
    if not holds:
        raise DistributedError(
            "a message of rows cannot be read",
            got=f"{message.size} bytes, of code {message[-1]}",
            expected=f"rows of a list of {link.size} vertices of {link.own}",
            fix="one send list and the same properties, in one order, on both sides; "
            "one version of featgraph on all ranks",
        )
