"""What ranks post at each other at a time, and take: sets, rows and numbers (0055)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph._cuda_driver import address_of
from featgraph.arrays.values import DeviceValues
from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending
from featgraph.ranks.gpu import window_kernels as kernels
from featgraph.ranks.gpu.links import BLOCK, Listed
from featgraph.ranks.gpu.messages import as_rows
from featgraph.ranks.gpu.row_copies import OPERATIONS
from featgraph.ranks.gpu.window_numbers import NumbersSent, WindowNumbers
from featgraph.ranks.gpu.windows import Mailboxes
from featgraph.runtime.devices.protocol import Device

__all__ = ["Channel", "Part", "Posted"]

Array = Any
Words = Any
#: Words of a chunk, at most, and warps that there are before a chunk has more than one:
#: so many run at a time, and a warp goes through its words in turn, but has to find
#: where they are first.
_CHUNK_WORDS, _WARPS = 16, 1 << 12
#: Words of sets, at most, that are looked at before a chunk's positions are: eight for
#: each lane, which is less than the words of a chunk take.
_MOST_LOOKED = 256
#: Tables of properties that a channel keeps.
_MOST_TABLES = 64
#: Other buffers of properties, of each that is sent; None where there is none.
Others = Sequence[DeviceValues | None]


class Part(NamedTuple):
    """Vertices of which something is sent, and the properties whose rows are."""

    changed: Words
    values: Sequence[DeviceValues] = ()


class Posted(NamedTuple):
    """What was posted, as it is taken from the other ranks.

    Attributes
    ----------
    boxes : Mailboxes
    parts : sequence of Part
    came : pair of words
        Sets that the vertices of what comes are added to, of each part. The first has
        the own ones, too, if they were counted.
    counts : bool
        Whether they were.
    columns : (array, int)
        A table of properties, and how many they are.
    numbers : NumbersSent
    wire : str or None
        What reals were rounded to.
    behind : sequence of callable
        What is launched when its numbers have been combined.
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
    """Two sets, as kernels take them."""

    first: Words
    second: Words


class _Lists(NamedTuple):
    """Lists of vertices, as kernels take them."""

    numbers: Array
    links: Array
    count: Any


#: What is asked for -> how windows have it. No list of positions has fewer bytes than
#: what is stored of the bits where zeros are not (0077).
_FORMS = {
    "all": kernels.ALL,
    "ms": kernels.MS,
    "vr": kernels.VR,
    "vr-list": kernels.LISTED,
    "auto": kernels.LISTED,
}
#: What reals are rounded to -> bits of its fraction.
_FRACTIONS = {"float16": 10, "bfloat16": 7}


class _Row(NamedTuple):
    """Where rows of a property are, and what they are in a slot: see `window_kernels`.

    Attributes
    ----------
    address : int
    stride, size, unit : int
        Bytes from one row to the next, of one in a slot, and of an entry of it.
    wire : int
        Bits of the fraction of what it is rounded to; 0 where it stays as it is.
    """

    address: int
    stride: int
    size: int
    unit: int
    wire: int


def _row_of(values: DeviceValues, wire_dtype: str | None) -> _Row:
    """Return where rows of a property are, and what they are in a slot."""
    array, count = values.array, math.prod(values.shape[1:])
    item = int(array.dtype.itemsize)
    stride = array.size // max(array.shape[0], 1) * item
    if wire_dtype is not None and array.dtype in (np.float32, np.float64):
        fraction = _FRACTIONS[wire_dtype]
        return _Row(address_of(array), stride, 2 * count, item, fraction)
    row = count * item
    unit = next(n for n in (8, 4, 2, 1) if row % n == stride % n == 0)
    return _Row(address_of(array), stride, row, unit, 0)


