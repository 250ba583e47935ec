"""Sweeps of edges that are in host memory, a slice of their rows at a time.

A `Slice` is a range of vertices with their rows. Kernels are the same as for a graph
that fits the GPU: to them, a slice is a graph of all vertices in which only the slice's
vertices have edges, numbered from 0 on. The due set is cut to the slice.

`CutRows` cuts rows into slices that fit a buffer. `SlicedSweeps` decides for each phase
whether to sweep slices, and which of them to copy or to read in place. `_Slices` runs
one sweep: the copies of later slices overlap the sweep of a slice. Begin with
`SlicedSweeps.over`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.cuda.dialect import cuda, int32, int64, kernel, uint32
from featgraph.cuda.driver import address_of
from featgraph.device import warp
from featgraph.fold.plan.traits import JOINED_ENTRIES, PART_ENTRIES, Rows, windows_of
from featgraph.program.signature import PropertyKind
from featgraph.runtime.devices.cuda_arrays import BLOCK, block_count
from featgraph.runtime.devices.cuda_device import CudaDevice
from featgraph.runtime.devices.host_arrays import host_graph_array
from featgraph.runtime.devices.protocol import BoundEntry, RowKernel
from featgraph.runtime.recording.cuda_trace import OPAQUE
from featgraph.runtime.streaming.ring import (
    Buffer,
    PinnedArray,
    Ring,
    array_at,
    pinned_of,
)

__all__ = ["SlicedSweeps"]

#: Vertices of a word of a set. Slices are cut between words, so that the part of a set
#: in a slice is a range of words.
WORD = 32


@dataclass(frozen=True)
class Slice:
    """Whole rows of consecutive vertices.

    Attributes
    ----------
    number : int
        Index of the slice.
    first, last : int
        Range of its vertices, `last` excluded.
    begin, end : int
        Range of its edges, by their positions in the rows, `end` excluded.
    fits : bool
        Whether its edges fit a buffer: a slice has at least 32 vertices, the rows of
        which may be longer.
    """

    number: int
    first: int
    last: int
    begin: int
    end: int
    fits: bool

    @property
    def edge_count(self) -> int:
        """Number of edges."""
        return self.end - self.begin

    @property
    def words(self) -> tuple[int, int]:
        """The range of words of a set that have its vertices, the last excluded."""
        return self.first // WORD, -(-self.last // WORD)


def cut_rows(
    offsets: npt.NDArray[np.integer], capacity: int, most_rows: int
) -> list[Slice]:
    """Return slices of at most `capacity` edges and at most `most_rows` vertices.

    They cover all rows, in order. 32 vertices with more edges are a slice of their own.

    Parameters
    ----------
    offsets : ndarray of shape (V + 1,)
        Offset of the row of each vertex.
    capacity : int
        Number of edges that fit a buffer.
    most_rows : int
        Number of vertices that fit a list.
    """
    count = offsets.size - 1
    bounds = np.append(np.arange(0, count, WORD), count)
    begins = offsets[bounds].astype(np.int64)
    most_words = max(most_rows // WORD, 1)
    found: list[Slice] = []
    word, words = 0, bounds.size - 1
    while word < words:
        first = int(begins[word])
        behind = int(np.searchsorted(begins, first + capacity, "right")) - 1
        behind = min(max(behind, word + 1), word + most_words, words)
        end = int(begins[behind])
        ends = int(bounds[word]), int(bounds[behind])
        found.append(Slice(len(found), *ends, first, end, end - first <= capacity))
        word = behind
    return found


Words = Any
#: Most blocks of the small kernels of this file, which loop over entries.
_MOST_BLOCKS = 1 << 12
#: Name of the list of a slice's vertices in `Ring.kept`.
_LISTED = "listed"
#: Least number of bytes that reading one row in place transfers from host memory.
SECTOR = 64


@dataclass(frozen=True)
class Sources:
    """Arrays of edges that a phase reads, by their names in generated code.

    Attributes
    ----------
    copied : dict of str to PinnedArray
        Arrays in host memory, of which slices are copied to a buffer.
    viewed : dict of str to array
        Arrays that are read or written in place, on the GPU or in host memory.
    """

    copied: dict[str, PinnedArray]
    viewed: dict[str, Array]


class CutRows:
    """The rows of a graph, cut into slices of which each fits a buffer of a ring.

    Parameters
    ----------
    graph : GraphArrays
        The arrays of the graph.
    device : CudaDevice
    rows : Rows
        The names of the arrays of the rows.
    ring : Ring
    row_bytes : sequence of int
        Bytes per edge of each array that is copied.

    Attributes
    ----------
    slices : list of Slice
    capacity : int
        Number of edges that fit a buffer.
    places : list of int
        Offset of each array in a buffer, in bytes.
    most_rows : int
        Most vertices of a slice.
    """

    def __init__(
        self, graph: Any, device: CudaDevice, rows: Rows, ring: Ring,
        row_bytes: Sequence[int],
    ) -> None:  # fmt: skip
        # A proxy, as the graph refers to the ring, and the ring to this object.
        self.graph: Any = weakref.proxy(graph)
        self._device = device
        self.rows, self.ring = rows, ring
        self.capacity, self.places = ring.lay_out(row_bytes)
        self._offsets = graph[rows.offsets]
        offsets = host_graph_array(graph.graph, rows.offsets)
        # The list of a slice's vertices, in int32, is as large as a buffer, for which
        # `buffers_in` leaves room.
        self.most_rows = max(ring.size // 4, WORD)
        self.slices = cut_rows(offsets, self.capacity, self.most_rows)
        #: Name of a list of hubs, or of their parts -> the list, on the host.
        self._hubs: dict[str, Any] = {}
        #: Name of windows -> their first vertices, on the host.
        self._windows: dict[str, Any] = {}
        bounds = [s.words[0] for s in self.slices] + [-(-(offsets.size - 1) // 32)]
        self._bounds = device.upload(np.array(bounds, np.int32))
        self._found = device.empty((2 * len(self.slices),), "int64")
        #: (slice, buffer or -1) -> the arrays of the graph for a slice in that buffer,
        #: or in place.
        self.arrays: dict[tuple[int, int], SliceArrays] = {}

    def due_in(self, words: Words) -> tuple[list[int], list[int]]:
        """Return the numbers of a set's vertices and of their edges, by slice.

        Waits for the device.
        """
        device = self._device
        device.fill(self._found, 0)
        self._launch(count_due, words.size, words, self._offsets, self._bounds,
                     self._found)  # fmt: skip
        found = device.download(self._found).reshape(-1, 2)
        return found[:, 0].tolist(), found[:, 1].tolist()

    @property
    def all_due(self) -> tuple[list[int], list[int]]:
        """The numbers of all vertices and of their edges in each slice."""
        own = self.slices
        return [s.last - s.first for s in own], [s.edge_count for s in own]

    def is_better_in_place(self, rows: int, edges: int, least: int, item: int) -> bool:
        """Whether reading `rows` rows in place is cheaper than copying `least` edges.

        The rows have `edges` edges of `item` bytes each. Reads in place transfer whole
        sectors, and a byte is assumed to cost twice as much as in a copy.
        """
        return 2 * (rows * SECTOR + edges * item) <= least * item

    def part_of(self, words: Words, of: Slice) -> Words:
        """Return a new set with the vertices of a set that are in a slice."""
        first, last = of.words
        part = self._device.sets.empty(words.size)
        at = 4 * first
        source, target = address_of(words) + at, address_of(part) + at
        self._device.driver.copy(target, source, 4 * (last - first))
        return part

    def bind(self, of: Slice, *, everywhere: bool) -> None:
        """Compute the offsets of rows within a slice, in `rebased`.

        With `everywhere`, rows outside the slice become empty. Otherwise their offsets
        are undefined, which is enough for kernels that sweep vertices of the slice
        only.
        """
        first, last = of.first, of.last
        if everywhere:
            first, last = 0, self._offsets.size - 1
        count = last + 1 - first
        numbers = np.int64(first), np.int64(count), np.int64(of.begin)
        self._launch(rebase, count, self._offsets, self.rebased, *numbers,
                     np.int64(of.edge_count))  # fmt: skip

    @property
    def rebased(self) -> Array:
        """Offsets of rows within the slice of the last `bind`; int32."""
        kept, name = self.ring.kept, f"{self.rows.offsets} of slices"
        if name not in kept:
            # int32: a slice has fewer than 2^31 edges, even if the graph has more.
            kept[name] = made = self._device.empty(self._offsets.shape, "int32")
            self._device.fill(made, 0)
        return kept[name]

    def listed(self, of: Slice) -> Array:
        """Return the list of a slice's vertices, in memory that all slices share."""
        count, kept = of.last - of.first, self.ring.kept
        if _LISTED not in kept:
            kept[_LISTED] = self._device.empty((self.most_rows,), "int32")
        rows = kept[_LISTED]
        numbers = np.int64(of.first), np.int64(count)
        self._launch(number_rows, count, rows, *numbers)
        return array_at(address_of(rows), (count,), np.int32, rows)

    def hubs_of(self, of: Slice, name: str) -> Array:
        """Return the list of hubs in a slice, or of the parts of their rows.

        Joined parts have the index of their row's first part: it is renumbered to this
        list.
        """
        kind, whole = name.split(" ")[0], self._hubs.get(name)
        if whole is None:
            parts = {
                self.rows.hub_parts: PART_ENTRIES,
                self.rows.joined_parts: JOINED_ENTRIES,
            }
            whole = self._device.download(self.graph[name])
            whole = self._hubs[name] = whole.reshape(-1, parts.get(kind, 1))
        own = whole[(whole[:, 0] >= of.first) & (whole[:, 0] < of.last)]
        if kind == self.rows.joined_parts:
            begins = np.flatnonzero(own[:, 1] == 0)
            own[:, 3] = np.repeat(begins, own[begins, 4])
        return self._device.upload(np.ascontiguousarray(own).ravel())

    def windows_in(self, of: Slice, name: str) -> Array:
        """Return the first vertices of a slice's windows, and the end of the last."""
        whole = self._windows.get(name)
        if whole is None:
            whole = self._windows[name] = self._device.download(self.graph[name])
        first, last = np.searchsorted(whole, [of.first, of.last])
        return self._device.upload(np.ascontiguousarray(whole[first : last + 1]))

    def _launch(self, kernel: Any, count: int, *arguments: Any) -> None:
        """Launch a kernel with a thread for each of `count` entries."""
        blocks = min(block_count(count), _MOST_BLOCKS)
        self._device.launches(kernel, blocks, BLOCK, arguments)


