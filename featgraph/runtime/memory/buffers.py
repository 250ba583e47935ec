"""The buffers of a State on a device, and what is stale in them.

What was bound to a State that has ended is kept for the next one on its graph
(0068).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import replace
from featgraph.base.errors import KernelFaultError
from featgraph.base.padding import stored_shape
from featgraph.cuda.values import DeviceValues, Filled, Reordered, host_values
from featgraph.graph.views.view import Preparation, words_of
from featgraph.program.active import ActiveSet
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.devices.spare import Kit
from featgraph.runtime.memory.graph_arrays import GraphArrays, graph_arrays
from featgraph.runtime.memory.places import Places

if TYPE_CHECKING:
    pass
from collections.abc import Sequence

__all__ = ["Buffers", "ScalarsRead", "arrays_for", "buffers_of", "held_sets", "stall"]

#: Before the name of a schedule, that of the memory that `Buffers.stalled` returns,
#: and what the words there mean, from 1 on.
_STALLED = "stalled "
_WHY = ("a pass over the edges that were left ran none", "a worker waited for 60 s")
#: Stale everywhere.
ALL = "all"
Stale = Any
_VECTOR = PropertyKind.VECTOR
#: Bytes of values on the device that are rather copied than bound where they are: 40 us
#: (NVIDIA H200), where recording supersteps anew takes a millisecond or more.
_MOST_MOVED = 1 << 26


def arrays_for(state: State, device: Device) -> GraphArrays:
    """Return the arrays of a State's graph on `device`, where the State may be, too."""
    found = state.residency
    if isinstance(found, Buffers) and found.device is device:
        return found.graph
    return graph_arrays(state.graph.part, device, state.graph)


def stall(schedule: str, why: str) -> KernelFaultError:
    """Return the error for a kernel that has ended before its edges did."""
    return KernelFaultError(
        "a kernel has ended before all edges ran",
        where=f"schedule={schedule!r}",
        got=why,
        fix="the state may have been written in part; make it anew, and use "
        "schedule='auto'",
    )


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
        #: The number of a superstep that memory of the device holds, if it is known.
        self.clock: int | None = None
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
        changing = self.state.graph.changing
        if is_edge and changing is not None:
            return changing.stored_count, self.room[is_edge]
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
        self.check_stalled()
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

    def put(self, name: str, ids: Any, values: Any) -> bool:
        """Write the rows of some vertices or edges; False if they are not here."""
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
        """Bring everything to the State if its graph has other capacities now."""
        self.graph.follow()
        if self.room != self.graph.room:
            self.leave()

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
        column.require_own(f"a function that writes property {name!r}")
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
                found = _upload_vector(self, name, column.values)
            else:
                found = self._upload(name, column.values)
            self.current[name] = found
            column.held = self, name
            if not isinstance(column.values, np.ndarray):
                column.values = None  # they are in the buffer, or it is they
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
            self.next[name] = _empty_like(self, name, self.property(name))
            self.stale[name] = ALL
        return self.next[name]

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

    def stalled(self, schedule: str) -> Any:
        """Return the word in which a kernel says why it ended before its edges did."""
        return self.temporary(f"{_STALLED}{schedule}", "int32", (1,))

    def check_stalled(self) -> None:
        """Raise if a kernel has ended before its edges did; those behind it ran none.

        Raises
        ------
        KernelFaultError
            Names the schedule.
        """
        for (name, *_), array in self.temporaries.items():
            if name.startswith(_STALLED) and (why := self.device.download(array)[0]):
                self.device.fill(array, 0)
                raise stall(name.removeprefix(_STALLED), _WHY[why - 1])

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


def _joined(buffers: Buffers, name: str, known: Any, ids: Any) -> Any:
    """Return where a next buffer differs, with some more entries."""
    if buffers.state._columns[name].type.kind is PropertyKind.EDGE:
        return ALL
    more = ActiveSet(buffers.graph.vertex_count, ids).on(buffers.device)
    return more if known is None else buffers.device.sets.union(words_of(known), more)


def _upload_vector(buffers: Buffers, name: str, values: Any) -> Any:
    """Return what belongs to no vertex where the State before had it."""
    kit, use = buffers._kit, ("vector", name)
    memory = None if kit is None else kit.take(use, values.shape, values.dtype)
    found = buffers.device.upload(values, memory)
    if kit is not None and found is not memory:
        kit.note(use, found)
    return found


def _empty_like(buffers: Buffers, name: str, current: Any) -> Any:
    """Return another buffer of a property, with any contents."""
    use = "next", name
    if buffers._kit is not None:
        found = buffers._kit.take(use, current.shape, current.dtype)
        if found is not None:
            return found
    type_ = buffers.state._columns[name].type
    dtype, shape = type_.dtype, (current.shape[0], *type_.item_shape)
    placed = buffers.places.next_of(name, shape, dtype)
    if placed is not None:
        return placed
    made = buffers.device.rows.empty(shape, dtype)
    if buffers._kit is not None:
        buffers._kit.note(use, made)
    return made


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


class ScalarsRead:
    """The values of scalars and vectors.

    Parameters
    ----------
    state : State
    names : sequence of str
        Those that a plan reads; what the State does not have counts for nothing.
    """

    def __init__(self, state: State, names: Sequence[str]) -> None:
        self._state = state
        self._names = names
        #: Versions of the columns that were read.
        self._seen: list[tuple[str, int]] = []
        self._values: tuple[Any, ...] = ()

    def read(self) -> tuple[Any, ...]:
        """Return (name, bytes) of each that the State has; bytes, as nan is not nan.

        They are read again where a column has another version.
        """
        columns = self._state._columns
        seen = [(n, columns[n].version) for n in self._names if n in columns]
        if seen != self._seen:
            self._values = tuple(
                [(n, np.asarray(columns[n].on_host()).tobytes()) for n, _ in seen]
            )
            self._seen = seen
        return self._values
