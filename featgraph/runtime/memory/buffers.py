"""The buffers of a State on a device, and their stale entries.

An iterated property has a current and a next buffer, which swap at the end of a
superstep. The next buffer may differ from the current one at *stale* entries
(`memory.data` refreshes them). `Buffers` has both, and the working memory of foldmaps;
`buffers_of` returns the buffers of a State, and moves its values to the device. Memory
of a deleted State is kept for the next one on its graph (0068). Under a memory limit,
`Places` finds GPU or host memory for values of edges (0063).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import replace
from featgraph.base.errors import KernelFaultError
from featgraph.base.padding import stored_shape
from featgraph.cuda.values import DeviceValues, Filled, Reordered
from featgraph.fold.printing.module import KernelSource
from featgraph.graph.views.view import Preparation, words_of
from featgraph.program.active import ActiveSet
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device, Values
from featgraph.runtime.devices.spare import Kit
from featgraph.runtime.memory.graph_arrays import GraphArrays, graph_arrays
from featgraph.runtime.streaming.needs import needs_of, shared_use, use_of

if TYPE_CHECKING:
    from featgraph.runtime.streaming.placement import Placement

__all__ = [
    "CLOCK",
    "EDGE_STATE",
    "Buffers",
    "Places",
    "ScalarsRead",
    "advance_clock",
    "arrays_for",
    "buffers_of",
    "copy_values",
    "held_sets",
    "stall",
]

#: Prefix of the name of the memory that `Buffers.stalled` returns; the schedule's name
#: follows. `_WHY` has the reasons for an early end; a kernel stores 1 + the index.
_STALLED = "stalled "
_WHY = ("a pass over the remaining edges ran none of them", "a worker waited for 60 s")
#: Value of `Buffers.stale` for a property that is stale at all entries.
ALL = "all"
Stale = Any
_VECTOR = PropertyKind.VECTOR
#: Arguments of `Buffers.temporary` for the word with the number of the superstep.
CLOCK = "superstep", "int64", (1,)
#: Up to this many bytes, values that the caller has put on the device are copied to the
#: memory of an earlier State: a copy takes 40 us (NVIDIA H200), recording supersteps
#: for other addresses 1 ms or more. Larger arrays are used in place.
_MOST_MOVED = 1 << 26


def arrays_for(state: State, device: Device) -> GraphArrays:
    """Return the arrays of a State's graph on `device`."""
    found = state.residency
    if isinstance(found, Buffers) and found.device is device:
        return found.graph
    return graph_arrays(state.graph.part, device, state.graph)


def stall(schedule: str, why: str) -> KernelFaultError:
    """Return the error for a kernel that ended before all of its edges ran."""
    return KernelFaultError(
        "a kernel has ended before all edges ran",
        where=f"schedule={schedule!r}",
        got=why,
        fix="the state may have been written in part; make it anew, and use "
        "schedule='auto'",
    )


