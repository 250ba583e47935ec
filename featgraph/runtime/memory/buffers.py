"""The buffers of a State on a device, and what is stale in them.

What was bound to a State that has ended is kept for the next one on its graph
(0068).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.padding import stored_shape
from featgraph.arrays.values import DeviceValues, Filled, Reordered, host_values
from featgraph.config import config
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.folder import fold_due_set
from featgraph.fold.plan.plan import Phase
from featgraph.fold.plan.traits import graph_traits
from featgraph.fold.printing.module import Entry
from featgraph.graph import Graph
from featgraph.graph._structure import weights_there
from featgraph.graph.views.view import (
    GraphView,
    Preparation,
    Prepared,
    Stamps,
    VertexSet,
    prefix,
)
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State
from featgraph.runtime.devices.bound import BoundEntry, RowKernel
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.devices.spare import Kit
from featgraph.runtime.memory.places import Places
from featgraph.runtime.streaming.needs import is_of_edges, shared_use

if TYPE_CHECKING:
    from featgraph.runtime.streaming.placement import Placement

__all__ = ["ALL", "Buffers", "GraphArrays", "arrays_for", "buffers_of", "held_sets"]

#: Keys, and things of one key, that are kept at a time.
_MOST_KEYS, _MOST_OF_A_KEY = 64, 4


class Idle:
    """Things that are bound to a graph on a device, and to no State any more.

    A State ends in any thread, and within whatever allocates there: nothing here waits
    for a lock, and each change of a list is one call.
    """

    def __init__(self) -> None:
        self._things: dict[Hashable, list[Any]] = {}
        self._is_over = False

    def take(self, key: Hashable) -> Any | None:
        """Return a thing that is nobody else's from here on; None if there is none."""
        found = self._things.get(key)
        if not found:
            return None
        try:
            return found.pop()
        except IndexError:  # another thread has it
            return None

    def give(self, key: Hashable, thing: Any) -> None:
        """Keep a thing for the next State; where there are many, it goes."""
        if self._is_over:
            return
        if key not in self._things and len(self._things) >= _MOST_KEYS:
            self._things.clear()
        found = self._things.setdefault(key, [])
        if len(found) < _MOST_OF_A_KEY:
            found.append(thing)

    def clear(self) -> None:
        """Let go of all of them."""
        self._things.clear()

    def end(self) -> None:
        """Let go of all of them, and keep none that comes: of a State that is left."""
        self._is_over = True
        self._things.clear()

    def __len__(self) -> int:
        return sum(map(len, list(self._things.values())))


#: Stale everywhere.
ALL = "all"
Stale = Any
_VECTOR = PropertyKind.VECTOR
#: Bytes of values on the device that are rather copied than bound where they are: 40 us
#: (NVIDIA H200), where recording supersteps anew takes a millisecond or more.
_MOST_MOVED = 1 << 26
#: Entries of kernels that a graph has bound at a time.
_MOST_ENTRIES = 128
#: Sets of arrays of schedules that a graph has at a time, such as for several seeds.
_MOST_PREPARED = 8

_graphs: weakref.WeakKeyDictionary[Graph, dict[str, GraphArrays]] = (
    weakref.WeakKeyDictionary()
)


