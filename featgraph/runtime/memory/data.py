"""Values of a State as kernels take them: the namedtuple `d`, and stale entries.

`DataFields` returns the values of `d` for the kernels of a module. `StaleEntries` keeps
next buffers equal to current ones: the buffers of an iterated property swap after a
superstep, and the new next buffer then has old values at the committed entries, which
are *stale*. Before a phase, `StaleEntries.freshen` copies those that the phase does not
write. docs/design/0001-architecture.md describes this protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from featgraph.base.errors import StateError
from featgraph.fold.plan.plan import Phase
from featgraph.fold.printing.module import KernelSource
from featgraph.graph import Graph
from featgraph.graph.inputs.numbers import lost_value
from featgraph.graph.views.view import VertexSet, words_of
from featgraph.program.signature import PropertyKind, Signature
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import (
    ALL,
    CLOCK,
    Buffers,
    copy_values,
    note_written,
)
from featgraph.runtime.memory.graph_arrays import GraphArrays

__all__ = ["DataFields", "StaleEntries"]


#: Fields that change only with the version of a graph.
_COUNTS = ("vertex_count", "living_count", "edge_count")


class DataFields:
    """Returns the values of the fields of `d`, which are sorted by kind once.

    Parameters
    ----------
    source : KernelSource
        The generated module with the fields.
    graph : Graph
    arrays : GraphArrays
        The arrays of the graph, or of this rank's part of it, on the device.
    """

    def __init__(self, source: KernelSource, graph: Graph, arrays: GraphArrays) -> None:
        #: Values of constant fields, by index; None for others. These are in the lists
        #: below, one for each kind: index of the field, and the key of its value.
        self._fixed: list[Any] = [None] * len(source.fields)
        self._current: list[tuple[int, str]] = []
        self._next: list[tuple[int, str]] = []
        #: Arrays of properties at all vertices: index, name, and property.
        self._everywhere: list[tuple[int, str, str]] = []
        self._arrays = arrays
        self._counts: list[tuple[int, str]] = []
        self._scalars: list[tuple[int, _Scalar]] = []
        self._temporaries: list[tuple[int, tuple[str, str, tuple[int, ...]]]] = []
        #: Fields that are passed to `find`, and the number of the superstep.
        self._extra: list[tuple[int, str]] = []
        for place, field in enumerate(source.fields):
            column = source.plan.column_array(field.of)
            if column and field.source == "property":
                self._fixed[place] = arrays[column]
            elif field.source in {"property", "vector"}:
                self._current.append((place, field.of))
            elif field.source == "next":
                self._next.append((place, field.of))
            elif field.source == "everywhere":
                self._everywhere.append((place, field.name, field.of))
            elif field.source == "degrees":
                self._fixed[place] = arrays.degrees(graph, field.of)
            elif field.source == "scalar":
                scalar = _Scalar(field.name, np.dtype(field.dtype).type)
                self._scalars.append((place, scalar))
            elif field.source == "temporary":
                shape = (arrays.vertex_count, *source.plan.item_shape(field.of))
                self._temporaries.append((place, (field.name, field.dtype, shape)))
            elif field.name in _COUNTS and graph.ranks is None:
                self._counts.append((place, field.name))
            elif field.name in _COUNTS:
                self._fixed[place] = getattr(graph, field.name)
            elif (
                field.source in {"incremental", "seen", "fault"}
                or field.name == "superstep"
            ):
                self._extra.append((place, field.name))
            else:
                self._fixed[place] = arrays[field.name]
        #: Whether kernels read the number of the superstep from memory.
        self._has_clock = any(f.name == "superstep" and f.rank for f in source.fields)

    def bring(self, state: State, buffers: Buffers) -> None:
        """Upload the values of properties that are not on the device yet."""
        for _, name in self._current:
            if name in state:
                buffers.property(name)

    def find(
        self, state: State, buffers: Buffers, extra: Mapping[str, Any], in_place: bool
    ) -> list[Any]:
        """Return the values of all fields.

        Parameters
        ----------
        state : State
        buffers : Buffers
            The buffers of the State.
        extra : mapping of str to array
            Field -> array that belongs to a run: aggregates, or the record of faults.
        in_place : bool
            Use the current buffers in place of the next ones.
        """
        found, columns = self._fixed.copy(), state._columns
        current = buffers.current
        for place, name in self._current:
            array = current.get(name)
            found[place] = buffers.property(name) if array is None else array
        find_next = buffers.property if in_place else buffers.next_of
        next_ = current if in_place else buffers.next
        for place, name in self._next:
            array = next_.get(name)
            found[place] = find_next(name) if array is None else array
        for place, name in self._counts:
            found[place] = self._arrays.count(name)
        for place, name, of in self._everywhere:
            found[place] = buffers.everywhere(name, of)
        for place, scalar in self._scalars:
            value = columns[scalar.name].values
            if value is not scalar.given:
                scalar.put(value)
            found[place] = scalar.typed
        for place, key in self._temporaries:
            found[place] = buffers.temporary(*key)
        for place, name in self._extra:
            is_given = name in extra
            found[place] = extra[name] if is_given else self._number(state, buffers)
        return found

    def _number(self, state: State, buffers: Buffers) -> Any:
        """Return the number of the superstep, or a device array that holds it.

        A recorded kernel has fixed arguments, so that it reads the number from memory.
        """
        number = state.superstep
        if not self._has_clock:
            return number
        clock = buffers.temporary(*CLOCK, is_whole=True)
        if buffers.clock != number:
            buffers.device.fill(clock, np.int64(number))
            buffers.clock = number
        return clock


class _Scalar:
    """A scalar field, and its last value in the type of the kernel.

    An unchanged number is the same object in all launches, so that it is packed once.
    """

    __slots__ = ("given", "name", "type", "typed")

    def __init__(self, name: str, type_: Any) -> None:
        self.name, self.type = name, type_
        self.given: Any = None
        self.typed: Any = None

    def put(self, value: Any) -> None:
        """Set the number; raise StateError if it is too large for the kernel's type."""
        with np.errstate(over="ignore"):
            typed = self.type(value)
        if isinstance(value, float) and math.isfinite(value) and np.isinf(typed):
            shown, wanted = repr(value), np.dtype(self.type).name
            where = f"scalar {self.name!r}"
            raise lost_value(StateError, where, 0, (), shown, wanted)
        self.given, self.typed = value, typed


