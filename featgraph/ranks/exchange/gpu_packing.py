"""Packing of rows into messages on a GPU, and unpacking, on one stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from featgraph.base.dataclass import dataclass
from featgraph.ranks.exchange import gpu_kernels
from featgraph.ranks.exchange.gpu_links import BLOCK, GpuLinks, blocks_for
from featgraph.ranks.exchange.gpu_messages import Entries, Outline, in_units
from featgraph.runtime.devices.protocol import Device

__all__ = ["Came", "Packer"]

Array = Any
Words = Any


@dataclass(frozen=True, eq=False)
class Came:
    """A received message.

    Attributes
    ----------
    outline : Outline
    message : array or None
        None if it has no bytes.
    listed : (array, int)
        A list of vertices, and the index of the first one with a row in the message.
    """

    outline: Outline
    message: Any
    listed: tuple[Array, int]

    @property
    def count(self) -> int:
        """Number of rows of each property."""
        return self.outline.count


class Packer:
    """Packing of rows into messages, and unpacking of received messages.

    Parameters
    ----------
    device : CudaDevice
    stream : stream of the dialect, optional
        The stream of launches. Default: the default stream.
    make : callable, optional
        ``make(nbytes, item)`` returns `nbytes` bytes of memory as unsigned integers of
        `item` bytes. Default: a new array.
    """

    def __init__(
        self,
        device: Device,
        stream: Any = 0,
        make: Callable[[int, int], Array] | None = None,
    ) -> None:
        self._device, self._stream = device, stream
        self._on: Any = device.launches  # type: ignore[attr-defined]
        self._make = make or self._new

    def _new(self, nbytes: int, item: int) -> Array:
        return self._device.empty((nbytes // item,), f"uint{8 * item}")

    def launch(self, kernel: Any, blocks: int, given: tuple[Any, ...]) -> None:
        """Launch a kernel over rows."""
        self._on(kernel, blocks, BLOCK, given, self._stream)

    def message(self, outline: Outline) -> Array | None:
        """Return memory for a message; None if it has no bytes."""
        return self._make(outline.nbytes, outline.item) if outline.nbytes else None

    def encode(
        self,
        links: GpuLinks,
        rank: int,
        outline: Outline,
        entries: Sequence[Entries],
    ) -> Array | None:
        """Return a message of marked rows for a rank; None if it has no bytes."""
        message = self.message(outline)
        if message is None:
            return None
        begin = links.begins[rank]
        if outline.words:
            is_list = outline.form == "vr-list"
            source = (links.positions, begin) if is_list else (links.bits, begin // 32)
            given = *source, outline.words, in_units(message, 4)
            self.launch(gpu_kernels.copy_words, blocks_for(outline.words), given)
        listed = links.taken if outline.words else links.numbers
        for own, first in zip(entries, outline.firsts, strict=True):
            self.gather(own, (listed, begin), outline.count, message, first)
        return message

    def came(
        self, links: GpuLinks, rank: int, outline: Outline, message: Array | None
    ) -> Came:
        """Return a received message with the list of its vertices."""
        numbers = links.numbers
        if message is not None and outline.words:
            words, numbers = in_units(message, 4), links.taken
            if outline.form == "vr":
                links.take_bits(rank, words)
            else:
                links.take_positions(rank, words, outline.count)
        return Came(outline, message, (numbers, links.begins[rank]))

    def gather(
        self,
        source: Entries,
        listed: tuple[Array, int],
        count: int,
        message: Array,
        first: int,
    ) -> None:
        """Copy the listed rows of `source` into a message, from entry `first` on."""
        blocks, to = blocks_for(count * source.width), in_units(message, source.item)
        given = source.array, source.width, *listed, count, to, first
        self.launch(gpu_kernels.gather_rows, blocks, given)

    def scatter(
        self,
        message: Array,
        first: int,
        target: Entries,
        listed: tuple[Array, int],
        count: int,
    ) -> None:
        """Store rows of a message, from entry `first` on, as the listed rows."""
        blocks = blocks_for(count * target.width)
        given = in_units(message, target.item), first, target.width, *listed, count
        self.launch(gpu_kernels.scatter_rows, blocks, (*given, target.array))

    def store(self, came: Came, entries: Sequence[Entries], words: Words) -> None:
        """Store the rows of a message, and add their vertices to a set."""
        for own, first in zip(entries, came.outline.firsts, strict=True):
            self.scatter(came.message, first, own, came.listed, came.count)
        self.add(came, words)

    def add(self, came: Came, words: Words) -> None:
        """Add the vertices of a message to a set."""
        given = *came.listed, came.count, words
        self.launch(gpu_kernels.add_vertices, blocks_for(came.count), given)
