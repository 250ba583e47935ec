"""Phases that sweep edges which are not on the GPU, a slice of their rows at a time.

The kernels are those of a graph that fits. To them each slice is a graph of all
vertices in which only the slice's have edges, numbered from 0 on; of the due vertices
they are given those of the slice.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

from featgraph._cuda_driver import address_of
from featgraph.fold.plan.layout import windows_of
from featgraph.program.signature import PropertyKind
from featgraph.runtime.devices.bound import BoundEntry
from featgraph.runtime.recording.cuda_trace import OPAQUE
from featgraph.runtime.streaming.pinned import array_at, pinned_of
from featgraph.runtime.streaming.ring import Buffer, Ring
from featgraph.runtime.streaming.rows import CutRows, SliceArrays, Sources
from featgraph.runtime.streaming.slices import Slice

__all__ = ["Turns"]

Array = Any
Given = dict[str, Any]
Turn = tuple[Callable[[str], list[BoundEntry]], Given]


class Turns:
    """Runs the phases of one kernel on one State slice by slice, where it has to.

    Parameters
    ----------
    bound : BoundState
    device : CudaDevice
    buffers : object
        ``ring()`` returns the buffers, and ``forget()`` has nothing be in them.
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
        self._tells_twins = any(f.name == "edge_is_twin" for f in fields)

    def note_written(self) -> None:
        """Note that a phase may have written edges: what buffers have of it is old.

        No recording could note that.
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
        """Note that a sweep has ended early: copies may be on their way."""
        self._buffers.forget()

    def over(self, own: Any, given: Given, form: str) -> Iterator[Turn] | None:
        """Give what runs a phase on each slice; None where it runs as any other.

        Parameters
        ----------
        own : BoundPhase
        given : dict
            What the phase is given.
        form : str
            The form of the kernel that would run it.
        """
        sources = self._sources(own, given)
        # Sums of vertices that share a warp depend on which these are: windows of a
        # slice are those in memory, and a list is swept where its rows are.
        if sources is None or (form != "plain" and _has_windows(own)):
            return None
        self._device.driver.note(*OPAQUE)
        cut = self._cut(own, sources)
        words = self._swept(own, given)
        is_all = words is None or given["all_swept"]
        rows, edges = cut.all_due if is_all else cut.due_in(words)
        item = sources.edge_bytes
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

    # -- what a phase sweeps

    def _swept(self, own: Any, given: Given) -> Any:
        """Return the set of the vertices whose rows are swept; None for all."""
        phase = own.phase
        if phase.kind.pulls:
            return given["swept" if phase.kind.pulls_edges else "due"]
        if phase.kind.sweeps_edges:
            return given["sources"]
        return given["active_sources"] if own.takes_active else None

    def _sources(self, own: Any, given: Given) -> Sources | None:
        """Return the arrays of edges that a phase reads; None where none is copied.

        None, too, where edges have to have their own numbers: the reverse of one may be
        in any slice.
        """
        phase, rows, names = own.phase, own.phase.rows, own.graph_arrays
        is_plain = phase.kind.reports_due and rows.ends in names
        if not is_plain or phase.reverses or phase.incremental:
            return None
        if self._bound.plan.options.checked or own.has_rows_of_others:
            return None
        found = {n: own.arrays[n] for n in (rows.ends, rows.edges) if n in names}
        viewed: dict[str, Array] = {}
        if not rows.edges:  # numbers of edges are places in the slice
            touched, viewed = self._touched(own, given)
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
        """Return properties of edges that a phase only reads, and all others."""
        phase, d = own.phase, given["d"]
        names = {*phase.of_edges, *phase.restores, *phase.copies, *phase.commits}
        names |= {*phase.writes_next, *(name for name, _ in phase.touches_next)}
        read: dict[str, Array] = {}
        others: dict[str, Array] = {}
        for field in self._of_edges:
            if field.of in names:
                is_read = field.source == "property" and field.of not in self._written
                (read if is_read else others)[field.name] = getattr(d, field.name)
        if self._tells_twins:
            read["edge_is_twin"] = d.edge_is_twin
        if "edge_state" in given:
            others["edge_state"] = given["edge_state"]
        return read, others

    def _cut(self, own: Any, sources: Sources) -> CutRows:
        """Return the slices of what a phase reads."""
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
        What the phase is given.
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
        #: Byte of a buffer where each array begins.
        self._places = dict(zip(sources.copied, cut.places, strict=True))

    def run(self, due: Sequence[Slice], in_place: Set[int]) -> Iterator[Turn]:
        """Give what runs each slice, and have those behind it copied meanwhile."""
        ring = self._cut.ring
        ring.begin(waits=any(self._versions))
        there = {s.number: ring.find(self._content(s)) for s in due}
        for number in in_place:
            there[number] = None
        # Those come first that have not left since the last sweep.
        order = sorted(due, key=lambda s: there[s.number] is None)
        for at, of in enumerate(order):
            self._fill_ahead(order[at:], there, in_place)
            buffer = there[of.number]
            if buffer is not None:
                ring.await_filled(buffer)
            yield self._turn(of, buffer)
            if buffer is not None:
                ring.note_swept(buffer)

    def _content(self, of: Slice) -> tuple[Any, ...]:
        return (self._cut, of.number, *self._places), self._refs, self._versions

    def _fill_ahead(
        self,
        left: Sequence[Slice],
        there: dict[int, Buffer | None],
        in_place: Set[int],
    ) -> None:
        """Have the slices that are left copied, as far as there are buffers."""
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

    def _turn(self, of: Slice, buffer: Buffer | None) -> Turn:
        """Return what runs one slice, and what it is given."""
        cut, phase = self._cut, self._own.phase
        arrays = self._arrays(of, buffer)
        cut.bind(of, everywhere=self._form == "plain" and not self._has_windows)
        given = dict(self._given)
        if phase.kind.pulls:
            for name in ("due", "swept"):
                if name in given:
                    given[name] = cut.part_of(given[name], of)
        if phase.spreads:  # to vertices of other slices, which are due later
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
        """Return the arrays of edges of a slice, from its buffer or where they are."""
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
        """Return the arrays of the graph, of one slice in one buffer."""
        names = self._own.graph_arrays
        key = of.number, -1 if buffer is None else buffer.number
        known = self._cut.arrays.get(key)
        if known is None:
            of_graph = {n: a for n, a in arrays.items() if n in names}
            known = self._cut.arrays[key] = SliceArrays(self._cut, of, of_graph)
        return known


def _has_windows(own: Any) -> bool:
    """Whether a phase goes by windows of the rows whose edges it sweeps."""
    windows = own.phase.rows.windows
    found = map(windows_of, own.graph_arrays)
    return any(one is not None and one[0].windows == windows for one in found)


def rows_of(array: Array, begin: int, end: int) -> Array:
    """Return some rows of an array of the GPU; the last may be of those before."""
    end = min(end, array.shape[0])
    item = array.dtype.itemsize * math.prod(array.shape[1:])
    place = address_of(array) + begin * item
    return array_at(place, (end - begin, *array.shape[1:]), array.dtype, array)