class GraphArrays(GraphView, Mapping[str, Any]):
    """A view with its arrays, uploaded when first asked for, and kernels in place.

    Kernels that go along its rows are of its layout. All of it holds until the graph's
    arrays move or its shape changes; a new version is in the same arrays.
    """

    def __init__(
        self, graph: Graph, device: Device, whole: Graph | None = None
    ) -> None:
        super().__init__(graph)
        self._device = device
        self._arrays: dict[str, Any] = {}
        #: Of vertices and edges, in this version.
        self._counts: Any = None
        #: Number of an array that the graph has -> it, in the order of edge ids.
        self._shared: dict[int, Any] = {}
        self._kernels: dict[tuple[str, str], RowKernel] = {}
        #: Of the kernels of all foldmaps that have run on the graph of late.
        self._entries: dict[tuple[Kernel, str], BoundEntry] = {}
        #: Schedule, mapping, and what else arrays of a schedule depend on -> these.
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        #: Name of a count -> the set of all that it counts, and how many they are.
        self._full: dict[str, tuple[VertexSet, int]] = {}
        #: Of a part, which does not change: vertices and edges of the whole graph.
        self._whole = None
        if whole is not None and whole is not graph:
            self._whole = whole.vertex_count, whole.edge_count
        #: What finds a place for arrays, where a GPU may hold so much only.
        self.placement: Placement | None = None
        limit = config.memory_limit_bytes if device.is_scarce else None
        if limit is not None:
            self.placement = placement_on(self, device, limit)
        #: What States on the graph have left; None on devices that keep nothing, and
        #: where what is kept would count.
        self._spare = device.make_spare_memory() if limit is None else None
        #: What was bound to States that are gone. It refers to these arrays, so that it
        #: has to be let go of where the graph goes.
        self.idle = Idle()
        weakref.finalize(graph, self.idle.end).atexit = False

    def is_under(self, limit: int | None) -> bool:
        """Whether these are the arrays of the graph under a memory limit."""
        if not self._device.is_scarce:
            return True
        return limit == (None if self.placement is None else self.placement.limit)

    def lend_kit(
        self, names: tuple[str, ...], to: object
    ) -> tuple[Kit, Callable[[], object]] | None:
        """Return memory of a State that is gone: see `SpareMemory.lend`."""
        if self._spare is None:
            return None
        return self._spare.lend(names, to, self._arrays)

    @property
    def whole(self) -> tuple[int, int]:
        """Vertices and edges of the graph of which it is a part."""
        return self._whole or self.room

    @property
    def room(self) -> tuple[int, int]:
        """Vertices and edges that there is room for."""
        return self.vertex_count, self.edge_count

    @property
    def everyone(self) -> VertexSet:  # type: ignore[override]
        """All vertices: a prefix of the ids."""
        return self.all_of("vertex_count")

    def all_of(self, name: str) -> VertexSet:
        """Return the set of all vertices, "vertex_count", or edges, "edge_count".

        Its words stay where they are in other versions.
        """
        count = self.count(name)
        everything, then = self._full.get(name, (None, -1))
        if everything is None or then != count:
            words = self._device.upload(prefix(count, getattr(self, name)))
            if everything is None:
                everything = VertexSet(words)
            else:
                self._device.copy(everything.words, words)
            self._full[name] = everything, count
        return everything

    def count(self, name: str) -> int:
        """Return a count, "vertex_count" or "edge_count", read once a version."""
        self.follow()
        if self._counts is None:
            counts = self._sizes.counts
            if not isinstance(counts, tuple):
                counts = tuple(map(int, self._device.download(counts)))
            self._counts = counts
        return self._counts[name == "edge_count"]  # type: ignore[no-any-return]

    def __getitem__(self, name: str) -> Any:
        self.follow()
        if name not in self._arrays:
            self._arrays[name] = self._made(name)
        return self._arrays[name]

    def _made(self, name: str) -> Any:
        """Make an array, as its layout has it."""
        graph, layout, place = self.graph, self.layout, self.placement
        laid_out = None if layout is None else layout.array(graph, name)
        if laid_out is not None:
            return self._device.upload(laid_out)
        if place is not None:
            return place.graph_array(name)
        return self._device.graph_array(graph, name)

    def forget(self, then: Stamps, now: Stamps) -> None:
        """Let go of all arrays; in another version, of values in the order of ids."""
        self._shared.clear()
        if now.version is not then.version or now.shape is not then.shape:
            self._prepared.clear()
        self._counts = None
        if not now.binds_as(then):
            self._arrays.clear()
            self._let_go()
            if self.placement is not None:
                self.placement.forget_graph()
        for name in [*self._full]:
            self.all_of(name)

    def _let_go(self) -> None:
        """Let go of what refers to arrays."""
        for kept in (
            self._shared, self._full, self._kernels, self._entries, self.idle,
        ):  # fmt: skip
            kept.clear()

    def shared(self, values: Reordered) -> Any:
        """Return an array that the graph has in the order of edge ids, for all States.

        Nothing writes it.
        """
        self.follow()
        key = id(values.array)
        if key not in self._shared:
            place, there = self.placement, None
            if place is None and self._device.is_scarce:
                there = weights_there(self.graph, values.array)
            self._shared[key] = (
                there
                if there is not None
                else self._device.rows.upload(values)
                if place is None
                else place.upload(self, shared_use(values), values)
            )
        return self._shared[key]

    def prepared(
        self, phase: Phase, columns: dict[str, Any], options: dict[str, int]
    ) -> tuple[Prepared, Preparation]:
        """Return what the schedule of a phase prepares, and what that took now.

        It is kept until the version or the shape of the graph changes, or a column.
        """
        schedule = phase.schedule
        self.follow()
        inputs = options.get(schedule.seed), phase.conflicts
        key = schedule.name, phase.mapping, *inputs, *columns, *options.items()
        versions = tuple(column.version for column in columns.values())
        known = self._prepared.get(key)
        if known is not None and known.versions == versions:
            return known, Preparation()
        begun = time.perf_counter()
        made = schedule.prepare(phase.mapping, self, *inputs, columns, options)
        arrays = {
            name: self._device.upload(array) if isinstance(array, np.ndarray) else array
            for name, array in made.items()
        }
        size = sum(a.size * a.dtype.itemsize for a in arrays.values())
        found = Prepared(time.perf_counter() - begun, size, arrays, versions)
        if len(self._prepared) >= _MOST_PREPARED and key not in self._prepared:
            self._prepared.pop(next(iter(self._prepared)))
        self._prepared[key] = found
        return found, found

    def move_edges(self) -> None:
        """Let go of arrays of edges: whoever asks for them gets others."""
        self._arrays = {n: a for n, a in self._arrays.items() if not is_of_edges(n)}
        self._let_go()
        self.advance("moves")
        self._at = self.stamps  # all that has moved is gone

    def turns_of(self, bound: Any) -> Any:
        """Return what runs phases of a kernel slice by slice, where that may be."""
        return None if self.placement is None else self.placement.turns_of(bound)

    def degrees(self, graph: Graph, name: str) -> Any:
        """Return degrees of all vertices of a graph, of which this is a part."""
        key = f"{name} everywhere"
        if key not in self._arrays:
            found = np.ascontiguousarray(getattr(graph, name), np.int32)
            self._arrays[key] = self._device.upload(found)
        return self._arrays[key]

    def edges_along(self, along: str) -> int:
        """Return how many edges the rows along some edges have."""
        return self.edge_count * (2 if along == "both" else 1)

    def kernel(self, name: str, along: str) -> RowKernel:
        """Return a kernel over sets, by its name, that goes along some rows."""
        key = name, along
        found = self._kernels.get(key)
        if found is None:
            self._kernels[key] = found = self.kernel_over(name, along, self)
        return found

    def kernel_over(
        self, name: str, along: str, arrays: Mapping[str, Any]
    ) -> RowKernel:
        """Return the same with other arrays of the graph in place."""
        target = self._device.name
        traits = graph_traits(self.graph, target)
        return RowKernel(fold_due_set(name, traits, target, along), along, arrays)

    def entry(self, kernel: Kernel, entry: Entry) -> BoundEntry:
        """Return an entry of a kernel with these arrays in place."""
        self.follow()
        key = kernel, entry.name
        found = self._entries.get(key)
        if found is None:
            if len(self._entries) >= _MOST_ENTRIES:
                self._entries.clear()
            self._entries[key] = found = BoundEntry(kernel, entry, self, self)
        return found

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def placement_on(arrays: GraphArrays, device: Device, limit: int) -> Placement:
    """Return what finds a place for arrays on a GPU; imports the dialect."""
    from featgraph.runtime.streaming.placement import Placement

    return Placement(arrays, device, limit)


