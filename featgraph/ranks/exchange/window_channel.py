"""Rows, sets and numbers sent through windows of GPUs, and counters of stored bytes.

A `Channel` posts rows of vertices and their sets to all ranks, and takes theirs: it
launches the kernels of `window_kernels`. Combines of numbers are deferred until the
next post of their channel, which sends them all (`WindowNumbers`). Kernels count the
bytes that they have stored in the windows of other ranks (`StoredBytes`, 0077).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph.cuda.driver import address_of
from featgraph.cuda.values import DeviceValues
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange import window_kernels as kernels
from featgraph.ranks.exchange.gpu_messages import BLOCK, Listed, as_rows
from featgraph.ranks.exchange.gpu_row_copies import OPERATIONS
from featgraph.ranks.exchange.row_messages import AS_FITS, Sending
from featgraph.ranks.exchange.window_kernels import KINDS
from featgraph.ranks.exchange.windows import Mailboxes
from featgraph.runtime.devices.protocol import Device

__all__ = ["MOST_NUMBERS", "Channel", "Part", "Posted", "WindowNumbers"]

Array = Any
#: Most bytes of a result combined on the device, which one block does; larger ones go
#: through the host (0055).
MOST_NUMBERS = 1 << 16
#: Most tables of arrays that are kept.
_MOST_TABLES = 64
#: Alignment of numbers in a slot, in bytes.
_ALIGNMENT = 16
_OPERATORS = ("sum", "product", "min", "max")


class NumbersSent(NamedTuple):
    """The numbers of one exchange.

    Attributes
    ----------
    table : array of int64
        See `window_kernels`.
    arrays : int
        Number of arrays.
    room : int
        Their bytes in a slot.
    """

    table: Array
    arrays: int
    room: int


class WindowNumbers:
    """Arrays whose combine over all ranks is deferred until the next post.

    Parameters
    ----------
    device : CudaDevice
    own : int
        Number of vertices that this rank owns, the first ones of a set.
    beside : WindowNumbers, optional
        Numbers of another channel of the rank, whose notes and counters are shared.

    Attributes
    ----------
    own : int64
        Number of own vertices.
    notes : array of int64
        Values that kernels set for the host: see `window_kernels`.
    total : array of int64
        The device's count for the current thread of the host.
    """

    def __init__(
        self, device: Device, own: int = 0, beside: WindowNumbers | None = None
    ) -> None:
        self.own = np.int64(own)
        self.notes: Array = (
            device.upload(np.zeros(3, np.int64)) if beside is None else beside.notes
        )
        self._device, self._beside = device, beside
        self._stored: StoredBytes | None = None
        self._waiting: list[tuple[Array, int, int]] = []
        self._behind: list[Callable[[], None]] = []
        self._table = lru_cache(_MOST_TABLES)(partial(_table_of_numbers, device))
        self._as_bytes: weakref.WeakKeyDictionary[Array, Array] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def total(self) -> Array:
        """The device's count for the current thread of the host: int64, on the GPU."""
        return self._device.own.total  # type: ignore[attr-defined]

    def stored(self, ranks: int) -> StoredBytes:
        """Return the counters of the bytes that kernels store at other ranks."""
        if self._beside is not None:
            return self._beside.stored(ranks)
        if self._stored is None:
            self._stored = StoredBytes(self._device, ranks)
        return self._stored

    @property
    def has_deferred(self) -> bool:
        """Whether any combine is deferred."""
        return bool(self._waiting)

    def can_combine(self, array: Array, operator: str) -> bool:
        """Whether a one-dimensional array can be combined on the device."""
        size = array.size * array.dtype.itemsize
        if array.dtype == np.bool_:
            return operator in {"or", "and"} and 0 < size <= MOST_NUMBERS
        is_known = operator in _OPERATORS and array.dtype.name in KINDS
        return is_known and 0 < size <= MOST_NUMBERS

    def add(
        self,
        array: Array,
        operator: str,
        count: int | None = None,
        behind: Callable[[], None] | None = None,
    ) -> None:
        """Defer the in-place combine of the first `count` entries; default all.

        `behind` is called after the exchange that combines them.
        """
        if behind is not None:
            self._behind.append(behind)
        if array.dtype == np.bool_:
            # Kernels combine bytes of 0 and 1.
            operator = {"or": "max", "and": "min"}[operator]
            flags = self._as_bytes.get(array)
            if flags is None:
                self._as_bytes[array] = flags = array.view(np.uint8)
            array = flags
        entries = int(array.size) if count is None else count
        self._waiting.append((array, entries, _OPERATORS.index(operator)))

    def forget(self) -> None:
        """Drop all deferred combines."""
        self._waiting.clear()
        self._behind.clear()

    def take_behind(self) -> Sequence[Callable[[], None]]:
        """Return the calls to make after the deferred combines, and clear them."""
        behind, self._behind = self._behind, []
        return behind

    def send(self, counts: bool) -> NumbersSent:
        """Return the deferred numbers, after `total` with `counts`, and clear them."""
        waiting = [(self.total, 1, 0)] * counts + self._waiting
        self._waiting = []
        return self._table(
            tuple(
                (address_of(array), entries, array.dtype.name, operator)
                for array, entries, operator in waiting
            )
        )