Array = Any
#: A bitvector, or a `VertexSet`.
Words = Any


class StaleEntries:
    """Refreshes stale entries of next buffers, and swaps buffers at the commit.

    In each superstep: `begin`, then `freshen` before each phase, then `commit`, or
    `fail` after an error.

    Parameters
    ----------
    source : KernelSource
        The module of the kernel.
    signature : Signature
        Types of the State's properties.
    device : Device
    has_ghosts : bool
        Whether buffers have rows of vertices that other ranks own, which no phase
        writes.
    """

    def __init__(
        self,
        source: KernelSource,
        signature: Signature,
        device: Device,
        has_ghosts: bool,
    ) -> None:
        self._has_ghosts = has_ghosts
        self._forwarded = source.forwarded
        self._commits_in_kernel = source.plan.options.asynchronous
        self._written = source.plan.facts.writes_next
        self._of_vertices = frozenset(
            name for name, t in signature.items() if t.kind is PropertyKind.VERTEX
        )
        self._of_edges = [n for n in self._written if n not in self._of_vertices]
        self._device = device
        #: Properties that phases of the superstep in progress have accessed.
        self._touched: set[str] = set()
        #: Edge property -> the sources of the edges at which it was written.
        self._sources: dict[str, Words] = {}
        self._in_place = False

    def begin(self, in_place: bool = False) -> None:
        """Begin a superstep, in which nothing has been refreshed or written yet.

        With `in_place`, kernels write to the current buffers.
        """
        self._touched, self._sources, self._in_place = set(), {}, in_place

    def remember_sources(self, phase: Phase, sources: Words) -> None:
        """Store the sources of the edges whose next entries a phase writes."""
        for name in phase.writes_next:
            if name not in self._of_vertices:
                known, words = self._sources.get(name), words_of(sources)
                self._sources[name] = (
                    words if known is None else self._device.sets.union(known, words)
                )

    def leave_to_kernel(self, buffers: Buffers, phase: Phase) -> None:
        """Mark next entries of edges as fresh: the kernel of the phase copies them.

        A kernel that sweeps changed edges only finds the stale entries itself. After
        the superstep, all entries that it writes are stale.
        """
        for name, _ in phase.touches_next:
            buffers.next_of(name)
            buffers.stale[name] = None
            self._touched.add(name)
        self._sources |= dict.fromkeys(phase.writes_next, ALL)

    def freshen(
        self, buffers: Buffers, phase: Phase, swept: Words, sources: Words = None
    ) -> None:
        """Refresh stale next entries that a phase reads, or does not write.

        The phase writes entries of the vertices `swept`, and of edges out of `sources`
        (of `swept` if that is None). Ghosts are only read. If the phase reads none, the
        refresh of stale ghosts waits until the end of the superstep, when it is known
        which of them are received anyway.
        """
        if self._in_place:
            return
        for name, reads in phase.touches_next:
            if name in self._touched:  # an earlier phase of the superstep has done it
                continue
            of_vertices = sources is None or name in self._of_vertices
            if name in self._forwarded and not self._has_ghosts:
                # The kernel writes all in-edges of all vertices.
                of_vertices = of_vertices or isinstance(swept, VertexSet)
            written = swept if of_vertices else sources
            is_all, has_dead = isinstance(written, VertexSet), False
            if is_all:
                has_dead = written.has_dead and name in self._of_vertices
                is_all, written = not written.has_ghosts, written.words
            self._touched.add(name)
            next_ = buffers.next.get(name)
            if next_ is None:
                next_ = buffers.next_of(name)
            stale = buffers.stale.get(name, ALL)
            is_whole = stale is written or (is_all and not self._has_ghosts)
            if has_dead:  # no phase writes their entries
                is_whole = False
            elif not (is_whole or isinstance(stale, str)):
                is_whole = of_vertices and is_all
            # Drop the last reference to the set now, so that its memory is reused.
            buffers.stale[name] = None
            ghosts = buffers.stale_ghosts.pop(name, None)
            if ghosts is not None and not isinstance(stale, str):
                if reads or self._commits_in_kernel:
                    self.refresh(buffers, name, ghosts, None)
                else:
                    buffers.late_ghosts[name] = ghosts
            if stale is None or (not reads and is_whole):
                continue
            if isinstance(stale, str):
                copy_values(buffers, next_, buffers.property(name))
            else:
                self.refresh(buffers, name, stale, None if reads else written)

    def refresh(
        self, buffers: Buffers, name: str, words: Words, without: Words | None
    ) -> None:
        """Copy current entries to the next buffer at `words`, but not at `without`.

        This also undoes writes of a phase. For a property of edges, the entries are
        those of the out-edges of the vertices.
        """
        device = self._device
        next_, current = buffers.next[name], buffers.current[name]
        if name in self._of_vertices:
            device.sets.refresh_vertices(words, next_, current, without)
            return
        if without is not None:
            words = device.sets.without(words, without)
        device.sets.refresh_edges(words, next_, current, buffers.graph)

    def restore_edges(self, buffers: Buffers, name: str, edge_state: Array) -> None:
        """Undo writes to the next entries of edges that were stopped."""
        current, next_ = buffers.property(name), buffers.next_of(name)
        self._device.rows.copy_marked(edge_state, current, next_)

    def commit(self, buffers: Buffers, passed: Words | None) -> None:
        """Swap the buffers of all written properties.

        The new next buffers are stale at the vertices of `passed`, and at all edges on
        which edge functions have run. An asynchronous kernel has written both buffers.
        """
        if self._commits_in_kernel:  # both buffers are equal
            buffers.end_in_place(dict.fromkeys(self._written))
        elif self._in_place:
            buffers.end_in_place(dict.fromkeys(self._written, ALL))
        else:
            sources, self._sources = self._sources, {}
            stale = dict.fromkeys(self._written, passed)
            for name in self._of_edges:
                stale[name] = sources.get(name)
            buffers.swap(stale)

    def repeat(self, buffers: Buffers, in_place: bool) -> None:
        """End a superstep that has run in a replay.

        Which entries it has committed is not recorded, so that all become stale.
        """
        everywhere = dict.fromkeys(self._written, ALL)
        if self._commits_in_kernel or in_place:
            buffers.end_in_place(everywhere)
        else:
            buffers.swap(everywhere)

    def fail(self, buffers: Buffers) -> None:
        """End a superstep that failed before its commit.

        The buffers that it wrote may have values that were never committed.
        """
        touched = self._written if self._in_place else self._touched
        note_written(buffers, touched)
        buffers.late_ghosts.clear()
        buffers.mirrored.clear()
        buffers.stale.update(dict.fromkeys(touched, ALL))