def _words_of_sets(
    lists: Sequence[npt.NDArray[np.integer]], listed: Listed
) -> npt.NDArray[np.int64]:
    """Return, of each chunk, the first word of sets that it looks at, and how many.

    The first is -1 where these are more than are looked at to know that nothing of a
    chunk has changed.
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

    Rows are those of some vertices of this rank, for vertices of others. What is posted
    is taken by the next call of the same channel, whatever other work comes between.

    Parameters
    ----------
    sent, taken : sequence of array of int
        By rank: vertices here whose rows it gets, and those that it has the rows of, in
        the order in which it lists them.
    engine : Engine
    device : CudaDevice
    about : str
        What is sent.
    numbers : WindowNumbers, optional
        Arrays that go with the rows.
    are_places : bool
        Whether sets are those of places in what is sent, a word for each 32 of a list.

    Attributes
    ----------
    stream : stream of the dialect
        Where its kernels are launched; 0 is the default stream.
    near : array of bool, shape (P, P), or None
        Which ranks exchange at all, set before any does: see `Mailboxes`. The lists of
        others are empty. None: all.
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
        #: Bytes of numbers, and of rows, that there is room for.
        self._room = (0, -1)
        self._boxes: Mailboxes | None = None
        self._tables: OrderedDict[Any, tuple[Array, int, int]] = OrderedDict()
        #: Stands for a set that is not asked for.
        self._nothing = device.upload(np.zeros(1, np.uint32))

    def _lists(self, lists: Sequence[npt.NDArray[np.integer]]) -> _Lists:
        """Return lists, and what `window_kernels` has of each chunk of them.

        Chunks of lists alternate, by how far each list has got: so a rank stores at all
        others at a time, and not at one that all others store at.
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
        # Kernels take no array without entries.
        table = np.zeros((max(order.size, 1), len(rows)), np.int64)
        table[: order.size] = np.stack(rows, axis=1)[order]
        links = self._device.upload(table)
        return _Lists(listed.numbers, links, np.int64(listed.count))

    def _boxes_for(self, numbers: int, row: int) -> Mailboxes:
        """Return mailboxes with room for all that; all ranks call it alike."""
        room = max(numbers, self._room[0]), max(row, self._room[1])
        if self._boxes is None or room != self._room:
            self._room = room
            sizes = [
                room[0] + 32 * n * room[1] + 2 * (-(-4 * n // 16) * 16)
                for n in self._words
            ]
            self._boxes = None  # its memory is given back with what is made now
            about, near = self._about, self.near
            self._boxes = Mailboxes(self._engine, self._device, sizes, about, near)
        return self._boxes

    def _columns(
        self, parts: Sequence[Part], wire: str | None, others: Others = ()
    ) -> tuple[Array, int, int]:
        """Return a table of properties, how many they are, and bytes of their rows.

        What comes goes to the others, too, of which there is one for each of the first.
        """
        rows = tuple(
            (_row_of(values, wire), number)
            for number, part in enumerate(parts)
            for values in part.values
        )
        more = tuple(None if one is None else _row_of(one, wire) for one in others)
        table = self._tables.get((rows, more))
        if table is None:
            before = np.cumsum([0, *(row.size for row, _ in rows)])
            pairs = zip_longest(rows, more)
            made = [
                (*row[:4], before[n], part, row.wire, other.address if other else 0)
                for n, ((row, part), other) in enumerate(pairs)
            ]
            # Kernels take no array without entries.
            uploaded = self._device.upload(np.array(made or [(0,) * 8], np.int64))
            self._tables[rows, more] = table = uploaded, len(made), int(before[-1])
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end((rows, more))
        return table

    def post(
        self,
        parts: Sequence[Part],
        counts: bool = False,
        rows: int = 0,
        sending: Sending = AS_FITS,
    ) -> Posted:
        """Store rows of up to two parts, and numbers that wait; let others do so.

        Parameters
        ----------
        parts : sequence of Part
        counts : bool
            Whether the own vertices of the first part are counted on all ranks. What
            comes is added to that, then.
        rows : int
            How many vertices there are where rows are taken; default as many as here.
        sending : Sending
            As "all" or "ms", rows that did not change are stored, too; else those that
            did. What is listed is the caller's. Reals may be rounded.
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
        told = counts, (table, columns), numbers, sending.wire_dtype
        return Posted(boxes, parts, came_here, *told, self._numbers.take_behind())

    def take(
        self,
        posted: Posted,
        values: Sequence[DeviceValues] | None = None,
        told: Array = None,
        others: Others = (),
    ) -> _Pair:
        """Copy the rows that have come, and combine numbers; return the sets.

        Parameters
        ----------
        posted : Posted
        values : sequence of values, optional
            Where rows go, if not to the properties that were posted.
        told : array of int64, optional
            A count that is told, less than 0, if a rank is lost: default that of the
            first part, if it was counted.
        others : sequence of values or None, optional
            Where rows of each of the values go, too.
        """
        columns, count = posted.columns
        parts = posted.parts if values is None else [Part(None, values)]
        if values is not None or any(one is not None for one in others):
            columns, count, _ = self._columns(parts, posted.wire, others)
        numbers, boxes = posted.numbers, posted.boxes
        lists = self._to if parts else self._to._replace(count=np.int64(0))
        blocks = 1 + -(-int(lists.count) * 32 // BLOCK)
        tells = posted.counts or told is not None
        given = (
            posted.came, len(parts), self._are_places, tells, lists, columns, count,
            numbers.table, numbers.arrays, numbers.room,
            self._numbers.total if told is None else told, boxes.here, boxes.own,
            boxes.alarm, boxes.limit_ns, self._numbers.notes,
        )  # fmt: skip
        if self.stream:
            # One block waits: as many as run at a time would take all registers, and
            # what is swept beside would wait, too.
            self._launch(kernels.take, 1, BLOCK, given, self.stream)
        self._launch(kernels.take, blocks, BLOCK, given, self.stream)
        for launch in posted.behind:
            launch()
        return posted.came

    def combine(
        self, values: DeviceValues, posted: Posted, words: Words, operation: str
    ) -> None:
        """Combine rows that have come, in the order of ranks, and note where any has.

        All ranks list the same vertices here.
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