class SliceArrays(Mapping[str, Any]):
    """The arrays of a graph, in which a slice replaces the rows that were cut.

    Parameters
    ----------
    cut : CutRows
    of : Slice
    arrays : dict of str to array
        Name -> array of the edges of the slice.
    """

    def __init__(self, cut: CutRows, of: Slice, arrays: dict[str, Array]) -> None:
        self._cut, self._of = cut, of
        self._arrays = {**arrays, cut.rows.offsets: cut.rebased}
        self.vertex_count, self.edge_count = cut.graph.vertex_count, of.edge_count
        #: (kernel, name of an entry) -> the entry, bound to these arrays.
        self.entries: dict[Any, BoundEntry] = {}

    def __getitem__(self, name: str) -> Any:
        found = self._arrays.get(name)
        if found is None:
            found = self._arrays[name] = self._find(name)
        return found

    def _find(self, name: str) -> Any:
        """Return an array of the slice, or of the graph if rows are not those cut."""
        cut = self._cut
        own = cut.rows
        if name.split(" ")[0] in {own.hubs, own.hub_parts, own.joined_parts}:
            return cut.hubs_of(self._of, name)
        windows = windows_of(name)
        if windows is not None and windows[0].windows == own.windows:
            return cut.windows_in(self._of, name)
        return cut.graph[name]

    def kernel(self, name: str, along: str) -> RowKernel:
        """Return a kernel over sets that sweeps rows of the slice."""
        found: RowKernel = self._cut.graph.kernel_over(name, along, self)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


