"""The arrays of a graph on a device, which all States on the graph share.

`graph_arrays` returns the `GraphArrays` of a graph. They upload arrays on demand, cache
kernels bound to these, and drop both when the graph changes. The arrays that schedules
prepare are kept here, too, and so are supersteps of deleted States (`Idle`).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from featgraph.base.config import config
from featgraph.cuda.values import Reordered
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.folder import fold_due_set
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.traits import graph_traits
from featgraph.fold.printing.module import Entry
from featgraph.graph import Graph
from featgraph.graph.views.structure import gpu_weights, require_fixed
from featgraph.graph.views.view import (
    GraphView,
    Preparation,
    Prepared,
    Stamps,
    VertexSet,
    prefix,
)
from featgraph.program.active import pack_mask, resized
from featgraph.program.column import Column
from featgraph.program.signature import PropertyKind
from featgraph.runtime.devices.protocol import BoundEntry, Device, RowKernel
from featgraph.runtime.devices.spare import Kit
from featgraph.runtime.streaming.needs import is_of_edges, shared_use, shown

if TYPE_CHECKING:
    from featgraph.runtime.streaming.placement import Placement

__all__ = [
    "GraphArrays", "Idle", "copied_columns", "explain_prepared", "graph_arrays",
    "is_prepared", "prepared_options",
]  # fmt: skip

#: Names of the counts of a graph, in the order of `GraphArrays.count`.
_COUNTED = "vertex_count", "edge_count", "living_count"
#: Most keys, and objects per key, of `Idle`.
_MOST_KEYS, _MOST_OF_A_KEY = 64, 4


class Idle:
    """Supersteps of deleted States, bound to a graph on a device, for later States.

    A State may be deleted by the garbage collector in any thread, during any
    allocation. No method waits for a lock, therefore, and each change of a list is one
    atomic call.
    """

    def __init__(self) -> None:
        self._things: dict[Hashable, list[Any]] = {}
        self._is_over = False

    def take(self, key: Hashable) -> Any | None:
        """Remove and return an object with this key; None if there is none."""
        found = self._things.get(key)
        if not found:
            return None
        try:
            return found.pop()
        except IndexError:  # another thread has it
            return None

    def give(self, key: Hashable, thing: Any) -> None:
        """Keep an object for the next State; drop it if there are enough."""
        if self._is_over:
            return
        if key not in self._things and len(self._things) >= _MOST_KEYS:
            self._things.clear()
        found = self._things.setdefault(key, [])
        if len(found) < _MOST_OF_A_KEY:
            found.append(thing)

    def clear(self) -> None:
        """Drop all objects."""
        self._things.clear()

    def end(self) -> None:
        """Drop all objects, and from now on each object that is given."""
        self._is_over = True
        self._things.clear()

    def __len__(self) -> int:
        return sum(map(len, list(self._things.values())))


#: Most entries of kernels that are bound to a graph.
_MOST_ENTRIES = 128
#: Most sets of arrays that schedules have prepared for a graph, as for several seeds.
_MOST_PREPARED = 8

_graphs: weakref.WeakKeyDictionary[Graph, dict[str, GraphArrays]] = (
    weakref.WeakKeyDictionary()
)


class GraphArrays(GraphView, Mapping[str, Any]):
    """A mapping of names to arrays of a graph on a device, and kernels bound to them.

    Arrays are uploaded when they are first used, and kernels are printed for the layout
    of the graph. Both stay valid until the arrays of the graph move or its shape
    changes; a new version of the graph uses the same arrays.

    Parameters
    ----------
    graph : Graph
        A graph, or the part of it that a rank has.
    device : Device
    whole : Graph, optional
        The graph of which `graph` is a part.
    """

    def __init__(
        self, graph: Graph, device: Device, whole: Graph | None = None
    ) -> None:
        super().__init__(graph)
        self._device = device
        self._arrays: dict[str, Any] = {}
        #: Name of a count -> its value in this version.
        self._counts: dict[str, int] | None = None
        #: Identity of an array of the graph -> its copy in the order of edge ids.
        self._shared: dict[Any, Any] = {}
        self._kernels: dict[tuple[str, str], RowKernel] = {}
        #: Entries of recent kernels of all foldmaps.
        self._entries: dict[tuple[Kernel, str], BoundEntry] = {}
        #: Key of a schedule (see `_key`) -> the arrays that it prepared.
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        #: Name of a count -> the set of all vertices or edges, its size, and the mask
        #: of living ids that it was made with.
        self._full: dict[str, tuple[VertexSet, int, Any]] = {}
        #: Numbers of vertices and edges of the whole graph, if this is a part.
        self._whole = None
        if whole is not None and whole is not graph:
            self._whole = whole.vertex_count, whole.edge_count
        #: Decides between GPU and host memory under a memory limit; None without one.
        self.placement: Placement | None = None
        limit = config.memory_limit_bytes if device.is_scarce else None
        if limit is not None:
            require_fixed(graph, "fg.config.memory_limit")
            # This imports the CUDA dialect.
            from featgraph.runtime.streaming.placement import Placement

            self.placement = Placement(self, device, limit)
        #: Memory of deleted States; None on devices that keep none, and under a memory
        #: limit, where kept memory would count.
        self._spare = device.make_spare_memory() if limit is None else None
        #: Supersteps of deleted States. They refer to these arrays, so that they are
        #: dropped when the graph is deleted.
        self.idle = Idle()
        weakref.finalize(graph, self.idle.end).atexit = False

    def is_under(self, limit: int | None) -> bool:
        """Whether these are the arrays for a memory limit."""
        if not self._device.is_scarce:
            return True
        return limit == (None if self.placement is None else self.placement.limit)

    def lend_kit(
        self, columns: Mapping[str, Column], to: object
    ) -> tuple[Kit, Callable[[], object]] | None:
        """Return memory of a deleted State with the same properties.

        See `SpareMemory.lend`. Results of reduces are not compared, since a State gets
        them only when it runs.
        """
        if self._spare is None:
            return None
        kinds = {name: column.type.kind for name, column in columns.items()}
        names = tuple(n for n, kind in kinds.items() if kind is not PropertyKind.VECTOR)
        return self._spare.lend(names, to, self._arrays)

    @property
    def whole(self) -> tuple[int, int]:
        """Numbers of vertices and edges of the whole graph."""
        return self._whole or self.room

    @property
    def everyone(self) -> VertexSet:  # type: ignore[override]
        """All vertices: a prefix of the ids, or the living ones where some are dead."""
        return self.all_of("vertex_count")

    def all_of(self, name: str) -> VertexSet:
        """Return the set of all vertices ("vertex_count") or edges ("edge_count").

        Later versions of the graph use the same memory for its words.
        """
        count, room = self.count(name), getattr(self, name)
        living = self.graph.living if name == "vertex_count" else None
        if name == "edge_count" and self.graph.changing is not None:
            living = self.graph.changing.living_ids()
        everything, *then = self._full.get(name, (None, -1, None))
        if everything is None or then[0] != count or then[1] is not living:
            made = prefix(count, room)
            if living is not None:
                made = resized(pack_mask(living), made.size)
            words = self._device.upload(made)
            if everything is None:
                everything = VertexSet(words)
            else:
                self._device.copy(everything.words, words)
            everything.has_dead = living is not None
            self._full[name] = everything, count, living
        return everything

    def count(self, name: str) -> int:
        """Return a count, read once per version: vertices, living ones, or edges.

        `name` is the name of the built-in number, such as "vertex_count".
        """
        self.follow()
        if self._counts is None:
            counts = self._sizes.counts
            if not isinstance(counts, tuple):
                counts = tuple(map(int, self._device.download(counts)))
            graph = self.graph
            living = counts[0] if graph.living is None else graph.living_count
            self._counts = dict(zip(_COUNTED, (*counts, living), strict=True))
        return self._counts[name]

    def __getitem__(self, name: str) -> Any:
        self.follow()
        if name not in self._arrays:
            self._arrays[name] = self._made(name)
        return self._arrays[name]

    def _made(self, name: str) -> Any:
        """Return a new array, in the layout of the graph, by its name."""
        graph, layout, place = self.graph, self.layout, self.placement
        laid_out = None if layout is None else layout.array(graph, name)
        if laid_out is not None:
            is_there = not isinstance(laid_out, np.ndarray)
            return laid_out if is_there else self._device.upload(laid_out)
        if place is not None:
            return place.graph_array(name)
        return self._device.graph_array(graph, name)

    def forget(self, then: Stamps, now: Stamps) -> None:
        """Drop cached objects that depend on stamps which have changed.

        A change of `moves` or `shape` drops all arrays and bound kernels; a new version
        drops counts, prepared arrays, and values in the order of edge ids.
        """
        self._shared.clear()
        if now.version is not then.version or now.shape is not then.shape:
            self._prepared.clear()
        self._counts = None
        if not now.binds_as(then):
            stays = None if now.layout is None else now.layout.stays
            is_there = stays is not None and now.moves is then.moves
            for name in [*self._arrays]:
                if stays is None or not is_there or not stays(name):
                    del self._arrays[name]
            if now.moves is not then.moves:
                self._full.clear()
            self._let_go()
            if self.placement is not None:
                self.placement.forget_graph()
        if now.layout is not None:
            for name, array in self._arrays.items():
                if (entries := now.layout.renewed(name)) is None:
                    continue
                if entries[0] is None:
                    self._device.upload(entries[1], array)
                else:
                    self._device.rows.put(array, *entries)
        for name in [*self._full]:
            self.all_of(name)

    def _let_go(self) -> None:
        """Drop all cached objects that refer to arrays."""
        for kept in (self._shared, self._kernels, self._entries, self.idle):
            kept.clear()

    def shared(self, values: Reordered) -> Any:
        """Return values of edges, such as weights, in the order of edge ids.

        All States share the array; no kernel writes it.
        """
        self.follow()
        key = id(values.array)
        if key not in self._shared:
            place, there = self.placement, None
            if place is None and self._device.is_scarce:
                there = gpu_weights(self.graph, values.array)
            self._shared[key] = (
                there
                if there is not None
                else self._device.rows.upload(values)
                if place is None
                else place.upload(self, shared_use(values), values)
            )
        return self._shared[key]

    @property
    def ends(self) -> Any:
        """The words of the set of vertices that have in-edges or out-edges."""
        self.follow()
        if "ends" not in self._shared:
            graph = self.graph
            mask = np.asarray(graph.in_degree) + np.asarray(graph.out_degree) > 0
            words = resized(pack_mask(mask), self.everyone.words.size)
            self._shared["ends"] = self._device.upload(words)
        return self._shared["ends"]

    def prepared(
        self, phase: Phase, columns: dict[str, Any], options: dict[str, int]
    ) -> tuple[Prepared, Preparation]:
        """Return the arrays that a phase's schedule prepares, and their cost.

        They are kept until the version or shape of the graph, or a column that they
        copy, changes. The cost is zero for arrays that were prepared before.
        """
        schedule = phase.schedule
        known = _find_prepared(self, phase, columns, options)
        if known is not None and known.versions == _versions(columns):
            return known, Preparation()
        begun, key = time.perf_counter(), _key(phase, columns, options)
        try:
            arrays, made, summary = _prepare(self, phase, known, columns, options)
        except MemoryError as error:
            shortage = schedule.no_room(phase.mapping, self.edge_count, error)
            raise shortage from (None if shortage is error else error)
        size = sum(array.size * array.dtype.itemsize for array in made)
        versions = _versions(columns)
        found = Prepared(time.perf_counter() - begun, size, arrays, versions, summary)
        if len(self._prepared) >= _MOST_PREPARED and key not in self._prepared:
            self._prepared.pop(next(iter(self._prepared)))
        self._prepared[key] = found
        return found, found

    def move_edges(self) -> None:
        """Drop arrays of edges; they are made in another place when next used."""
        self._arrays = {n: a for n, a in self._arrays.items() if not is_of_edges(n)}
        self._full.clear()
        self._let_go()
        self.advance("moves")
        self._at = self.stamps  # everything that has moved is dropped

    def degrees(self, graph: Graph, name: str) -> Any:
        """Return the degrees of all vertices of `graph`, of which this is a part.

        `name` is "in_degree" or "out_degree".
        """
        key = f"{name} everywhere"
        if key not in self._arrays:
            found = np.ascontiguousarray(getattr(graph, name), np.int32)
            self._arrays[key] = self._device.upload(found)
        return self._arrays[key]

    def edges_along(self, along: str) -> int:
        """Return the number of edges along "in", "out" or "both"."""
        return self.edge_count * (2 if along == "both" else 1)

    def kernel(self, name: str, along: str) -> RowKernel:
        """Return a kernel over sets that sweeps the rows along some edges, cached.

        `name` is that of a kernel of `fold_due_set`, such as "reach" or "count".
        """
        key = name, along
        found = self._kernels.get(key)
        if found is None:
            self._kernels[key] = found = self.kernel_over(name, along, self)
        return found

    def kernel_over(
        self, name: str, along: str, arrays: Mapping[str, Any]
    ) -> RowKernel:
        """Return the same kernel as `kernel`, bound to other arrays."""
        target = self._device.name
        traits = graph_traits(self.graph, target)
        return RowKernel(fold_due_set(name, traits, target, along), along, arrays)

    def entry(self, kernel: Kernel, entry: Entry) -> BoundEntry:
        """Return an entry of a kernel bound to these arrays, cached."""
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


def _prepare(
    view: GraphArrays, phase: Phase, known: Prepared | None, columns: dict[str, Any],
    options: dict[str, int],
) -> tuple[dict[str, Any], list[Any], str]:  # fmt: skip
    """Return all arrays of a schedule, those that were made now, and a summary.

    If arrays are known, only the copies of columns are made again.
    """
    schedule, upload = phase.schedule, view._device.upload
    if known is None:
        inputs = options.get(schedule.seed), phase.conflicts
        made = {**schedule.prepare(phase.mapping, view, *inputs, options)}
        summary, before = made.pop("summary", ""), dict[str, Any]()
    else:
        summary, before, made = known.summary, known.arrays, {}

    def on_host(name: str) -> Any:
        return made[name] if name in made else view._device.download(before[name])

    made |= schedule.copied(columns, on_host)
    made = {n: upload(a) if isinstance(a, np.ndarray) else a for n, a in made.items()}
    return {**before, **made}, list(made.values()), summary


def _find_prepared(
    view: GraphArrays, phase: Phase, columns: dict[str, Any], options: dict[str, int]
) -> Prepared | None:
    """Return the prepared arrays of a phase's schedule; columns may have changed."""
    view.follow()
    return view._prepared.get(_key(phase, columns, options))