class Buffers:
    """Current and next values of a State on a device: the `Place` of its columns.

    Attributes
    ----------
    device : Device
    graph : GraphArrays
        The arrays of the graph on the device.
    current, next : dict of str to array
        Property -> buffer, from its first use by a kernel on.
    temporaries : dict of (str, str, tuple) to array
        Name, dtype and shape -> working memory: see `temporary`.
    """

    def __init__(self, state: State, device: Device) -> None:
        #: Returns the State; None if it was deleted.
        self.find_state: Callable[[], Any] = weakref.ref(state)
        self.device = device
        self.graph = graph_arrays(state.graph.part, device, state.graph)
        #: Numbers of vertices and edges for which the arrays have room.
        self.room = self.graph.room
        #: Finds memory for edge values under a memory limit; None without a limit.
        self.places: Places | None = None
        if self.graph.placement is not None:
            self.places = Places(self, self.graph.placement)
        self.current: dict[str, Any] = {}
        self.next: dict[str, Any] = {}
        #: Properties whose current buffer is an array of the graph, which all States
        #: share, so that it must be copied before a write.
        self._shared: set[str] = set()
        #: Property -> memory of overwritten values, reused for new ones: recorded
        #: supersteps refer to its address.
        self.outdated: dict[str, Any] = {}
        #: Property -> entries at which its next buffer differs from the current one:
        #: None, words of vertices, or `ALL`.
        self.stale: dict[str, Stale] = {}
        #: Property -> ghosts at which its next buffer differs, too.
        self.stale_ghosts: dict[str, Any] = {}
        #: Property -> stale ghosts that the superstep in progress has not refreshed. At
        #: its end, those are refreshed that were not received from their owners.
        self.late_ghosts: dict[str, Any] = {}
        #: Memory of an earlier State, if it is lent to this one.
        self._kit: Kit | None = None
        #: Pools of sets for the next superstep, and for the one after it: number of
        #: words -> sets. They swap when buffers do.
        self.pools: tuple[dict[int, list[Any]], ...] = ({}, {})
        lent = self.graph.lend_kit(state._columns, self)
        if lent is not None:
            self._kit, self._give_back = lent
            self.pools = self._kit.pools
        self.temporaries: dict[tuple[str, str, tuple[int, ...]], Any] = {}
        #: The superstep number that device memory holds (`CLOCK`), if it is known.
        self.clock: int | None = None
        #: Property -> vertices or edges of this rank that were written since they were
        #: last sent to the ranks that have them as ghosts.
        self.unsent: dict[str, Any] = {}
        #: (array of a property at all vertices, property) -> vertices of this rank that
        #: were written since the array was filled, or None. The array is complete once
        #: these are in it; an array without an entry is filled again.
        self.mirrored: dict[tuple[str, str], Any] = {}
        #: Properties that kernels have read at ghosts.
        self.read_at_ghosts: set[str] = set()
        #: Property -> type that its rows at ghosts are rounded to, if they are.
        self.rounded: dict[str, str] = {}
        #: Time and bytes of arrays that schedules prepared since this was last read.
        self.preparation = Preparation()
        #: Arrays of properties at all vertices, of which this rank owns a part.
        self._everywhere: dict[str, Any] = {}

    @property
    def state(self) -> State:
        """The State that the values belong to."""
        state = self.find_state()
        if state is None:
            raise ReferenceError("the State has been deleted")
        return state  # type: ignore[no-any-return]

    # -- Place

    def download(self, name: str) -> npt.NDArray[Any]:
        """Return the current values on the host."""
        column = self.find_state()._columns[name]
        if column.type.kind is not _VECTOR:
            return self._downloaded(name)
        self._land(name)
        return column.values  # type: ignore[no-any-return]

    def _land(self, name: str) -> None:
        """Copy the result of a reduce to the State, which then has it, too."""
        column = self.find_state()._columns[name]
        if column.values is None:
            column.values = np.array(self._downloaded(name))

    def written(self, name: str) -> None:
        """Drop the buffers of a property that the caller has written."""
        found = self.current.pop(name, None)
        if name in self._shared:
            self._shared.remove(name)
            found = None
        # The buffer of a vector may be the memory of a reduce's result.
        is_own = self.find_state()._columns[name].type.kind is not _VECTOR
        if found is not None and is_own and self.device.recorder is not None:
            self.outdated[name] = found
        self.stale[name] = ALL
        self.rounded.pop(name, None)
        _fill_anew(self.mirrored, name)

    def array(self, name: str) -> Any:
        """Return a property's values in device memory, without a copy.

        An array, or `DeviceValues`. None if the State has the values, as it always has
        vectors.
        """
        found = self.current.get(name)
        if self.find_state()._columns[name].type.kind is _VECTOR:
            self._land(name)
            return None
        if found is None:
            return None
        shape = self._shape(name, found)
        on_host = self.places and self.places.on_host(name, found, shape)
        return self.device.rows.held(found, shape) if on_host is None else on_host

    def held(self, name: str, array: Any) -> Any:
        """Return a view of a buffer in the shape of a property's values, unpadded."""
        return self.device.rows.held(array, self._shape(name, array))

    def _shape(self, name: str, array: Any) -> tuple[int, ...]:
        """Return the shape of the values in a buffer of a property."""
        state, rows = self.find_state(), array.shape[0]
        type_ = state._columns[name].type
        is_edge, changing = type_.kind is PropertyKind.EDGE, state.graph.changing
        if is_edge and changing is not None:
            count = changing.stored_count
        else:
            count = self.graph.count("edge_count" if is_edge else "vertex_count")
        is_whole = rows == self.room[is_edge]  # vectors have no capacity
        return (min(count, rows) if is_whole else rows, *type_.item_shape)

    def _downloaded(self, name: str) -> npt.NDArray[Any]:
        """Return the values of a buffer on the host."""
        self.check_stalled()
        found = self.current[name]
        if self.find_state()._columns[name].type.kind is _VECTOR:
            return self.device.download(found)
        shape = self._shape(name, found)
        on_host = self.places and self.places.on_host(name, found, shape)
        if on_host is not None:
            return np.array(on_host)
        return self.device.rows.download(found, shape)

    def unshare(self, name: str) -> None:
        """Replace an array of the graph by a copy, so that it can be written."""
        if name in self._shared:
            shared = self.current[name]
            shape, dtype = tuple(shared.shape), shared.dtype.name
            made = self.places and self.places.empty(name, shape, dtype)
            if made is None:
                made = self.device.empty(shape, dtype)
            copy_values(self, made, shared)
            self.current[name] = made
            self._shared.remove(name)

    def put(self, name: str, ids: Any, values: Any) -> bool:
        """Write the rows of some vertices or edges on the device.

        False if the property is not on the device, or under a memory limit.
        """
        if name not in self.current or self.graph.placement is not None:
            return False
        self.own(name)
        self.device.rows.put(self.current[name], ids, values)
        note_written(self, [name])
        known = self.stale.get(name)
        if name in self.next and not isinstance(known, str):
            self.stale[name] = _joined(self, name, known, ids)
        return True

    def make_room(self) -> None:
        """Move all values to the State if the graph has other capacities now."""
        self.graph.follow()
        if self.room != self.graph.room:
            self.leave()

    def touched(self, name: str) -> None:
        """Mark the current values as written in place by the caller."""
        column = self.find_state()._columns[name]
        if column.type.kind is _VECTOR:
            self._land(name)
        if column.type.kind is _VECTOR or column.borrowed is not None:
            column.mark_written(None)
        elif name in self.current:
            self.stale[name] = ALL
            if self.graph.placement is not None:
                self.graph.placement.touched(self.current[name])
            ranks = self.state.graph.ranks
            if ranks is not None:
                self.unsent[name] = ranks.exchange(self.device).own(None)
                _fill_anew(self.mirrored, name)

    def own(self, name: str) -> None:
        """Make sure that the State owns a property's memory, before a kernel writes it.

        Memory of the caller, and arrays that States share, are copied.
        """
        column = self.find_state()._columns.get(name)
        if column is None:
            return
        if column.type.column:
            column.require_own(f"a function that writes property {name!r}")
        if name in self._shared:
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
        """Move all values to the State, so that another device can take over."""
        self.renew_ghosts()
        for name in self.current:
            column = self.find_state()._columns[name]
            if column.borrowed is None:
                column.take_back(np.array(self._downloaded(name)))
        self.drop()

    def drop(self) -> None:
        """Release all buffers: the values are in the State, or are replaced."""
        for name in self.current:
            self.find_state()._columns[name].held = None
        # Bound supersteps may outlive this object, but must not keep device memory.
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
        """Receive all outdated ghost rows from their owners; all ranks call this."""
        if self.unsent or self.rounded:
            self.state.graph.ranks.exchange(self.device).renew(self)

    def ghosts_came(self, names: Iterable[str], ghosts: Any) -> None:
        """Mark rows of ghosts as received: next buffers are stale there."""
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
            column = self.find_state()._columns[name]
            if isinstance(column.values, Reordered) and column.values.is_shared:
                found = self.graph.shared(column.values)
                self._shared.add(name)
            elif column.type.kind is _VECTOR:
                found = _upload_vector(self, name, column.values)
            else:
                room = self.room[column.type.kind is PropertyKind.EDGE]
                found = self._upload(name, column.values, room)
            self.current[name] = found
            column.held = self, name
            if not isinstance(column.values, np.ndarray):
                column.values = None  # the buffer has them
        return found

    def _upload(self, name: str, values: Any, room: int) -> Any:
        """Return a buffer of `room` rows, the first of which have a property's values.

        The other rows have no vertex or edge yet. Host values and small values on the
        device are copied to the memory of an earlier State, if there is any: recorded
        supersteps refer to its address. Large values on the device are used in place;
        reordered ones get new memory.
        """
        memory = self.outdated.pop(name, None)
        placed = self.places and self.places.upload(name, values, memory)
        if placed is not None:
            return placed
        is_copied = isinstance(values, Filled | np.ndarray) or (
            isinstance(values, DeviceValues)
            and values.array.size * values.dtype.itemsize <= _MOST_MOVED
        )
        kit = self._kit if is_copied else None
        use = "current", name
        if memory is None and kit is not None:
            stored = stored_shape((room, *values.shape[1:]), values.dtype)
            memory = kit.take(use, stored, values.dtype)
        if values.shape[0] == room:
            found = self.device.rows.upload(values, memory)
        else:
            found = self.device.rows.extended(values, room, memory)
        if kit is not None and found is not memory:
            kit.note(use, found)
        return found

    def everywhere(self, name: str, of: str) -> Any:
        """Return memory for values of a property at all vertices of the graph.

        For a property of edges: at all edges of this rank, including those of other
        owners. `name` distinguishes several arrays of one property.
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

        A new buffer is stale everywhere.
        """
        if name not in self.next:
            self.next[name] = _empty_like(self, name, self.property(name))
            self.stale[name] = ALL
        return self.next[name]

    def temporary(
        self, name: str, dtype: str, shape: tuple[int, ...], *, is_whole: bool = False
    ) -> Any:
        """Return working memory of a foldmap, cached between supersteps.

        It is zero at the first use by a State. With `is_whole`, kernels write what they
        read: memory of an earlier State, and of the CPU, is not set to zero. Zeros for
        the lists of a search of web-NotreDame took 0.6 of 6 ms.
        """
        key = (name, dtype, shape)
        found = self.temporaries.get(key)
        if found is None:
            found = self.temporaries[key] = self._working_memory(key, is_whole)
        return found

    def stalled(self, schedule: str) -> Any:
        """Return the word in which a kernel stores why it ended early, or 0."""
        return self.temporary(f"{_STALLED}{schedule}", "int32", (1,))

    def check_stalled(self) -> None:
        """Raise if a kernel ended before all of its edges ran.

        Launches after it have run no edges. Waits for the device if the State has run
        such a kernel.

        Raises
        ------
        KernelFaultError
            With the schedule and the reason.
        """
        for (name, *_), array in self.temporaries.items():
            if name.startswith(_STALLED) and (why := self.device.download(array)[0]):
                self.device.fill(array, 0)
                raise stall(name.removeprefix(_STALLED), _WHY[why - 1])

    def _working_memory(
        self, key: tuple[str, str, tuple[int, ...]], is_whole: bool
    ) -> Any:
        """Return new working memory, or memory of an earlier State: see `temporary`."""
        name, dtype, shape = key
        placed = self.places and self.places.working_memory(name, shape, dtype)
        if placed is not None:
            return placed
        kit = self._kit
        found = None if kit is None else kit.take(key, shape, np.dtype(dtype))
        if found is not None:
            if not is_whole:
                self.device.fill(found, 0)  # new memory is zero, too
            return found
        # Lanes of a GPU load entries that they drop: these start as zeros, too.
        device = self.device
        has_zeros = not is_whole or device.name != "cpu"
        made = (device.working_memory if has_zeros else device.empty)(shape, dtype)
        if kit is not None:
            kit.note(key, made)
        return made

    def swap(self, stale: Mapping[str, Stale]) -> None:
        """Swap current and next buffers.

        The next buffer then differs from the current one at the entries of `stale`.
        """
        current, next_ = dict(self.current), dict(self.next)
        state = self.find_state()
        for name in stale:
            current[name], next_[name] = next_[name], current[name]
            state._columns[name].mark_written(self)
        changed, pools = {**self.stale, **stale}, self.pools[::-1]
        number = state.superstep + 1
        # No calls from here on: Python handles interrupts at calls, and so before or
        # after all assignments.
        self.current, self.next, self.stale = current, next_, changed
        self.pools = pools
        state.superstep = number

    def end_in_place(self, stale: Mapping[str, Stale], number: int = 1) -> None:
        """End supersteps of a kernel that committed to the current buffers.

        The next buffers differ from the current ones at the entries of `stale`.
        """
        note_written(self, stale)
        self.stale = {**self.stale, **stale}
        self.pools = self.pools[::-1]
        self.state.superstep += number