@kernel(cache=True)
def rebase(offsets, rebased, first, count, begin, edges):  # type: ignore[no-untyped-def]
    """Compute the offsets of `count` rows, from `first` on, within a slice.

    Rows outside the slice become empty. The slice has `edges` edges from position
    `begin` of all rows on.
    """
    for entry in range(cuda.grid(1), count, cuda.gridsize(1)):
        v = first + entry
        rebased[v] = int32(min(max(int64(offsets[v]) - begin, int64(0)), edges))


@kernel(cache=True)
def number_rows(rows, first, count):  # type: ignore[no-untyped-def]
    """List `count` vertices from `first` on."""
    for entry in range(cuda.grid(1), count, cuda.gridsize(1)):
        rows[entry] = int32(first + entry)


@kernel(cache=True)
def count_due(words, offsets, bounds, found):  # type: ignore[no-untyped-def]
    """Count the vertices of a set, and their edges, by slice.

    Slice s has the words from ``bounds[s]`` on. Its counts of vertices and of edges are
    added to ``found[2 * s]`` and ``found[2 * s + 1]``.
    """
    for word in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        bits = words[word]
        if bits != 0:
            low, high = int32(0), int32(bounds.size - 1)
            while high - low > 1:
                middle = (low + high) >> 1
                if bounds[middle] <= word:
                    low = middle
                else:
                    high = middle
            rows, edges = int64(0), int64(0)
            while bits != 0:
                v = word * 32 + warp.trailing_zeros(bits)
                edges += int64(offsets[v + 1]) - int64(offsets[v])
                rows += 1
                bits = uint32(bits & (bits - uint32(1)))
            cuda.atomic.add(found, 2 * low, rows)
            cuda.atomic.add(found, 2 * low + 1, edges)