def _key(phase: Phase, columns: dict[str, Any], options: dict[str, int]) -> Any:
    """Return the key of a schedule's arrays, without versions."""
    schedule = phase.schedule
    inputs = options.get(schedule.seed), phase.conflicts
    return schedule.name, phase.mapping, *inputs, *columns, *options.items()


def _versions(columns: dict[str, Any]) -> tuple[int, ...]:
    """Return the versions of columns, which change with each write."""
    return tuple(column.version for column in columns.values())


def graph_arrays(
    graph: Graph, device: Device, whole: Graph | None = None
) -> GraphArrays:
    """Return the arrays of `graph` on `device`, which all States on the graph share.

    `graph` may be a part of `whole`. After a change of the memory limit, the arrays are
    made anew.
    """
    cached = _graphs.setdefault(graph, {})
    known = cached.get(device.name)
    if known is None or not known.is_under(config.memory_limit_bytes):
        if known is not None:
            known.idle.end()
        cached[device.name] = known = GraphArrays(graph, device, whole)
    known.follow()
    return known


def explain_prepared(
    plan: FoldPlan, graph: Graph, columns: Mapping[str, Any], given: Mapping[str, Any]
) -> list[str]:
    """Describe the arrays that schedules have prepared for a graph; prepare none.

    Parameters
    ----------
    plan : FoldPlan
    graph : Graph
    columns : mapping of str to Column
        The columns of the State.
    given : mapping of str to object
        Options of a call.
    """
    lines, view = [], _graphs.get(graph, {}).get(plan.target)
    for number, phase in enumerate(plan.phases):
        if not is_prepared(phase):
            continue
        options = prepared_options(phase, given)
        copied = {name: columns[name] for name in copied_columns(plan, phase)}
        text, found = "nothing yet; the first run with these options does", None
        if view is not None:
            found = _find_prepared(view, phase, copied, options)
        if found is not None:
            text = f"{found.summary or 'arrays'}; {shown(found.bytes)}"
            text += f", in {found.seconds:.2g} s"
        lines.append(f"prepared for kernel {number}: {text}")
    return lines


def is_prepared(phase: Phase) -> bool:
    """Whether the schedule of a phase prepares arrays."""
    return any(array.dtype for array in phase.schedule.arrays(phase.mapping))


def copied_columns(plan: FoldPlan, phase: Phase) -> list[str]:
    """Return the properties of edges that a schedule prepares copies of."""
    if phase.kind.in_turns:
        return [*phase.ordered]
    if not phase.schedule.copies_columns:
        return []
    return sorted(set(phase.of_edges).difference(plan.facts.writes))


def prepared_options(phase: Phase, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the arrays of a schedule depend on."""
    kinds = phase.schedule.integers.items()
    return {n: given.get(n, k.default) for n, k in kinds if k.is_prepared}