def graph_arrays(
    graph: Graph, device: Device, whole: Graph | None = None
) -> GraphArrays:
    """Return the arrays of `graph` on `device`; states on one graph share them.

    It may be a part of a `whole` one. Under another memory limit there are others.
    """
    cached = _graphs.setdefault(graph, {})
    known = cached.get(device.name)
    if known is None or not known.is_under(config.memory_limit_bytes):
        if known is not None:
            known.idle.end()
        cached[device.name] = known = GraphArrays(graph, device, whole)
    known.follow()
    return known


def arrays_for(state: State, device: Device) -> GraphArrays:
    """Return the arrays of a State's graph on `device`, where the State may be, too."""
    found = state.residency
    if isinstance(found, Buffers) and found.device is device:
        return found.graph
    return graph_arrays(state.graph.part, device, state.graph)


class Buffers:
    """Current values of a State on a device: the `Place` that holds its columns."""

    def __init__(self, state: State, device: Device) -> None:
        self._state = weakref.ref(state)
        self.device = device
        self.graph = graph_arrays(state.graph.part, device, state.graph)
        #: How many vertices and edges its arrays have entries for.
        self.room = self.graph.room
        #: Where values of edges are, if not on the device.
        self.places = Places(self)
        self.current: dict[str, Any] = {}
        self.next: dict[str, Any] = {}
        #: Properties whose buffer is the graph's.
        self._shared: set[str] = set()
        #: Property -> memory of values that were overwritten, for those that come: what
        #: has been recorded finds them there.
        self.outdated: dict[str, Any] = {}
        #: Property -> where its next buffer differs from the current one: None, words,
        #: or `ALL`.
        self.stale: dict[str, Stale] = {}
        #: Property -> ghosts at which it differs besides.
        self.stale_ghosts: dict[str, Any] = {}
        #: Of these, ghosts that the superstep at hand has left as they were: behind it
        #: those are refreshed that have not come.
        self.late_ghosts: dict[str, Any] = {}
        #: What a State before has left for this one, and what gives it back.
        self._kit: Kit | None = None
        #: Sets of the next superstep, and of the one behind it, by their numbers of
        #: words: they change places as buffers do.
        self.pools: tuple[dict[int, list[Any]], ...] = ({}, {})
        # Results of reduces, which come and go, are no part of what it is.
        columns = state._columns.items()
        names = tuple(n for n, column in columns if column.type.kind is not _VECTOR)
        lent = self.graph.lend_kit(names, self)
        if lent is not None:
            self._kit, self._give_back = lent
            self.pools = self._kit.pools
        self.temporaries: dict[tuple[str, str, tuple[int, ...]], Any] = {}
        #: Property -> vertices, or edges, of this rank that were written since other
        #: ranks that have them as ghosts were told.
        self.unsent: dict[str, Any] = {}
        #: Array with a property's rows of all vertices, and the property -> vertices of
        #: this rank that were written since it was filled, or None. It is whole as soon
        #: as these are in it; what is not here is filled anew.
        self.mirrored: dict[tuple[str, str], Any] = {}
        #: Properties whose rows at ghosts kernels have read.
        self.read_at_ghosts: set[str] = set()
        #: Property -> what its rows at ghosts are rounded to, where they are.
        self.rounded: dict[str, str] = {}
        #: What schedules have prepared for it since that was taken.
        self.preparation = Preparation()
        #: What kernels have for all vertices, of which this rank has a part.
        self._everywhere: dict[str, Any] = {}

    @property
    def state(self) -> State:
        """The State whose values these are."""
        state = self._state()
        if state is None:
            raise ReferenceError("the State is gone")
        return state

    # -- Place

    def download(self, name: str) -> npt.NDArray[Any]:
        """Return the current values on the host."""
        column = self.state._columns[name]
        if column.type.kind is not _VECTOR:
            return self._downloaded(name)
        self._land(name)
        return column.values  # type: ignore[no-any-return]

    def _land(self, name: str) -> None:
        """Have the State hold a vector, too: no kernel writes one but a reduce."""
        column = self.state._columns[name]
        if column.values is None:
            column.values = np.array(self._downloaded(name))

    def written(self, name: str) -> None:
        """Drop what a write from outside has put out of date."""
        found = self.current.pop(name, None)
        if name in self._shared:
            self._shared.remove(name)
            found = None
        # A vector may be where a reduce puts its result.
        is_own = self.state._columns[name].type.kind is not _VECTOR
        if found is not None and is_own and self.device.recorder is not None:
            self.outdated[name] = found
        self.stale[name] = ALL
        self.rounded.pop(name, None)
        _fill_anew(self.mirrored, name)

    def array(self, name: str) -> Any:
        """Return an array, or `DeviceValues`; None where the State has the values.

        Vectors are lent by the host.
        """
        found = self.current.get(name)
        if self.state._columns[name].type.kind is _VECTOR:
            self._land(name)
            return None
        if found is None:
            return None
        on_host = self.places.on_host(name, found, self._shape(name, found))
        return self.held(name, found) if on_host is None else on_host

    def held(self, name: str, array: Any) -> Any:
        """Return an array as values of a property, for who holds or lends them."""
        return self.device.rows.held(array, self._shape(name, array))

    def _shape(self, name: str, array: Any) -> tuple[int, ...]:
        """Return the shape of the values that a buffer of a property has."""
        type_, rows = self.state._columns[name].type, array.shape[0]
        count, room = self._sizes_of(name)
        return (min(count, rows) if rows == room else rows, *type_.item_shape)

    def _sizes_of(self, name: str) -> tuple[int, int]:
        """Return how many entries a property has, and how many it has room for."""
        is_edge = self.state._columns[name].type.kind is PropertyKind.EDGE
        count = self.graph.count("edge_count" if is_edge else "vertex_count")
        return count, self.room[is_edge]

    def _with_room(self, name: str, values: Any) -> Any:
        """Return values with as many entries as the graph has room for, zeros behind.

        Values without room are returned themselves where the graph has none.
        """
        count, room = self._sizes_of(name)
        if room == count:
            return values
        values = host_values(values)
        made = np.zeros((room, *values.shape[1:]), values.dtype)
        made[: len(values)] = values
        return made

    def _downloaded(self, name: str) -> npt.NDArray[Any]:
        """Return what a buffer has on the host."""
        found = self.current[name]
        if self.state._columns[name].type.kind is _VECTOR:
            return self.device.download(found)
        shape = self._shape(name, found)
        on_host = self.places.on_host(name, found, shape)
        if on_host is not None:
            return np.array(on_host)
        return self.device.rows.download(found, shape)

    def unshare(self, name: str) -> None:
        """Have values in memory that is no other State's: they may be written."""
        if name in self._shared:
            shared = self.current[name]
            shape, dtype = tuple(shared.shape), shared.dtype.name
            made = self.places.another(name, shape, dtype)
            if made is None:
                made = self.device.empty(shape, dtype)
            if not self.places.copy(made, shared):
                self.device.copy(made, shared)
            self.current[name] = made
            self._shared.remove(name)

    def touched(self, name: str) -> None:
        """Note that the current values have been written in place, from outside."""
        column = self.state._columns[name]
        if column.type.kind is _VECTOR:
            self._land(name)
        if column.type.kind is _VECTOR or column.borrowed is not None:
            column.mark_written(None)
        elif name in self.current:
            self.stale[name] = ALL
            self.places.touched(self.current[name])
            ranks = self.state.graph.ranks
            if ranks is not None:
                self.unsent[name] = ranks.exchange(self.device).own(None)
                _fill_anew(self.mirrored, name)

    def own(self, name: str) -> None:
        """Have values in memory that is not the caller's: they will be written."""
        column = self.state._columns.get(name)
        if column is None:
            return
        self.unshare(name)
        if isinstance(column.values, Reordered):
            column.values = replace(column.values, is_shared=False)
        if column.borrowed is None:
            return
        lent: npt.NDArray[Any] = column.borrowed
        if self.current.get(name) is lent:
            self.current[name] = lent.copy()
        column.values = None if name in self.current else lent.copy()
        column.borrowed = None

    def leave(self) -> None:
        """Bring everything back to the State, for another device to take over."""
        self.renew_ghosts()
        for name in self.current:
            column = self.state._columns[name]
            if column.borrowed is None:
                column.take_back(np.array(self._downloaded(name)))
        self.drop()

    def drop(self) -> None:
        """Let go of everything: the State has it, or takes other values."""
        for name in self.current:
            self.state._columns[name].held = None
        # Whatever is bound to this may outlive it; arrays of the device do not.
        for arrays in (self.current, self.next, self.outdated, self.temporaries):
            arrays.clear()
        if self._kit is not None:
            self._give_back()
            self._kit = None
        self._everywhere.clear()
        self.mirrored.clear()
        self.stale.clear()
        self.stale_ghosts.clear()
        self._shared.clear()
        self.state.residency = None

    # -- rows of other ranks

    def renew_ghosts(self) -> None:
        """Have all that other ranks own as these have it; all ranks call it."""
        if self.unsent or self.rounded:
            self.state.graph.ranks.exchange(self.device).renew(self)

    def ghosts_came(self, names: Iterable[str], ghosts: Any) -> None:
        """Note that rows of ghosts have come: the other buffers have earlier ones."""
        names = tuple(names)
        note_written(self, names)
        for name in names:
            if isinstance(self.stale.get(name, ALL), str):
                continue
            known = self.stale_ghosts.get(name)
            self.stale_ghosts[name] = (
                ghosts if known is None else self.device.sets.union(known, ghosts)
            )

    # -- kernel arguments

    def property(self, name: str) -> Any:
        """Return the current buffer of a property."""
        found = self.current.get(name)
        if found is None:
            column = self.state._columns[name]
            if isinstance(column.values, Reordered) and column.values.is_shared:
                found = self.graph.shared(column.values)
                self._shared.add(name)
            elif column.type.kind is _VECTOR:
                found = self._upload_vector(name, column.values)
            else:
                found = self._upload(name, column.values)
            self.current[name] = found
            column.held = self, name
            if not isinstance(column.values, np.ndarray):
                column.values = None  # they are in the buffer, or it is they
        return found

    def _upload_vector(self, name: str, values: Any) -> Any:
        """Return what belongs to no vertex where the State before had it."""
        kit, use = self._kit, ("vector", name)
        memory = None if kit is None else kit.take(use, values.shape, values.dtype)
        found = self.device.upload(values, memory)
        if kit is not None and found is not memory:
            kit.note(use, found)
        return found

    def _upload(self, name: str, values: Any) -> Any:
        """Return a buffer with some values of a property.

        Values in another order are in new memory, and so are those that come with much
        memory of their own. Few are copied to where those of the State before were:
        what is recorded of supersteps has addresses, and is recorded anew elsewhere.
        """
        values = self._with_room(name, values)
        memory = self.outdated.pop(name, None)
        placed = self.places.upload(name, values, memory)
        if placed is not None:
            return placed
        is_copied = isinstance(values, Filled | np.ndarray) or (
            isinstance(values, DeviceValues)
            and values.array.size * values.dtype.itemsize <= _MOST_MOVED
        )
        kit = self._kit if is_copied else None
        use = "current", name
        if memory is None and kit is not None:
            stored = stored_shape(tuple(values.shape), values.dtype)
            memory = kit.take(use, stored, values.dtype)
        found = self.device.rows.upload(values, memory)
        if kit is not None and found is not memory:
            kit.note(use, found)
        return found

    def everywhere(self, name: str, of: str) -> Any:
        """Return memory for values of a property at all vertices of the graph.

        Of a property of edges, at all that this rank has, of others, too.
        `name` says which: there may be several for one property.
        """
        if name not in self._everywhere:
            type_, graph = self.state.signature[of], self.state.graph
            is_of_edges = type_.kind is PropertyKind.EDGE
            count = graph.part.edge_count if is_of_edges else graph.vertex_count
            shape = (count, *type_.item_shape)
            self._everywhere[name] = self.device.rows.empty(shape, type_.dtype)
        return self._everywhere[name]

    def next_of(self, name: str) -> Any:
        """Return the next buffer of an iterated property.

        New ones are stale everywhere.
        """
        if name not in self.next:
            self.next[name] = self._empty_like(name, self.property(name))
            self.stale[name] = ALL
        return self.next[name]

    def _empty_like(self, name: str, current: Any) -> Any:
        """Return another buffer of a property, with any contents."""
        use = "next", name
        if self._kit is not None:
            found = self._kit.take(use, current.shape, current.dtype)
            if found is not None:
                return found
        type_ = self.state._columns[name].type
        dtype, shape = type_.dtype, (current.shape[0], *type_.item_shape)
        placed = self.places.next_of(name, shape, dtype)
        if placed is not None:
            return placed
        made = self.device.rows.empty(shape, dtype)
        if self._kit is not None:
            self._kit.note(use, made)
        return made

    def temporary(
        self, name: str, dtype: str, shape: tuple[int, ...], *, is_whole: bool = False
    ) -> Any:
        """Return memory of the foldmap's own, cached between supersteps.

        It begins as zeros, unless `is_whole` says that kernels write all of it before
        they read any.
        """
        key = (name, dtype, shape)
        found = self.temporaries.get(key)
        if found is None:
            found = self.temporaries[key] = self._working_memory(key, is_whole)
        return found

    def _working_memory(
        self, key: tuple[str, str, tuple[int, ...]], is_whole: bool
    ) -> Any:
        name, dtype, shape = key
        placed = self.places.working_memory(name, shape, dtype)
        if placed is not None:
            return placed
        kit = self._kit
        found = None if kit is None else kit.take(key, shape, np.dtype(dtype))
        if found is not None:
            if not is_whole:
                self.device.fill(found, 0)  # as new memory is
            return found
        made = self.device.working_memory(shape, dtype)
        if kit is not None:
            kit.note(key, made)
        return made

    def swap(self, stale: Mapping[str, Stale]) -> None:
        """Make the next buffer current.

        The old one differs from it where `stale` says.
        """
        current, next_ = dict(self.current), dict(self.next)
        for name in stale:
            current[name], next_[name] = next_[name], current[name]
        changed, pools = {**self.stale, **stale}, self.pools[::-1]
        note_written(self, stale)
        state = self.state
        number = state.superstep + 1
        # No calls from here on: Python handles an interrupt before or after them all.
        self.current, self.next, self.stale = current, next_, changed
        self.pools = pools
        state.superstep = number

    def end_in_place(self, stale: Mapping[str, Stale], number: int = 1) -> None:
        """End supersteps of a kernel that has committed.

        The next buffers differ from the current ones where `stale` says.
        """
        note_written(self, stale)
        self.stale = {**self.stale, **stale}
        self.pools = self.pools[::-1]
        self.state.superstep += number