Array = Any
Given = dict[str, Any]
#: Function that returns the entries for a slice, and their arguments.
SliceRun = tuple[Callable[[str], list[BoundEntry]], Given]


class SlicedSweeps:
    """Runs phases of one kernel on one State slice by slice, if edges are on the host.

    Parameters
    ----------
    bound : BoundState
    device : CudaDevice
    buffers : Placement
        Its ``ring()`` returns the buffers, and ``forget()`` marks them as empty.
    """

    def __init__(self, bound: Any, device: Any, buffers: Any) -> None:
        self._bound, self._device = weakref.proxy(bound), device
        self._buffers = buffers
        plan, fields = bound.plan, bound.kernel.kernel_source.fields
        types = bound.state.signature
        self._of_edges = [
            f
            for f in fields
            if f.source in {"property", "next"}
            and types[f.of].kind is PropertyKind.EDGE
        ]
        self._written = frozenset(plan.facts.writes)
        self._has_twins = any(f.name == "edge_is_twin" for f in fields)

    def note_written(self) -> None:
        """Advance the versions of edge arrays that a phase has written in host memory.

        Slices of them in buffers are outdated. A recording could not advance versions,
        so that the superstep is not recorded.
        """
        buffers = self._bound.buffers
        for field in self._of_edges:
            if field.of in self._written:
                for arrays in (buffers.current, buffers.next):
                    pinned = pinned_of(arrays.get(field.of))
                    if pinned is not None:
                        pinned.version += 1
                        self._device.driver.note(*OPAQUE)

    def fail(self) -> None:
        """Mark all buffers as empty after a failed sweep."""
        self._buffers.forget()

    def over(
        self, own: Any, given: Given, frontier_form: str
    ) -> Iterator[SliceRun] | None:
        """Generate the launches of a phase, one per slice; None for one whole launch.

        That is the case if all arrays are on the GPU, or if so few rows are due that
        reading them in place is cheaper than any copy.

        Parameters
        ----------
        own : BoundPhase
        given : dict
            Arguments of the phase.
        frontier_form : str
            The frontier form of the kernel for an unsliced sweep.
        """
        sources = self._sources(own, given)
        # The bits of sums depend on which vertices share a warp. With windows, slices
        # have the groups of the "plain" form only.
        if sources is None or (frontier_form != "plain" and _has_windows(own)):
            return None
        self._device.driver.note(*OPAQUE)
        cut = self._cut(own, sources)
        words = self._swept(own, given)
        is_all = words is None or given["all_swept"]
        rows, edges = cut.all_due if is_all else cut.due_in(words)
        item = sum(array.row_bytes for array in sources.copied.values())  # of an edge
        due = [s for s in cut.slices if rows[s.number]]
        moved = sum(s.edge_count for s in due)
        if cut.is_better_in_place(sum(rows), sum(edges), moved, item):
            return None
        in_place = {
            s.number for s in due
            if not s.fits
            or cut.is_better_in_place(
                rows[s.number], edges[s.number], s.edge_count, item
            )
        }  # fmt: skip
        return _Slices(own, given, sources, cut, self._device).run(due, in_place)

    # -- arrays that a phase sweeps

    def _swept(self, own: Any, given: Given) -> Any:
        """Return the set of vertices the rows of which are swept; None for all."""
        phase = own.phase
        if phase.kind.pulls:
            return given["swept" if phase.kind.pulls_edges else "due"]
        if phase.kind.sweeps_edges:
            return given["sources"]
        return given["active_sources"] if own.takes_active else None

    def _sources(self, own: Any, given: Given) -> Sources | None:
        """Return the arrays of edges that a phase reads; None if it is not sliced.

        It is not if none of these arrays is in host memory, and for kernels that need
        edge ids of the whole graph: the reverse of an edge may be in another slice.
        """
        phase, rows, names = own.phase, own.phase.rows, own.graph_arrays
        is_plain = phase.kind.reports_due and rows.ends in names
        if not is_plain or phase.reverses or phase.incremental:
            return None
        if self._bound.plan.options.checked or own.has_rows_of_others:
            return None
        found = {n: own.arrays[n] for n in (rows.ends, rows.edges) if n in names}
        viewed: dict[str, Array] = {}
        if not rows.edges:  # edge ids are positions in the slice
            touched, viewed = self._touched(own, given)
            # Values of edges are in the order of in-edges, so that only slices of
            # these have them in one piece.
            if (touched or viewed) and phase.rows_along != "in":
                return None
            found |= touched
        copied = {}
        for name, array in found.items():
            pinned = pinned_of(array)
            if pinned is None:
                viewed[name] = array
            else:
                copied[name] = pinned
        return Sources(copied, viewed) if copied else None

    def _touched(
        self, own: Any, given: Given
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the edge arrays that a phase only reads, and those that it writes."""
        phase, d = own.phase, given["d"]
        names = {*phase.of_edges, *phase.restores, *phase.copies, *phase.commits}
        names |= {*phase.writes_next, *(name for name, _ in phase.touches_next)}
        read: dict[str, Array] = {}
        others: dict[str, Array] = {}
        for field in self._of_edges:
            if field.of in names:
                is_read = field.source == "property" and field.of not in self._written
                (read if is_read else others)[field.name] = getattr(d, field.name)
        if self._has_twins:
            read["edge_is_twin"] = d.edge_is_twin
        if "edge_state" in given:
            others["edge_state"] = given["edge_state"]
        return read, others

    def _cut(self, own: Any, sources: Sources) -> CutRows:
        """Return the rows of a phase, cut for the arrays that it reads; cached."""
        ring: Ring = self._buffers.ring()
        rows = own.phase.rows
        row_bytes = [array.row_bytes for array in sources.copied.values()]
        key = rows.offsets, *zip(sources.copied, row_bytes, strict=True)
        if key not in ring.kept:
            graph, device = self._bound.buffers.graph, self._device
            ring.kept[key] = CutRows(graph, device, rows, ring, row_bytes)
        return ring.kept[key]  # type: ignore[no-any-return]


class _Slices:
    """One sweep of a phase, slice by slice.

    Parameters
    ----------
    own : BoundPhase
    given : dict
        Arguments of the phase.
    sources : Sources
    cut : CutRows
    device : CudaDevice
    """

    def __init__(
        self, own: Any, given: Given, sources: Sources, cut: CutRows, device: Any
    ) -> None:
        self._own, self._given = own, given
        self._sources, self._cut, self._device = sources, cut, device
        copied = sources.copied.values()
        self._refs = tuple(weakref.ref(array) for array in copied)
        self._versions = tuple(array.version for array in copied)
        self._has_windows = _has_windows(own)
        can_be_listed = own.can_be_listed and not self._has_windows
        self._form = "listed" if can_be_listed else "plain"
        #: Name of a copied array -> its offset in a buffer, in bytes.
        self._places = dict(zip(sources.copied, cut.places, strict=True))

    def run(self, due: Sequence[Slice], in_place: Set[int]) -> Iterator[SliceRun]:
        """Generate the launches of the due slices.

        The copies of later slices overlap them. `in_place` has the numbers of slices
        that are read in place.
        """
        ring = self._cut.ring
        ring.begin(waits=any(self._versions))
        there = {s.number: ring.find(self._content(s)) for s in due}
        for number in in_place:
            there[number] = None
        # Slices that are still in a buffer since the last sweep come first.
        order = sorted(due, key=lambda s: there[s.number] is None)
        for at, of in enumerate(order):
            self._fill_ahead(order[at:], there, in_place)
            buffer = there[of.number]
            if buffer is not None:
                ring.await_filled(buffer)
            yield self._run_of(of, buffer)
            if buffer is not None:
                ring.note_swept(buffer)

    def _content(self, of: Slice) -> tuple[Any, ...]:
        """Return the identity of a slice in a buffer: see `ring.is_current`."""
        return (self._cut, of.number, *self._places), self._refs, self._versions

    def _fill_ahead(
        self,
        left: Sequence[Slice],
        there: dict[int, Buffer | None],
        in_place: Set[int],
    ) -> None:
        """Start the copies of remaining slices, as long as a buffer is free."""
        busy = [b for s in left if (b := there[s.number]) is not None]
        copies = [(at, self._sources.copied[name]) for name, at in self._places.items()]
        for of in left:
            if there[of.number] is not None or of.number in in_place:
                continue
            rows = of.begin, of.end
            made = self._cut.ring.fill(self._content(of), copies, rows, busy)
            if made is None:
                return
            there[of.number] = made
            busy.append(made)

    def _run_of(self, of: Slice, buffer: Buffer | None) -> SliceRun:
        """Return the entries that sweep a slice, as a function, and their arguments."""
        cut, phase = self._cut, self._own.phase
        arrays = self._arrays(of, buffer)
        cut.bind(of, everywhere=self._form == "plain" and not self._has_windows)
        given = dict(self._given)
        if phase.kind.pulls:
            for name in ("due", "swept"):
                if name in given:
                    given[name] = cut.part_of(given[name], of)
        if phase.spreads:  # vertices of other slices become due in the next superstep
            given["spreads"] = False
        if self._form == "listed":
            given["listed"] = cut.listed(of)
        if "edge_state" in arrays:
            given["edge_state"] = arrays["edge_state"]
        d = given["d"]
        given["d"] = d._replace(**{n: a for n, a in arrays.items() if n in d._fields})
        bound = self._bound_on(of, buffer, arrays)
        return lambda _: self._own.entries_of_slice(bound, self._form), given

    def _arrays(self, of: Slice, buffer: Buffer | None) -> dict[str, Array]:
        """Return the arrays of edges of a slice, in its buffer or in place."""
        sources, count = self._sources, max(of.edge_count, 1)
        found = {}
        for name, array in sources.copied.items():
            if buffer is None:
                found[name] = array.rows(of.begin, of.end)
            else:
                shape = (count, *array.shape[1:])
                found[name] = buffer.part(self._places[name], shape, array.dtype)
        for name, whole in sources.viewed.items():
            pinned = pinned_of(whole)
            if pinned is not None:
                found[name] = pinned.rows(of.begin, of.end)
            else:
                found[name] = rows_of(whole, of.begin, of.begin + count)
        return found

    def _bound_on(
        self, of: Slice, buffer: Buffer | None, arrays: dict[str, Array]
    ) -> SliceArrays:
        """Return the arrays of the graph for a slice, in a buffer or in place."""
        names = self._own.graph_arrays
        key = of.number, -1 if buffer is None else buffer.number
        known = self._cut.arrays.get(key)
        if known is None:
            of_graph = {n: a for n, a in arrays.items() if n in names}
            known = self._cut.arrays[key] = SliceArrays(self._cut, of, of_graph)
        return known


def _has_windows(own: Any) -> bool:
    """Whether a phase sweeps windows of the rows that are cut into slices."""
    windows = own.phase.rows.windows
    found = map(windows_of, own.graph_arrays)
    return any(one is not None and one[0].windows == windows for one in found)


def rows_of(array: Array, begin: int, end: int) -> Array:
    """Return a view of rows `begin` to `end` of an array on the GPU, up to its end."""
    end = min(end, array.shape[0])
    item = array.dtype.itemsize * math.prod(array.shape[1:])
    place = address_of(array) + begin * item
    return array_at(place, (end - begin, *array.shape[1:]), array.dtype, array)