def copy_values(buffers: Buffers, target: Any, source: Any) -> None:
    """Copy an array of a property to another one."""
    placement = buffers.graph.placement
    if placement is None or not placement.copy(target, source):
        buffers.device.copy(target, source)


def advance_clock(buffers: Buffers, number: int) -> None:
    """Advance the number of the superstep that device memory holds."""
    buffers.device.add_one(buffers.temporary(*CLOCK))
    buffers.clock = number + 1


def _joined(buffers: Buffers, name: str, known: Any, ids: Any) -> Any:
    """Return the union of the stale entries of a next buffer and the entries `ids`."""
    if buffers.find_state()._columns[name].type.kind is PropertyKind.EDGE:
        return ALL
    more = ActiveSet(buffers.graph.vertex_count, ids).on(buffers.device)
    return more if known is None else buffers.device.sets.union(words_of(known), more)


def _upload_vector(buffers: Buffers, name: str, values: Any) -> Any:
    """Return a buffer of a vector, in memory of an earlier State if possible."""
    kit, use = buffers._kit, ("vector", name)
    memory = None if kit is None else kit.take(use, values.shape, values.dtype)
    found = buffers.device.upload(values, memory)
    if kit is not None and found is not memory:
        kit.note(use, found)
    return found


def _empty_like(buffers: Buffers, name: str, current: Any) -> Any:
    """Return memory for the next buffer of a property, with undefined contents."""
    use = "next", name
    if buffers._kit is not None:
        found = buffers._kit.take(use, current.shape, current.dtype)
        if found is not None:
            return found
    type_ = buffers.find_state()._columns[name].type
    dtype, shape = type_.dtype, (current.shape[0], *type_.item_shape)
    placed = buffers.places and buffers.places.empty(name, shape, dtype, "_next")
    if placed is not None:
        return placed
    made = buffers.device.rows.empty(shape, dtype)
    if buffers._kit is not None:
        buffers._kit.note(use, made)
    return made