def note_written(buffers: Buffers, names: Iterable[str]) -> None:
    """Advance the versions of properties that kernels have written."""
    columns = buffers.state._columns
    for name in names:
        columns[name].mark_written(buffers)


def _fill_anew(mirrored: dict[tuple[str, str], Any], name: str) -> None:
    """Have all arrays with a property's rows of all vertices be filled anew."""
    for key in [key for key in mirrored if key[1] == name]:
        del mirrored[key]


def held_sets(buffers: Buffers) -> frozenset[tuple[str, int]]:
    """Return which sets are held: where buffers are stale, and what waits.

    Behind two supersteps that leave the same, the next one asks for the same.
    """
    held: dict[str, dict[Any, Any]] = {
        "": buffers.stale,
        "ghosts: ": buffers.stale_ghosts,
        "unsent: ": buffers.unsent,
        "mirrored: ": buffers.mirrored,
    }
    return frozenset(
        (f"{kind}{name}", id(words))
        for kind, of in held.items()
        for name, words in of.items()
    )


def buffers_of(state: State, device: Device) -> Buffers:
    """Return the buffers of `state` on `device`, moving the state there."""
    found = state.residency
    if isinstance(found, Buffers):
        if found.device is device and found.room == found.graph.room:
            return found
        found.leave()
    made = Buffers(state, device)
    state.residency = made
    return made
