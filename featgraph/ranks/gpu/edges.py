"""Entries of cut edges on the GPU: packed, handed over and stored there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cached import cached_property
from featgraph.arrays.values import DeviceValues
from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import AS_FITS, Sending
from featgraph.errors import GraphInputError
from featgraph.ranks.edges import PartEdges
from featgraph.ranks.gpu import edge_kernels as kernels
from featgraph.ranks.gpu.links import BLOCK, EdgeLinks, blocks_for
from featgraph.ranks.gpu.messages import Entries
from featgraph.ranks.gpu.window_channel import Channel, Part
from featgraph.ranks.gpu.window_numbers import WindowNumbers
from featgraph.runtime.devices.protocol import Device

__all__ = ["GpuEdges"]

Array = Any
Words = Any
#: Kernels over lists number edges by int32.
_MOST_EDGES = 1 << 31
_ABOUT = "entries of edges"


class GpuEdges:
    """Hands entries of edges to other ranks and takes theirs: an `EdgeCarrier`.

    Marks are words: a bit for each edge of the list of each rank, and each list begins
    with a word.

    Parameters
    ----------
    edges : PartEdges
    rows : GpuRows
        What swaps lists of rows, of vertices or of edges.
    device : CudaDevice
    windows : (Engine, WindowNumbers), optional
        Of ranks that have windows: then entries go through these.

    Raises
    ------
    GraphInputError
        If the part has too many edges.
    """

    def __init__(
        self,
        edges: PartEdges,
        rows: Any,
        device: Device,
        windows: tuple[Engine, WindowNumbers] | None = None,
    ) -> None:
        if edges.count >= _MOST_EDGES:
            raise GraphInputError(
                "too many edges for entries that are sent between GPUs",
                got=f"{edges.count} edges at the vertices of a rank",
                expected=f"fewer than {_MOST_EDGES}",
                fix="more ranks",
            )
        self._rows, self._device = rows, device
        self._launch: Any = device.launches  # type: ignore[attr-defined]
        ghosts = [
            np.arange(first, first + taken.numbers.size, dtype=np.int32)
            for first, taken in edges.taken
        ]
        self._lists = sent = [link.numbers for link in edges.links]
        self._sent = EdgeLinks(sent, device)
        self._taken = EdgeLinks(ghosts, device)
        self._channel: Channel | None = None
        if windows is not None:
            engine, numbers = windows
            given = engine, device, _ABOUT, numbers
            self._channel = Channel(sent, ghosts, *given, are_places=True)
        bounds = edges.bounds
        self._sources = self._sent.along(
            [edges.sources[begin:end] for begin, end in bounds]
        )
        self._count = int(self._sent.bits.size)

    def all(self) -> Words:
        """Mark all of them."""
        return self._everything

    @cached_property
    def _everything(self) -> Words:
        return self._marked([np.ones(n, np.bool_) for n in self._sent.sizes])

    def marked(self, members: npt.NDArray[np.bool_]) -> Words:
        """Mark those of a mask of own edges."""
        return self._marked([members[numbers] for numbers in self._lists])

    def _marked(self, masks: Sequence[npt.NDArray[np.bool_]]) -> Words:
        listed = self._sent.along([mask.astype(np.int32) for mask in masks])
        is_there = self._device.download(listed) > 0
        words = np.packbits(is_there, bitorder="little").view("<u4")
        return self._device.upload(words.astype(np.uint32))

    def out_of(self, sources: Words) -> Words:
        """Mark those that lead out of some vertices."""
        marks = self._device.sets.empty(self._count)
        given = sources, self._sources, marks
        self._over_words(kernels.mark_members, given)
        return marks

    def union(self, a: Words, b: Words) -> Words:
        """Return what either has."""
        return self._device.sets.union(a, b)

    def that_differ(
        self, marks: Words, now: DeviceValues, before: DeviceValues
    ) -> Words:
        """Return those of some edges whose bytes differ between two buffers."""
        one, other = Entries.of(now), Entries.of(before)
        found = self._device.sets.empty(self._count)
        given = marks, self._sent.numbers, one.array, other.array, one.width, found
        self._over_words(kernels.mark_differing, given)
        return found

    def share(
        self,
        values: Sequence[DeviceValues],
        marks: Words,
        others: Sequence[DeviceValues | None],
        sending: Sending = AS_FITS,
    ) -> None:
        """Send entries of own edges to the ranks that have them: see `EdgeCarrier`."""
        if self._channel is not None:
            if sending.exchange == "all":
                sending = replace(sending, exchange="ms")
            posted = self._channel.post([Part(marks, values)], sending=sending)
            self._channel.take(posted, values, others=others)
            return
        entries = [Entries.of(one) for one in values]
        stored = [None if one is None else Entries.of(one) for one in others]
        links = self._sent, self._taken
        scatter = self._rows.packer.scatter
        for came in self._rows.swap(links, entries, marks, _ABOUT, sending):
            firsts = came.outline.firsts
            for first, *buffers in zip(firsts, entries, stored, strict=True):
                for own in buffers:
                    if own is not None:
                        listed, count = came.listed, came.count
                        scatter(came.message, first, own, listed, count)

    def _over_words(self, kernel: Any, given: tuple[Any, ...]) -> None:
        """Launch a kernel of which a warp takes a word of marks."""
        if self._count:
            self._launch(kernel, blocks_for(32 * self._count), BLOCK, given)
