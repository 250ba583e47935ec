"""A kernel bound to a State on a device, and its phases bound to arrays of the graph.

Binding looks up all arguments that do not change between supersteps. `BoundState` has
the buffers of the State and the memory of reduces, `BoundPhase` the entries of one
phase with the arrays of the graph in place, `ChangedEdges` the edges that a phase has
to sweep again. `explained` and `raise_fault` make errors of failed launches.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from featgraph.base.errors import DeviceMemoryError, KernelFaultError, PlanError
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.printing.module import Entry
from featgraph.graph.views.view import VertexSet
from featgraph.program.active import word_count
from featgraph.program.signature import PropertyKind, PropertyType
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import BoundEntry, Device
from featgraph.runtime.memory.buffers import EDGE_STATE, Buffers, buffers_of, stall
from featgraph.runtime.memory.data import DataFields, StaleEntries
from featgraph.runtime.memory.graph_arrays import (
    copied_columns,
    is_prepared,
    prepared_options,
)
from featgraph.runtime.superstep.exchange import exchange_of
from featgraph.runtime.superstep.frontier import Due, Frontier, Restriction

__all__ = ["BoundPhase", "BoundState", "ChangedEdges", "explained", "raise_fault"]

Words = Any
#: Names of working memory and of kernel arguments: the set of changed edges; on a GPU,
#: the list of edges that passed, and its length.
SET, LIST, NUMBER = "changed_edges", "passed_edges", "passed_count"


class ChangedEdges:
    """The set of edges that have an entry that changed since the last superstep (0069).

    The kernels of each superstep update the set. If the State was written in any other
    way since their last superstep, all edges count as changed.

    Parameters
    ----------
    device : Device
    full : words
        The set of all edges; on several ranks, of the edges that this one owns.
    lists : bool
        Whether kernels also list the edges that passed.

    Attributes
    ----------
    given : dict of str to array
        Arguments of the phases of the current superstep, from `begin` on.
    """

    def __init__(self, device: Device, full: Words, lists: bool) -> None:
        self._device, self._full, self._lists = device, full, lists
        self.given: dict[str, Any] = {}
        #: Version and superstep of the State for which the set holds.
        self._right_at: tuple[Any, int] | None = None

    def begin(self, buffers: Buffers, edge_count: int) -> None:
        """Prepare the set, and the arguments in `given`, for a superstep."""
        words = buffers.temporary(SET, "uint32", tuple(self._full.shape))
        is_right = self._right_at == _content_version(buffers.state)
        if words is not self.given.get(SET) or not is_right:
            self._device.copy(words, self._full)
        version, superstep = _content_version(buffers.state)
        self._right_at = version, superstep + 1
        self.given = {SET: words}
        if self._lists:
            room = (max(edge_count, 1),)
            count = buffers.temporary(NUMBER, "int32", (1,))
            self._device.fill(count, 0)
            self.given |= {LIST: buffers.temporary(LIST, "int32", room), NUMBER: count}

    def forget(self) -> None:
        """Drop the memory of a deleted State, so that another State can be bound."""
        self._right_at, self.given = None, {}

    def go_on(self, state: State) -> None:
        """Keep the set after supersteps that ran in a loop on the device."""
        if self._right_at is not None:
            self._right_at = _content_version(state)


def _content_version(state: State) -> tuple[Any, int]:
    """Return a key that changes with each write to a State and with each superstep."""
    return state.content_version, state.superstep


class BoundState:
    """A State on a device, bound to one kernel.

    Memory for results of reduces is allocated here, so that all supersteps make the
    same calls and can be replayed. The reference to the State is weak. After the State
    has been deleted, another State of the same types on the same graph may take its
    place: see `let_go`.

    Parameters
    ----------
    kernel : Kernel
    state : State
    device : Device

    Attributes
    ----------
    find_state : callable
        Returns the State; None if it was deleted.
    buffers : Buffers
        The State's buffers, as of the last `arrive`.
    graph : GraphArrays
        The arrays of the graph, or of this rank's part of it, and its counts.
    exchange : Exchange
        Exchanges with other ranks.
    full : VertexSet
        All vertices; on several ranks, those that this one owns.
    everyone : VertexSet
        All vertices; on several ranks, with ghosts.
    due : Due
    stale : StaleEntries
    ghosts : Ghosts or None
        Rows of vertices that other ranks own; None without such rows.
    changed : ChangedEdges or None
        The edges to sweep again; None if no phase is limited to changed edges.
    sliced : SlicedSweeps or None
        Sliced sweeps of edges in host memory; None if all edges are on the device.
    stamps : Stamps
        The stamps of the graph at which its arrays were bound.
    word_count : int
        Number of words of a set of vertices.
    results : dict of str to (key, key)
        Result of a reduce -> two keys of `Buffers.temporaries` for the same memory: as
        one axis, which kernels of the reduce write, and in the shape of the property.
    result_types : dict of str to PropertyType
        Result of a reduce -> its type.
    partials : dict of int to key
        Index of a reduce's phase -> key of its partial results in
        `Buffers.temporaries`.
    """

    def __init__(self, kernel: Kernel, state: State, device: Device) -> None:
        self.kernel = kernel
        self.plan = kernel.plan
        self.device = device
        self.exchange = exchange_of(state.graph, device)
        source = kernel.kernel_source
        self._take(state)
        buffers = self.buffers
        self.graph = buffers.graph
        self.full = self.everyone = everyone = self.graph.everyone
        if state.graph.ranks is not None:
            self.full = VertexSet(self.exchange.own(everyone.words))
            self.everyone = everyone = VertexSet(everyone.words, has_ghosts=True)
        self.due = Due(
            self.plan, buffers.graph, device, self.full, everyone, self.exchange
        )
        self.ghosts = self.exchange.ghosts(self.plan)
        self.stale = StaleEntries(source, state.signature, device, everyone.has_ghosts)
        self.changed = self._changed_edges()
        self._data = DataFields(source, state.graph, buffers.graph)
        self.word_count = word_count(self.graph.vertex_count)
        self.stamps = buffers.graph.stamps
        placement = self.graph.placement
        self.sliced = None if placement is None else placement.sliced_sweeps(self)
        reductions = self.plan.facts.reductions
        self._reduced = [f.name for f in source.fields if f.name in reductions]
        self.results = {
            name: tuple(
                (f"reduced {name}", found.dtype, shape)
                for shape in ((math.prod(found.shape),), found.shape)
            )
            for name, found in reductions.items()
        }
        self.partials = {
            number: self._key_of_partials(number)
            for number, phase in enumerate(self.plan.phases)
            if phase.kind.reduces
        }
        self.result_types = {
            name: PropertyType(PropertyKind.VECTOR, found.dtype, found.shape)
            for name, found in reductions.items()
        }
        self._make_results()
        #: Whether another State may take the place of this one: not on several ranks,
        #: and not under a memory limit, where memory is accounted for by State.
        self._may_be_taken_up = (
            state.graph.ranks is None and self.graph.placement is None
        )

    def _take(self, state: State) -> None:
        """Bind to a State, and move it to the device."""
        self.find_state: Callable[[], Any] = weakref.ref(state)
        self.buffers = buffers = buffers_of(state, self.device)
        if buffers.places is not None:
            buffers.places.reserve(self.kernel.kernel_source)
        for name in self.plan.facts.writes:
            buffers.own(name)

    def take_up(self, state: State) -> bool:
        """Bind to another State of the same types on the same graph.

        Returns False if arrays of the graph have moved: the kernel must be bound anew.
        """
        self._take(state)
        if not self.fits(self.buffers):
            return False
        self._make_results()
        return True

    def works_on(self, state: State) -> bool:
        """Bind to a State, if that is not done already; False if it cannot be bound."""
        if self.find_state() is not state and not self.take_up(state):
            return False
        return self.fits(self.arrive())

    def let_go(self) -> bool:
        """Drop all references to a deleted State; return whether another may follow.

        False, too, if the State still lives: then only the foldmap was deleted.
        """
        if not self._may_be_taken_up or self.find_state() is not None:
            return False
        vars(self).pop("buffers", None)  # may have been dropped before
        self.stale.begin()
        if self.changed is not None:
            self.changed.forget()
        return True

    def _changed_edges(self) -> ChangedEdges | None:
        """Return the set of changed edges; None if no phase is limited to it."""
        if not any(phase.changed_only for phase in self.plan.phases):
            return None
        full = self.graph.all_of("edge_count").words
        full = self.exchange.own_edges(full)
        return ChangedEdges(self.device, full, self.plan.target == "cuda")

    @property
    def state(self) -> State:
        """The State."""
        state = self.find_state()
        if state is None:
            raise ReferenceError("the State has been deleted")
        return state  # type: ignore[no-any-return]

    def fits(self, buffers: Buffers) -> bool:
        """Whether the bound arrays and counts are still those of the graph."""
        now, then = self.graph.stamps, self.stamps
        return buffers.graph is self.graph and (now is then or now.binds_as(then))

    def arrive(self) -> Buffers:
        """Make the buffers on this device those of the State, and return them.

        Rows are reallocated if the capacity of the graph has grown.
        """
        buffers, state = self.buffers, self.find_state()
        if state.residency is not buffers or buffers.room != buffers.graph.room:
            self.buffers = buffers = buffers_of(state, self.device)
            self._make_results()
        return buffers

    def bring(self) -> None:
        """Upload all values that kernels read, before a superstep."""
        self._data.bring(self.state, self.arrive())

    def data(self, frontier: Frontier, fault: Any) -> Any:
        """Return the namedtuple `d`, the argument of kernels with all properties.

        `fault` is the record of a checked kernel, or None.
        """
        state = self.find_state()
        for name in self._reduced:
            if name not in state._columns:  # a reduce fills it after `d` is made
                state.put_result(name, self.result_types[name], self.buffers)
                self.place_result(name, frontier)
        extra = {} if frontier.incremental is None else frontier.incremental.arrays
        if fault is not None:
            extra = {**extra, "fault": fault}
        values = self._data.find(state, self.buffers, extra, frontier.in_place)
        # As ``Data(*values)``, without a call of Python in each superstep.
        return tuple.__new__(self.kernel.module.Data, values)

    def _key_of_partials(self, number: int) -> tuple[str, str, tuple[int, ...]]:
        """Return the key (name, dtype, shape) of partial results, by index of phase."""
        phase = self.plan.phases[number]
        found = self.plan.facts.reductions[phase.into]
        rows = self.device.reduce_rows(self.graph, phase)
        size = phase.mapping.part_size or math.prod(found.shape)
        return f"partials {number}", found.partial_dtype, (rows, size)

    def _make_results(self) -> None:
        """Allocate results of reduces, which start as zeros, and partial results."""
        buffers = self.buffers
        for whole, in_shape in self.results.values():
            made = buffers.temporary(*whole)
            if in_shape not in buffers.temporaries:
                buffers.temporaries[in_shape] = made.reshape(in_shape[-1])
        for number, key in self.partials.items():
            # Each block writes its row. In a tree, a rank writes the rows of its own
            # vertices only, so that the others must start as zeros.
            is_whole = not self.plan.phases[number].in_a_tree
            buffers.temporary(*key, is_whole=is_whole)

    def place_result(self, name: str, frontier: Frontier) -> None:
        """Make the memory that a reduce writes the current buffer of its property."""
        memory = self.buffers.temporaries[self.results[name][1]]
        self.buffers.current[name], frontier.data = memory, None

    def renew_reductions(self) -> None:
        """Mark the results of reduces in the State as rewritten in place."""
        for name, type_ in self.result_types.items():
            self.state.put_result(name, type_, self.buffers)

    def go_on(self) -> None:
        """Update the State after supersteps that ran in a loop on the device."""
        self.buffers.clock = None
        self.renew_reductions()
        if self.changed is not None:
            self.changed.go_on(self.state)

    def edge_state(self, *, is_first: bool) -> Any:
        """Return a uint8 array with the state of each edge in this superstep.

        0: no function has run; 1: one returned False; 2: the last one returned True.
        With `is_first`, the array is set to 0.
        """
        shape = (max(self.graph.edge_count, 1),)  # kernels take no empty array
        flags = self.buffers.temporary(EDGE_STATE, "uint8", shape)
        placement = self.graph.placement
        if is_first and (placement is None or not placement.clear(flags)):
            self.device.fill(flags, 0)
        return flags


class BoundPhase:
    """The entries of one phase, bound to the graph, by frontier form.

    Parameters
    ----------
    bound : BoundState
    number : int
        Index of the phase in the kernel.

    Attributes
    ----------
    name : str
        Index, kind and functions of the phase, for error messages.
    is_last : bool
        Whether only reduces follow, which read no set of the phase.
    is_first_of_edges : bool
        Whether no phase before it runs edge functions.
    reads_results : bool
        Whether it reads results of the kernel's reduces.
    is_whole : bool
        Whether all due vertices are swept by one launch of each entry.
    takes_own : bool
        Whether its kernel takes options of the schedule, or arrays that the schedule
        prepares.
    graph_arrays : frozenset of str
        Names of the arrays of the graph that its entries take.
    widens_active : bool
        Whether vertices that it commits count as active in the same superstep (S8).
    arrays : mapping of str to array
        The arrays of the graph that the phase sweeps: the rows of this rank.
    can_be_listed : bool
        Whether it can sweep a list of vertices.
    has_forms : bool
        Whether it can run in another frontier form than "plain".
    in_form : dict of str to list of BoundEntry
        Frontier form -> the entries that `entries` has bound.
    """

    def __init__(self, bound: BoundState, number: int) -> None:
        kernel = bound.kernel
        phases = kernel.plan.phases
        self.number, self.phase = number, phases[number]
        names = ", ".join(f.name for f in kernel.plan.functions_of(self.phase))
        self.name = f"{number} ({self.phase.kind}: {names})"
        self.is_last = all(p.kind.reduces for p in phases[number + 1 :])
        self.is_first_of_edges = not any(p.kind.sweeps_edges for p in phases[:number])
        results, of = kernel.plan.facts.reductions, kernel.plan.functions_of(self.phase)
        self.reads_results = any(a.name in results for f in of for a in f.accesses)
        in_parts = bound.ghosts is not None or bound.sliced is not None
        self.is_whole = not (in_parts or self.phase.in_a_tree)
        self.schedule = self.phase.schedule
        self.is_prepared = is_prepared(self.phase)
        self.takes_own = bool(self.is_prepared or self.schedule.launched)
        if self.is_prepared and in_parts:
            on_ranks = bound.ghosts is not None
            how = "on several ranks" if on_ranks else "under config.memory_limit"
            whole = "a graph that is not distributed" if on_ranks else "no memory limit"
            other = "target='cpu'" if self.phase.kind.in_turns else "another schedule="
            raise PlanError(
                "this schedule prepares arrays for a whole graph on one device",
                where=self.name,
                got=f"schedule={self.schedule.name!r} {how}",
                expected=whole,
                fix=f"use {whole}{' for a new State' * (not on_ranks)}, or {other}",
            )
        self._columns = copied_columns(kernel.plan, self.phase)
        self._kernel = kernel
        self._graph = bound.graph
        self.arrays = bound.exchange.rows_for(self.phase, bound.graph)
        self._device = bound.device
        self.in_form: dict[str, list[BoundEntry]] = {}
        # An entry without `covers` is a persistent kernel, which has no listed form.
        covers = any(e.covers for e in kernel.entries if e.phase == number)
        self.can_be_listed = covers and kernel.plan.can_take("listed", self.phase)
        self._can_be_packed = kernel.plan.can_take("packed", self.phase)
        self.widens_active = kernel.plan.widens_active(self.phase)
        self.has_forms = self.can_be_listed or self._can_be_packed
        self.graph_arrays = frozenset(
            argument.array
            for entry in kernel.entries
            if entry.phase == number
            for argument in kernel.kernel_source.arguments_of(entry)
            if argument.kind == "graph"
        )

    @property
    def has_rows_of_others(self) -> bool:
        """Whether the phase sweeps rows that are not rows of the rank's own part."""
        return self.arrays is not self._graph

    @property
    def takes_active(self) -> bool:
        """Whether it skips edges from vertices that are not active."""
        return self._kernel.plan.takes_active(self.phase)

    def frontier_form(self, count: int | None, only: Restriction | None) -> str:
        """Return the frontier form of the kernel for the phase: see `FoldPlan`.

        Parameters
        ----------
        count : int or None
            Number of active vertices, if it is known.
        only : Restriction or None
            The vertices that may be due.
        """
        if only is None and count is None:
            return "plain"
        is_listed = (
            self.can_be_listed and only is not None and only.find_listed() is not None
        )
        if not (is_listed or (self._can_be_packed and count is not None)):
            return "plain"
        plan, graph = self._kernel.plan, self._graph
        return self._device.frontier_form_of(plan, self.phase, graph, count, is_listed)

    def find_own(self, bound: BoundState, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the phase's schedule adds, by their names.

        They are options of the call (`given`), and arrays that are prepared unless the
        graph has them.
        """
        kinds = self.schedule.integers
        options = {name: given.get(name, kind.default) for name, kind in kinds.items()}
        if not self.is_prepared:
            return options
        columns = {name: bound.state._columns[name] for name in self._columns}
        of_arrays = prepared_options(self.phase, given)
        found, cost = self._graph.prepared(self.phase, columns, of_arrays)
        bound.buffers.preparation += cost
        return {**options, **found.arrays}

    def entries(self, frontier_form: str) -> list[BoundEntry]:
        """Return the entries of a frontier form, bound on the first call."""
        found = self.in_form.get(frontier_form)
        if found is None:
            found = [self._bind(*each) for each in self._kernels(frontier_form)]
            self.in_form[frontier_form] = found
        return found

    def _kernels(self, frontier_form: str) -> list[tuple[Kernel, Entry]]:
        """Return the entries of a frontier form, each with its kernel.

        Other forms replace the main entry and keep the ones around it.
        """
        own = [(self._kernel, e) for e in self._kernel.entries]
        if frontier_form != "plain":
            other = self._kernel.in_form(frontier_form)
            own = [(kernel, e) for kernel, e in own if e.role != "main"]
            own += [(other, e) for e in other.entries]
        return [(kernel, e) for kernel, e in own if e.phase == self.number]

    def entries_of_slice(self, arrays: Any, frontier_form: str) -> list[BoundEntry]:
        """Return the entries of a frontier form, bound to a slice of rows.

        `arrays` has arrays and counts of the slice, as if it were a graph, and caches
        its entries.
        """
        found = []
        for kernel, entry in self._kernels(frontier_form):
            key = kernel, entry.name
            if key not in arrays.entries:
                arrays.entries[key] = BoundEntry(kernel, entry, arrays, arrays)
            found.append(arrays.entries[key])
        return found

    def entries_on(
        self, arrays: Mapping[str, Any]
    ) -> Callable[[str], list[BoundEntry]]:
        """Return a function like `entries`, bound to other arrays of the graph."""

        def entries(frontier_form: str) -> list[BoundEntry]:
            kernel = self._kernel
            found = (e for e in kernel.entries if e.phase == self.number)
            return [BoundEntry(kernel, e, self._graph, arrays) for e in found]

        return entries

    def _bind(self, kernel: Kernel, entry: Entry) -> BoundEntry:
        """Return an entry bound to the rows that the phase sweeps."""
        if self.has_rows_of_others:
            return BoundEntry(kernel, entry, self._graph, self.arrays)
        return self._graph.entry(kernel, entry)


def explained(kernel: Kernel, name: str, error: BaseException) -> BaseException:
    """Return the error to raise for a failed launch, in the user's terms if possible.

    Parameters
    ----------
    kernel : Kernel
    name : str
        The function that was called, which may have been compiled by the call.
    error : exception
        Becomes DeviceMemoryError if memory ran out, KernelFaultError if a wait took too
        long, and UserFunctionError if the compiler raised it. Any other error is
        returned.
    """
    if isinstance(error, MemoryError):
        return DeviceMemoryError(
            "the kernel's memory could not be allocated", where=name, got=error
        )
    if isinstance(error, TimeoutError):
        [phase] = [e.phase for e in kernel.entries if e.name == name]
        return stall(kernel.plan.phases[phase].schedule.name, str(error))
    type_ = type(error)
    is_compilers = type_.__module__.startswith("numba") and "Error" in type_.__name__
    if isinstance(error, Exception) and is_compilers:
        return kernel.explain_error(error)
    return error


def raise_fault(
    sites: list[tuple[str, str, int, str, int]], fault: Any, place: str
) -> None:
    """Raise the first violation that a checked kernel has recorded, if any.

    `place` is appended to the vertex or edge in the message.
    """
    taken, site, vertex, edge, index, bound = (int(x) for x in fault)
    if not taken:
        return
    function, file, line, name, axis = sites[site]
    where = f"vertex {vertex}" if edge < 0 else f"edge {edge} at vertex {vertex}"
    error = KernelFaultError(
        f"an index of d.{name} is out of range",
        where=f"{file}:{line} in {function}, {where}{place}",
        got=f"index {index} on axis {axis}",
        expected=f"0 <= index < {bound}",
        fix="the state may have been written in part; make it anew",
    )
    error.function, error.vertex, error.edge = function, vertex, edge  # type: ignore[attr-defined]
    error.index, error.bound = index, bound  # type: ignore[attr-defined]
    raise error