def _table_of_numbers(
    device: Device, arrays: tuple[tuple[int, int, str, int], ...]
) -> NumbersSent:
    """Return the numbers of (address, entries, dtype, operator) of each array."""
    rows, begin = [], 0
    for address, entries, dtype, operator in arrays:
        item = np.dtype(dtype).itemsize
        rows.append((address, entries, item, KINDS.index(dtype), operator, begin))
        begin += -(-entries * item // _ALIGNMENT) * _ALIGNMENT
    # Kernels take no empty array.
    table = device.upload(np.array(rows or [(0,) * 6], np.int64))
    return NumbersSent(table, len(rows), begin)


#: Names of the forms, in the order in which kernels number them.
_NAMES = ("all", "ms", "vr", "vr-list", "numbers")


class StoredBytes:
    """Bytes by form and rank, counted on the device by the kernels that store them.

    So supersteps that are replayed, or run in a loop on the device, are counted, too,
    without a wait of the host. Flags are not counted.

    Parameters
    ----------
    device : CudaDevice
    ranks : int

    Attributes
    ----------
    places : array of int64
        See `window_kernels`.
    """

    def __init__(self, device: Device, ranks: int) -> None:
        self._device, self._ranks = device, ranks
        shape = len(_NAMES), kernels.STRIPES, ranks
        self.places: Any = device.upload(np.zeros(np.prod(shape), np.int64))

    def read(self, rank: int) -> dict[str, npt.NDArray[np.int64]]:
        """Return the bytes stored at each rank since the start, by form.

        Bytes in the rank's own window do not count. Waits for the GPU.

        Parameters
        ----------
        rank : int
            The storing rank.
        """
        places = self._device.download(self.places)
        found = places.reshape(len(_NAMES), kernels.STRIPES, self._ranks).sum(axis=1)
        found[:, rank] = 0
        return dict(zip(_NAMES, found, strict=True))


Words = Any
#: Most words of a chunk, and the number of words from which chunks have more than one:
#: about as many warps run at a time, each on one chunk, word by word.
_CHUNK_WORDS, _WARPS = 16, 1 << 12
#: Most words of sets that are tested before the positions of a chunk: eight for each
#: lane, which costs less than the words of a chunk.
_MOST_LOOKED = 256
#: The second buffer of each property that is sent, or None.
Others = Sequence[DeviceValues | None]


class Part(NamedTuple):
    """A set of vertices to send, and the properties whose rows are sent with it."""

    changed: Words
    values: Sequence[DeviceValues] = ()


class Posted(NamedTuple):
    """A posted exchange, from which the parts of other ranks are taken.

    Attributes
    ----------
    boxes : Mailboxes
    parts : sequence of Part
    came : pair of words
        By part, the set to which received vertices are added. The first has the own
        vertices, too, if they are counted.
    counts : bool
        Whether the vertices of the first part are counted on all ranks.
    columns : (array, int)
        The table of properties, and its number of rows.
    numbers : NumbersSent
    wire : str or None
        The dtype to which reals are rounded.
    behind : sequence of callable
        Launches to make after the numbers have been combined.
    """

    boxes: Mailboxes
    parts: Sequence[Part]
    came: _Pair
    counts: bool
    columns: tuple[Array, int]
    numbers: NumbersSent
    wire: str | None
    behind: Sequence[Callable[[], None]]


class _Pair(NamedTuple):
    """Two sets, as a tuple argument of kernels."""

    first: Words
    second: Words


class _Lists(NamedTuple):
    """Lists of vertices, as a tuple argument of kernels."""

    numbers: Array
    links: Array
    count: Any


#: Option `exchange` -> form in windows. Lists of positions never have fewer bytes than
#: bits of which only nonzero bytes are stored (0077).
_FORMS = {
    "all": kernels.ALL,
    "ms": kernels.MS,
    "vr": kernels.VR,
    "vr-list": kernels.LISTED,
    "auto": kernels.LISTED,
}
#: Wire dtype -> bits of its fraction.
_FRACTIONS = {"float16": 10, "bfloat16": 7}


class _Row(NamedTuple):
    """The layout of a property's rows in memory and in a slot: see `window_kernels`.

    Attributes
    ----------
    address : int
    stride, size, unit : int
        Bytes from one row to the next, of a row in a slot, and copied at a time.
    wire : int
        Fraction bits of the wire dtype; 0 if values are not rounded.
    """

    address: int
    stride: int
    size: int
    unit: int
    wire: int


def _row_of(values: DeviceValues, wire_dtype: str | None) -> _Row:
    """Return the layout of a property's rows in memory and in a slot."""
    array, count = values.array, math.prod(values.shape[1:])
    item = int(array.dtype.itemsize)
    stride = array.size // max(array.shape[0], 1) * item
    if wire_dtype is not None and array.dtype in (np.float32, np.float64):
        fraction = _FRACTIONS[wire_dtype]
        return _Row(address_of(array), stride, 2 * count, item, fraction)
    row = count * item
    # As wide as the rows, and the distance between them, allow.
    unit = next(n for n in (8, 4, 2, 1) if row % n == stride % n == 0)
    return _Row(address_of(array), stride, row, unit, 0)


def _table_of_rows(
    device: Device, rows: tuple[tuple[_Row, int], ...], others: tuple[_Row | None, ...]
) -> tuple[Array, int, int]:
    """Return the table of properties, its number of rows, and the bytes of a row.

    `rows` has the layout and the part of each property, `others` its second buffer.
    """
    before = np.cumsum([0, *(row.size for row, _ in rows)])
    made = [
        (*row[:4], before[n], part, row.wire, other.address if other else 0)
        for n, ((row, part), other) in enumerate(zip_longest(rows, others))
    ]
    # Kernels take no empty array.
    table = device.upload(np.array(made or [(0,) * 8], np.int64))
    return table, len(made), int(before[-1])


def _words_of_sets(
    lists: Sequence[npt.NDArray[np.integer]], listed: Listed
) -> npt.NDArray[np.int64]:
    """Return for each chunk the first word of sets it reads, and how many.

    int64, shape (chunks, 2). The first is -1 if they are too many to be tested before
    the positions of the chunk.
    """
    found = [np.empty((0, 2), np.int64)]
    begins = 32 * np.asarray(listed.ends[:-1], np.int64)
    for numbers, begin, (first, end) in zip(
        lists, listed.begins, pairwise(listed.links), strict=True
    ):
        if first == end:
            continue
        starts = begins[first:end] - begin
        least = np.minimum.reduceat(numbers, starts).astype(np.int64) >> 5
        most = np.maximum.reduceat(numbers, starts).astype(np.int64) >> 5
        count = most - least + 1
        known = (least >= 0) & (count <= _MOST_LOOKED)
        found.append(np.stack([np.where(known, least, -1), count], axis=1))
    return np.concatenate(found)


class Channel:
    """Exchanges of one kind with all ranks, through windows.

    Rows of listed vertices of this rank are stored for listed vertices of others. Each
    `post` is followed by one `take` or `combine` of the same channel; other work may
    come between.

    Parameters
    ----------
    sent, taken : sequence of array of int
        By rank: the vertices whose rows are sent to that rank, and those whose rows it
        sends to this one, in the order of its `sent` list.
    engine : Engine
    device : CudaDevice
    about : str
        A name of the exchange, for errors.
    numbers : WindowNumbers, optional
        Arrays that are sent with the rows.
    are_places : bool
        Whether sets are of positions in the lists, in place of vertices.

    Attributes
    ----------
    stream : stream of the dialect
        The stream of launches; 0 is the default stream.
    near : array of bool, shape (P, P), or None
        Which ranks exchange with each other, set before the first exchange: see
        `Mailboxes`. The lists of other ranks are empty. None: all.
    """

    def __init__(
        self,
        sent: Sequence[npt.NDArray[np.integer]],
        taken: Sequence[npt.NDArray[np.integer]],
        engine: Engine,
        device: Device,
        about: str,
        numbers: WindowNumbers | None = None,
        are_places: bool = False,
    ) -> None:
        self._engine, self._device, self._about = engine, device, about
        self.near: npt.NDArray[np.bool_] | None = None
        self._launch: Any = device.launches  # type: ignore[attr-defined]
        self.stream: Any = 0
        self._words: list[int] = []
        self._are_places = are_places
        self._from = self._lists(sent)
        self._to = self._lists(taken)
        self._numbers = numbers or WindowNumbers(device)
        self._stored = self._numbers.stored(engine.size).places
        #: Bytes of numbers, and of the rows of one vertex, for which slots have room.
        self._room = (0, -1)
        self._boxes: Mailboxes | None = None
        self._table = lru_cache(_MOST_TABLES)(partial(_table_of_rows, device))
        #: Stands for a set that is not used.
        self._nothing = device.upload(np.zeros(1, np.uint32))

    def _lists(self, lists: Sequence[npt.NDArray[np.integer]]) -> _Lists:
        """Return lists with the table of their chunks: see `window_kernels`.

        Chunks are ordered by their relative position in their lists, so that a rank
        stores to all others at the same time, and not all ranks to one.
        """
        words = sum(-(-numbers.size // 32) for numbers in lists)
        size = min(max(words // _WARPS, 1), _CHUNK_WORDS)
        listed = Listed(lists, self._device, size)
        self._words = listed.words
        counts = np.diff(listed.links)
        columns = range(counts.size), listed.firsts[:-1], listed.words
        rows = [np.repeat(np.asarray(c), counts) for c in columns]
        rows += [listed.ends[:-1], listed.ends[1:]]
        if self._are_places:
            rows += [rows[3], rows[4] - rows[3]]
        else:
            rows += list(_words_of_sets(lists, listed).T)
        reached = (listed.ends[1:] - rows[1]) / np.maximum(rows[2], 1)
        order = np.argsort(reached, kind="stable")
        # Kernels take no empty array.
        table = np.zeros((max(order.size, 1), len(rows)), np.int64)
        table[: order.size] = np.stack(rows, axis=1)[order]
        links = self._device.upload(table)
        return _Lists(listed.numbers, links, np.int64(listed.count))

    def _boxes_for(self, numbers: int, row: int) -> Mailboxes:
        """Return mailboxes with room for numbers and rows; all ranks call it.

        `numbers` are the bytes of all numbers, `row` those of the rows of one vertex.
        """
        # All ranks send the same properties, and so make larger boxes together.
        room = max(numbers, self._room[0]), max(row, self._room[1])
        if self._boxes is None or room != self._room:
            self._room = room
            # Numbers, a row for each position, and the bits of both parts.
            sizes = [
                room[0] + 32 * n * room[1] + 2 * (-(-4 * n // 16) * 16)
                for n in self._words
            ]
            self._boxes = None  # its memory is released when the new one is made
            about, near = self._about, self.near
            self._boxes = Mailboxes(self._engine, self._device, sizes, about, near)
        return self._boxes

    def _columns(
        self, parts: Sequence[Part], wire: str | None, others: Others = ()
    ) -> tuple[Array, int, int]:
        """Return the table of properties, its number of rows, and the bytes of a row.

        `others` has a second buffer for the received rows of each property, or None.
        """
        rows = tuple(
            (_row_of(values, wire), number)
            for number, part in enumerate(parts)
            for values in part.values
        )
        more = tuple(None if one is None else _row_of(one, wire) for one in others)
        return self._table(rows, more)

    def post(
        self,
        parts: Sequence[Part],
        counts: bool = False,
        rows: int = 0,
        sending: Sending = AS_FITS,
    ) -> Posted:
        """Store rows of up to two parts, and deferred numbers, in other ranks' windows.

        Parameters
        ----------
        parts : sequence of Part
        counts : bool
            Whether the own vertices of the first part are counted on all ranks. They
            are then in the received set, too.
        rows : int
            Size of the received sets, in vertices; default: that of the sent set.
        sending : Sending
            With "all" or "ms", all listed rows are stored, else those that changed.
            Reals are rounded to `wire_dtype`.
        """
        numbers = self._numbers.send(counts)
        table, columns, row = self._columns(parts, sending.wire_dtype)
        boxes = self._boxes_for(numbers.room, row)
        empty = self._device.sets.some_words  # type: ignore[attr-defined]
        words = [part.changed for part in parts]
        came = [
            self._nothing if self._are_places else empty(-(-rows // 32) or w.size)
            for w in words
        ]
        fill = [self._nothing] * (2 - len(parts))
        sets, came_here = _Pair(*words, *fill), _Pair(*came, *fill)
        lists = self._from if parts else self._from._replace(count=np.int64(0))
        # A warp for each chunk, and threads to begin the received sets.
        size = max(int(w.size) for w in came_here)
        blocks = max(
            -(-max(int(lists.count), 1) * 32 // BLOCK),
            min(-(-size // BLOCK), kernels.SET_BLOCKS),
        )
        given = (
            sets, came_here, len(parts), self._are_places,
            _FORMS[sending.exchange], counts, self._numbers.own, lists, table,
            columns, numbers.table, numbers.arrays, numbers.room, self._numbers.total,
            boxes.there, boxes.own, self._numbers.notes, self._stored,
        )  # fmt: skip
        self._launch(kernels.post, blocks, BLOCK, given, self.stream)
        boxes.turn()
        rest = counts, (table, columns), numbers, sending.wire_dtype
        return Posted(boxes, parts, came_here, *rest, self._numbers.take_behind())

    def take(
        self,
        posted: Posted,
        values: Sequence[DeviceValues] | None = None,
        total: Array = None,
        others: Others = (),
    ) -> _Pair:
        """Wait for the posts of other ranks, copy rows, combine numbers; return sets.

        Parameters
        ----------
        posted : Posted
        values : sequence of values, optional
            The buffers for rows. Default: the properties that were posted.
        total : array of int64, optional
            A count that is set to a negative number if a rank is lost. Default: that of
            the first part, if it is counted.
        others : sequence of values or None, optional
            A second buffer for the rows of each property.
        """
        columns, count = posted.columns
        parts = posted.parts if values is None else [Part(None, values)]
        if values is not None or any(one is not None for one in others):
            columns, count, _ = self._columns(parts, posted.wire, others)
        numbers, boxes = posted.numbers, posted.boxes
        lists = self._to if parts else self._to._replace(count=np.int64(0))
        blocks = 1 + -(-int(lists.count) * 32 // BLOCK)
        reports_loss = posted.counts or total is not None
        given = (
            posted.came, len(parts), self._are_places, reports_loss, lists, columns,
            count, numbers.table, numbers.arrays, numbers.room,
            self._numbers.total if total is None else total, boxes.here, boxes.own,
            boxes.alarm, boxes.limit_ns, self._numbers.notes,
        )  # fmt: skip
        if self.stream:
            # A launch of one block waits first: blocks of the second one would occupy
            # registers of all multiprocessors, which a concurrent sweep needs.
            self._launch(kernels.take, 1, BLOCK, given, self.stream)
        self._launch(kernels.take, blocks, BLOCK, given, self.stream)
        for launch in posted.behind:
            launch()
        return posted.came

    def combine(
        self, values: DeviceValues, posted: Posted, words: Words, operation: str
    ) -> None:
        """Combine received rows in the order of ranks; add their vertices to `words`.

        The lists of all ranks must have the same vertices of this rank.
        """
        boxes = posted.boxes
        target, own = as_rows(values.array), boxes.own
        width, count = math.prod(values.shape[1:]), self._words[0]
        given = (
            target, width, target.dtype.itemsize, count, boxes.here, words,
            OPERATIONS.index(operation), own, boxes.alarm, boxes.limit_ns,
            self._numbers.notes,
        )  # fmt: skip
        blocks = -(-max(count, self._engine.size) * 32 // BLOCK)
        self._launch(kernels.combine_rows, blocks, BLOCK, given)