def note_written(buffers: Buffers, names: Iterable[str]) -> None:
    """Advance the versions of properties that kernels have written."""
    columns = buffers.find_state()._columns
    for name in names:
        columns[name].mark_written(buffers)


def _fill_anew(mirrored: dict[tuple[str, str], Any], name: str) -> None:
    """Mark all arrays with a property at all vertices for filling anew."""
    for key in [key for key in mirrored if key[1] == name]:
        del mirrored[key]


def held_sets(buffers: Buffers) -> frozenset[tuple[str, int]]:
    """Return the identities of all sets that the buffers refer to, by property.

    Two supersteps after which they are equal leave the same entries stale and unsent:
    the next superstep makes the same calls in both cases.
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
    """Return the buffers of `state` on `device`; values move there on first use.

    Values in buffers of another device, or of another capacity, are first copied back
    to the State.
    """
    found = state.residency
    if isinstance(found, Buffers):
        if found.device is device and found.room == found.graph.room:
            return found
        found.leave()
    made = Buffers(state, device)
    state.residency = made
    return made


class ScalarsRead:
    """Reads the scalars and vectors that a foldmap reads, to detect changes (S7).

    Parameters
    ----------
    state : State
    names : sequence of str
        Names that a plan reads; those that the State does not have are left out.
    """

    def __init__(self, state: State, names: Sequence[str]) -> None:
        self._state = state
        self.names = names
        #: Versions of the columns that were read.
        self._seen: list[tuple[str, int]] = []
        self._values: tuple[Any, ...] = ()

    def read(self) -> tuple[Any, ...]:
        """Return (name, bytes) of each value; bytes, since NaN does not equal NaN.

        Values are read again if a column has another version.
        """
        columns, seen = self._state._columns, []
        for name in self.names:
            column = columns.get(name)
            if column is not None:
                seen.append((name, column.version))
        if seen != self._seen:
            self._values = tuple(
                [(n, np.asarray(columns[n].on_host()).tobytes()) for n, _ in seen]
            )
            self._seen = seen
        return self._values


Array = Any
#: Working memory with an entry for each edge.
EDGE_STATE = "edge_state"


class Places:
    """Finds memory for the edge values of one State, under a memory limit.

    A `Placement` decides between GPU and host memory. Methods return None or False for
    values to which the limit does not apply; the caller uses device memory then.

    Parameters
    ----------
    buffers : Buffers
        The buffers of the State.
    placement : Placement
        The placement of the graph's arrays.
    """

    def __init__(self, buffers: Any, placement: Placement) -> None:
        self._buffers = weakref.proxy(buffers)  # `buffers` refers to this object
        self._placement = placement

    def of(self, name: str) -> Placement | None:
        """Return the placement of a property of edges; None for other properties."""
        kind = self._buffers.state._columns[name].type.kind
        return self._placement if kind is PropertyKind.EDGE else None

    def reserve(self, source: KernelSource) -> None:
        """Reserve the memory that a kernel needs.

        Raises
        ------
        DeviceMemoryError
            If it does not fit even with all edges streamed.
        """
        place, state = self._placement, self._buffers.state
        needs = needs_of(source, state.signature, state.graph.part)
        edges = {self._counted_as(n): size for n, size in needs.edges.items()}
        needs = replace(needs, edges=edges)
        if not place.reserve(self, needs):
            raise place.shortage(needs)

    def _counted_as(self, use: str) -> str:
        """Return the name under which edge values count towards the limit.

        Values that States share count once, under one name.
        """
        column = self._buffers.state._columns.get(use.removeprefix(use_of("")))
        values = None if column is None else column.values
        if isinstance(values, Reordered) and values.is_shared:
            return shared_use(values)
        return use

    def move_edges(self) -> None:
        """Move edge values to host memory that kernels can read in place."""
        own = self._buffers
        for arrays in (own.current, own.next, own.outdated):
            for name, array in list(arrays.items()):
                place = self.of(name)
                if place is not None:
                    arrays[name] = place.pinned_copy(array)
        for key in [k for k in own.temporaries if k[0] == EDGE_STATE]:
            del own.temporaries[key]

    def upload(self, name: str, values: Values, memory: Array | None) -> Array | None:
        """Return an array with values of a property; `memory` may be reused for it."""
        place = self.of(name)
        return place and place.upload(self, use_of(name), values, memory)

    def empty(
        self, name: str, shape: tuple[int, ...], dtype: str, suffix: str = ""
    ) -> Array | None:
        """Return memory for values of a property, such as next ones ("_next")."""
        place = self.of(name)
        return place and place.empty(self, use_of(name + suffix), shape, dtype)

    def working_memory(
        self, name: str, shape: tuple[int, ...], dtype: str
    ) -> Array | None:
        """Return working memory of edges."""
        place = self._placement if name == EDGE_STATE else None
        return place and place.empty(self, use_of(name), shape, dtype)

    def on_host(self, name: str, array: Array, shape: tuple[int, ...]) -> Any | None:
        """Return the values of a property of edges, if they are in host memory."""
        place = self.of(name)
        return place and place.held(array, shape)
