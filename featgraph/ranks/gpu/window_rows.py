"""Rows and numbers that ranks store into each other's windows, without the host.

See docs/design/0055-windows.md: a rank posts, by a kernel that stores at all others,
and takes, by one that waits for what they have posted. How much that is stays on the
device.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cached import cached_property
from featgraph._cuda_driver import address_of
from featgraph.arrays.values import DeviceValues
from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.gpu import window_kernels as kernels
from featgraph.ranks.gpu.kernels import mark_used
from featgraph.ranks.gpu.links import BLOCK, Listed
from featgraph.ranks.gpu.messages import as_rows
from featgraph.ranks.gpu.windows import Mailboxes
from featgraph.ranks.outboxes import identity
from featgraph.runtime.devices.protocol import Device

__all__ = ["MOST_NUMBERS", "Channel", "WindowNumbers", "WindowRows"]

Array = Any
Words = Any
#: Words of a chunk: few, so that there are warps enough to fill a link.
_CHUNK_WORDS = 4
#: Tables of properties that a channel keeps.
_MOST_TABLES = 64
#: Bytes of the results that are combined on the device; larger ones go by the host.
MOST_NUMBERS = 1 << 16
_OPERATORS = ("sum", "product", "min", "max")
_COMBINING = {"add": 0, "min": 1, "max": 2}


def _row_of(values: DeviceValues) -> tuple[int, int, int, int]:
    """Return the address of rows, bytes from one to the next, of one, and of a unit."""
    array = values.array
    item = int(array.dtype.itemsize)
    stride = array.size // max(array.shape[0], 1) * item
    row = math.prod(values.shape[1:]) * item
    unit = next(n for n in (8, 4, 2, 1) if row % n == stride % n == 0)
    return address_of(array), stride, row, unit


class Channel:
    """Rows of some vertices of this rank, for vertices of others, through windows.

    Parameters
    ----------
    sent, taken : sequence of array of int
        By rank: vertices here whose rows it gets, and those that it has the rows of, in
        the order in which it lists them.
    engine : Engine
    device : CudaDevice
    about : str
        What is sent.
    """

    def __init__(
        self,
        sent: Sequence[npt.NDArray[np.integer]],
        taken: Sequence[npt.NDArray[np.integer]],
        engine: Engine,
        device: Device,
        about: str,
    ) -> None:
        self._engine, self._device, self._about = engine, device, about
        self._launch: Any = device.launches  # type: ignore[attr-defined]
        self._sent = Listed(sent, device, _CHUNK_WORDS)
        self._taken = Listed(taken, device, _CHUNK_WORDS)
        self._from, self._to = self._table(self._sent), self._table(self._taken)
        #: Bytes of a row that the mailboxes have room for.
        self._room = -1
        self._boxes: Mailboxes | None = None
        self._tables: OrderedDict[Any, Array] = OrderedDict()

    def _table(self, listed: Listed) -> Array:
        """Return of each chunk its rank, and the first word and words of its list."""
        counts = np.diff(listed.links)
        columns = range(counts.size), listed.firsts[:-1], listed.words
        rows = np.stack([np.repeat(np.asarray(c), counts) for c in columns], axis=1)
        # Kernels take no array without entries.
        return self._device.upload(np.concatenate([rows, [[0, 0, 0]]]).astype(np.int64))

    def boxes(self, row: int) -> Mailboxes:
        """Return mailboxes with room for rows of so many bytes; all ranks call it."""
        if self._boxes is None or self._room < row:
            sizes = [-(-4 * n // 16) * 16 + 32 * n * row for n in self._taken.words]
            self._boxes = None  # its memory is given back with what is made now
            self._boxes = Mailboxes(self._engine, self._device, sizes, self._about)
            self._room = row
        return self._boxes

    def columns(self, values: Sequence[DeviceValues]) -> tuple[Array, int, int]:
        """Return a table of properties, how many they are, and bytes of their rows."""
        rows = tuple(map(_row_of, values))
        table = self._tables.get(rows)
        if table is None:
            before = np.cumsum([0, *(row[2] for row in rows)])
            made = [(*row, before[n]) for n, row in enumerate(rows)] or [(0,) * 5]
            table = self._device.upload(np.array(made, np.int64))
            self._tables[rows] = table
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(rows)
        return table, len(rows), sum(row[2] for row in rows)

    def post(self, values: Sequence[DeviceValues], changed: Words) -> Mailboxes:
        """Store the rows of changed vertices, and let the others do so."""
        columns, count, row = self.columns(values)
        boxes, sent = self.boxes(row), self._sent
        blocks = -(-max(sent.count, 1) * 32 // BLOCK)
        given = (
            changed, sent.numbers, sent.chunks, self._from, sent.count, columns, count,
            boxes.there, boxes.own,
        )  # fmt: skip
        self._launch(kernels.post_rows, blocks, BLOCK, given)
        boxes.turn()
        return boxes

    def take(
        self, values: Sequence[DeviceValues], boxes: Mailboxes, words: Words
    ) -> None:
        """Copy the rows that have come, and add their vertices to a set."""
        columns, count, _ = self.columns(values)
        taken, ranks = self._taken, self._engine.size
        blocks = -(-(taken.count + ranks) * 32 // BLOCK)
        given = (
            taken.numbers, taken.chunks, self._to, taken.count, columns, count,
            boxes.here, words, boxes.own, boxes.limit_ns,
        )  # fmt: skip
        self._launch(kernels.take_rows, blocks, BLOCK, given)

    def combine(
        self, values: DeviceValues, boxes: Mailboxes, words: Words, operation: str
    ) -> None:
        """Combine rows that have come, in the order of ranks, and note where any has.

        All ranks list the same vertices here.
        """
        target, own = as_rows(values.array), boxes.own
        width, count = math.prod(values.shape[1:]), int(self._taken.words[0])
        given = (
            target, width, target.dtype.itemsize, count, boxes.here, words,
            _COMBINING[operation], own, boxes.limit_ns,
        )  # fmt: skip
        blocks = -(-max(count, self._engine.size) * 32 // BLOCK)
        self._launch(kernels.combine_rows, blocks, BLOCK, given)


class WindowRows:
    """Hands rows to other ranks through windows: a `Carrier`.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : CudaDevice
    """

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self._launch: Any = device.launches  # type: ignore[attr-defined]
        self._word_count = -(-shard.numbers.size // 32)

    def share(
        self,
        values: Sequence[DeviceValues],
        changed: Words,
        sending: Sending = AS_FITS,
    ) -> Words:
        """Send rows of own vertices to the ranks that have them: see `Carrier`.

        They have no form: kernels store what changed.
        """
        channel = self._ghosts
        boxes = channel.post(values, changed)
        ghosts = self._device.sets.empty(self._word_count)
        channel.take(values, boxes, ghosts)
        return ghosts

    def collect(self, values: DeviceValues, mirror: DeviceValues) -> None:
        """Fill the mirror of a property with the rows that each rank owns."""
        boxes = self._mirrors.post([values], self._own)
        everyone = self._device.sets.empty(-(-mirror.array.shape[0] // 32))
        self._mirrors.take([mirror], boxes, everyone)

    def empty_outbox(self, outbox: DeviceValues, operation: str) -> None:
        """Make all rows of an outbox such that combining them changes nothing."""
        self._device.fill(outbox.array, identity(operation, outbox.dtype))

    def deliver(
        self, outbox: DeviceValues, values: DeviceValues, operation: str
    ) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Carrier`."""
        used = self._device.sets.empty(-(-outbox.array.shape[0] // 32))
        nothing = outbox.dtype.type(identity(operation, outbox.dtype))
        width = math.prod(outbox.shape[1:])
        blocks = -(-int(used.size) * 32 // BLOCK)
        given = as_rows(outbox.array), width, nothing, used
        self._launch(mark_used, blocks, BLOCK, given)
        reached = self._device.sets.empty(self._word_count)
        boxes = self._outboxes.post([outbox], used)
        self._outboxes.combine(values, boxes, reached, operation)
        return reached

    @cached_property
    def _ghosts(self) -> Channel:
        shard = self._shard
        ghosts = [np.arange(*pair, dtype=np.int32) for pair in pairwise(shard.ghosts)]
        about = "rows of ghosts"
        return Channel(shard.send_lists, ghosts, self._engine, self._device, about)

    @cached_property
    def _mirrors(self) -> Channel:
        """Own vertices for each rank, and those of each by the user's numbers."""
        own = [np.arange(self._shard.own)] * self._engine.size
        owned = self._owned()
        return Channel(own, owned, self._engine, self._device, "a mirror")

    @cached_property
    def _outboxes(self) -> Channel:
        """All vertices by their owners, and own ones for each rank."""
        own = [np.arange(self._shard.own)] * self._engine.size
        about = "atomic operations"
        return Channel(self._owned(), own, self._engine, self._device, about)

    def _owned(self) -> list[npt.NDArray[Any]]:
        """Return the user's numbers of each rank's vertices."""
        partition = self._shard.partition
        order = partition.order
        numbers = np.arange(partition.cuts[-1]) if order is None else order
        return [numbers[slice(*pair)] for pair in pairwise(partition.cuts)]

    @cached_property
    def _own(self) -> Words:
        """The set of own vertices."""
        words = np.full(self._word_count, 0xFFFFFFFF, np.uint32)
        return self._device.upload(words)


class WindowNumbers:
    """Combines numbers of all ranks where they are, on the device.

    Parameters
    ----------
    engine : Engine
    device : CudaDevice
    """

    def __init__(self, engine: Engine, device: Device) -> None:
        self._device: Any = device
        sizes = [MOST_NUMBERS] * engine.size
        self._boxes = Mailboxes(engine, device, sizes, "numbers of all ranks")
        self._threads = 32 * min(engine.size, BLOCK // 32)
        self._as_bytes: weakref.WeakKeyDictionary[Array, Array] = (
            weakref.WeakKeyDictionary()
        )

    def can_combine(self, array: Array, operator: str) -> bool:
        """Whether an array of one axis is combined here."""
        size = array.size * array.dtype.itemsize
        known = operator in _OPERATORS or array.dtype == np.bool_
        return known and 0 < size <= MOST_NUMBERS and array.dtype.kind in "biuf"

    def combine(self, array: Array, operator: str) -> None:
        """Combine the entries of all ranks, in their order, in place."""
        if array.dtype == np.bool_:
            operator = {"or": "max", "and": "min"}.get(operator, operator)
            flags = self._as_bytes.get(array)
            if flags is None:
                self._as_bytes[array] = flags = array.view(np.uint8)
            array = flags
        self._swap(array, int(array.size), operator, tells=False)

    def count_and_look(
        self, words: Words, results: Sequence[tuple[Array, bool]]
    ) -> tuple[int, list[float]]:
        """Return the size of sets of all ranks together, and extremes of results.

        The size is less than 0 where a rank is lost.
        """
        self._device.sets.leave_count(words, results)
        self._swap(self._device.own.total, 1, "sum", tells=True)
        number, seen, _ = self._device.read_counts(len(results), 0)
        return number, seen

    def _swap(self, array: Array, count: int, operator: str, tells: bool) -> None:
        boxes, item = self._boxes, int(array.dtype.itemsize)
        launch = self._device.launches
        posted = array, count, item, boxes.there, boxes.own
        threads = BLOCK if count > 32 else self._threads
        launch(kernels.post_numbers, 1, threads, posted)
        boxes.turn()
        taken = (
            array, count, item, _OPERATORS.index(operator), boxes.here, boxes.own,
            boxes.limit_ns, tells,
        )  # fmt: skip
        launch(kernels.take_numbers, 1, threads, taken)
