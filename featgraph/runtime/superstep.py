"""One superstep: the phases of a plan, the due sets between them, and the commit.

The protocol is that of docs/design/0001-architecture.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from featgraph.errors import DeviceMemoryError, KernelFaultError, StateError
from featgraph.fold.accumulators import memory_dtype
from featgraph.fold.choose import GraphTraits
from featgraph.fold.emit import Entry, Field
from featgraph.fold.kernel import Kernel
from featgraph.fold.plan import Phase
from featgraph.graph import Graph
from featgraph.program.active import word_count
from featgraph.program.signature import PropertyKind, PropertyType
from featgraph.program.state import State
from featgraph.runtime.buffers import ALL, Buffers, buffers_of
from featgraph.runtime.device import Device

__all__ = ["Outcome", "Superstep", "full_words", "graph_traits"]

Words = Any
#: A vertex of at least this degree is left to a block of its own on the GPU.
HUB_DEGREE = 2048
#: Phase kind -> the cut of the vertices whose work its chunks share out evenly (CPU).
_CHUNKS = {
    "vertex": "in_chunks",
    "push": "out_chunks",
    "edge": "out_chunks",
    "reduce": "vertex_chunks",
}


@dataclass
class Outcome:
    """What a superstep did: bitvectors of the device.

    Attributes
    ----------
    active_out : words
        Committed vertices, or targets where the foldmap ends in edge functions.
    due : words
        Vertices that the first vertex phase was due on, before ``.on`` cut it; None
        without one.
    """

    active_out: Words
    due: Words | None


def full_words(device: Device, vertex_count: int) -> Words:
    """Return the bitvector of all vertices."""
    words = np.full(word_count(vertex_count), 0xFFFFFFFF, np.uint32)
    tail = vertex_count % 32
    if tail:
        words[-1] = (1 << tail) - 1
    return device.upload(words)


def graph_traits(graph: Graph) -> GraphTraits:
    """Return what plans depend on of a graph."""
    mean = max(1, graph.edge_count // graph.vertex_count)
    top = max(int(graph.in_degree.max(initial=0)), int(graph.out_degree.max(initial=0)))
    return GraphTraits(
        mean_degree=min(64, 1 << (mean - 1).bit_length()),
        has_hubs=top >= HUB_DEGREE,
        wide_offsets=graph.in_edges.row_offsets.dtype == np.int64,
        undirected=not graph.directed,
    )


class Superstep:
    """Runs supersteps of one kernel on one state.

    Parameters
    ----------
    on : words or None
        The vertices that the foldmap is restricted to.
    """

    def __init__(
        self, kernel: Kernel, state: State, device: Device, on: Words | None
    ) -> None:
        self.kernel = kernel
        self.plan = kernel.plan
        self.state = state
        self.graph = state.graph
        self.device = device
        self.on = on
        self.full = full_words(device, self.graph.vertex_count)
        self.buffers: Buffers = buffers_of(state, device)
        self.reads_foreign = any(
            a.where == "foreign"
            for f in self.plan.analysis.functions
            for a in f.accesses
        )
        _check_state(kernel, state)

    def run(
        self, active: Words | None, *, all_due: bool = False, track: bool = False
    ) -> Outcome:
        """Run one superstep.

        Parameters
        ----------
        active : words or None
            A; None for all vertices.
        all_due : bool
            Every vertex is due, as after a changed scalar.
        track : bool
            Make everything due where a reduce gives another value than the State has.
        """
        self.buffers = buffers_of(self.state, self.device)
        sets = SimpleNamespace(
            active=self.full if active is None else active,
            base=None, passed=None, stopped=None, targets=None, swept=None, due=None,
            all_due=all_due or active is None, track=track,
        )  # fmt: skip
        self.touched: set[str] = set()
        self.sources_of: dict[str, Words] = {}
        try:
            for number, phase in enumerate(self.plan.phases):
                self._phase(number, phase, sets)
        except BaseException:
            # The next buffers may hold what was never committed.
            self.buffers.stale.update(dict.fromkeys(self.touched, ALL))
            raise
        self._commit(sets)
        last = next((p for p in reversed(self.plan.phases) if p.kind != "reduce"), None)
        if last is not None and last.kind == "edge":
            return Outcome(sets.targets, sets.due)
        out = sets.passed if sets.passed is not None else self._empty_words()
        return Outcome(out, sets.due)

    # -- sets

    def _empty_words(self) -> Words:
        words = self.device.empty((word_count(self.graph.vertex_count),), "uint32")
        self.device.fill(words, 0)
        return words

    def _base(self, sets: Any) -> Words:
        """Return A, A and who gathers from it, or all: due but for targets, stops."""
        if sets.base is None:
            if sets.all_due:
                sets.base = self.full
            elif self.reads_foreign:
                anything = self.device.count(sets.active) > 0
                sets.base = self.full if anything else sets.active
            elif self.plan.expands:
                sets.base = self.device.expand(sets.active, self.buffers.graph)
            else:
                sets.base = sets.active
        return sets.base

    def _due(self, sets: Any) -> Words:
        due = self._base(sets)
        if sets.targets is not None:
            due = self.device.words_or(due, sets.targets)
        if sets.stopped is not None:
            due = self.device.words_without(due, sets.stopped)
        if sets.due is None:
            sets.due = due
        if self.on is not None:
            due = self.device.words_and(due, self.on)
        return due

    # -- phases

    def _phase(self, number: int, phase: Phase, sets: Any) -> None:
        arguments: dict[str, Any] = {"vertex_count": self.graph.vertex_count}
        if phase.kind == "reduce":
            self._reduce(number, phase, sets, arguments)
            return
        if phase.kind == "edge":
            self._edges(number, phase, sets, arguments)
            return
        due = self._due(sets)
        self._freshen(phase, due)
        arguments["due"] = due
        if phase.kind == "push":
            self._fill_pushed(phase)
            self._launch(number, arguments)
            passed = due
        else:
            passed = self._empty_words()
            arguments["passed"] = passed
            self._launch(number, arguments)
        self._settle(number, sets, due, passed)

    def _edges(
        self, number: int, phase: Phase, sets: Any, arguments: dict[str, Any]
    ) -> None:
        earlier = [
            f for p in self.plan.phases[:number] for f in self.plan.functions_of(p)
        ]
        behind_vertices = any(f.kind == "vertex" for f in earlier)
        sources = sets.passed if behind_vertices else sets.active
        self._freshen(phase, sources)
        arguments["sources"] = sources
        arguments["targets"] = sets.targets = self._empty_words()
        several = any("edge_state" in e.arguments for e in self.kernel.entries)
        if several:
            arguments["edge_state"] = self._edge_state(number)
        for name in phase.writes_next:
            self._remember_sources(name, sources)
        self._launch(number, arguments)
        if several:
            sets.targets = self.device.targets(
                arguments["edge_state"], self.buffers.graph
            )

    def _settle(self, number: int, sets: Any, due: Words, passed: Words) -> None:
        """Update who passed and who stopped, as far as anything later asks."""
        later = any(p.kind != "reduce" for p in self.plan.phases[number + 1 :])
        first = sets.passed is None
        if first and not later:
            sets.passed = passed
            return
        stopped = self.device.words_without(due, passed)
        kept = passed
        if not first:
            kept = self.device.words_or(
                self.device.words_without(sets.passed, stopped), passed
            )
        sets.passed = kept
        sets.stopped = (
            stopped
            if sets.stopped is None
            else self.device.words_or(sets.stopped, stopped)
        )

    def _remember_sources(self, name: str, sources: Words) -> None:
        known = self.sources_of.get(name)
        self.sources_of[name] = (
            sources if known is None else self.device.words_or(known, sources)
        )

    def _edge_state(self, number: int) -> Any:
        """Where several phases sweep edges: 0 not run, 1 stopped, 2 passed last."""
        flags = self.buffers.temporary(
            "edge_state", "uint8", (max(self.graph.edge_count, 1),)
        )
        first = next(i for i, p in enumerate(self.plan.phases) if p.kind == "edge")
        if number == first:
            self.device.fill(flags, 0)
        return flags

    def _fill_pushed(self, phase: Phase) -> None:
        for field in self.kernel.kernel_source.fields:
            text = self.kernel.kernel_source.fill_values.get(field.name)
            function = self.plan.functions_of(phase)[0]
            if text is not None and field.of == function.into:
                array = self.buffers._field(field, self.kernel.kernel_source, {})
                self.device.fill(array, _fill_value(text, field))

    # -- stale entries

    def _freshen(self, phase: Phase, swept: Words) -> None:
        """Refresh ``_next`` entries that a phase reads, or does not sweep but writes."""
        for name, reads in self._next_accessed(phase).items():
            if name in self.touched:
                continue
            self.touched.add(name)
            self.buffers.next_of(name)
            stale = self.buffers.stale.get(name, ALL)
            if stale is None or (not reads and (swept is self.full or stale is swept)):
                continue
            if isinstance(stale, str):
                self.device.copy(
                    self.buffers.next_of(name), self.buffers.property(name)
                )
            else:
                self._refresh(
                    name, stale if reads else self.device.words_without(stale, swept)
                )
            self.buffers.stale[name] = None

    def _refresh(self, name: str, words: Words) -> None:
        next_, current = self.buffers.next_of(name), self.buffers.property(name)
        if self.state.signature[name].kind is PropertyKind.VERTEX:
            self.device.refresh_vertices(words, next_, current)
        else:
            self.device.refresh_edges(words, next_, current, self.buffers.graph)

    def _next_accessed(self, phase: Phase) -> dict[str, bool]:
        """Return whose ``_next`` a phase touches, and if it reads others' entries."""
        found: dict[str, bool] = dict.fromkeys(phase.restores, False)
        for function in self.plan.functions_of(phase):
            for a in function.accesses:
                if a.version == "next":
                    elsewhere = a.mode == "read" and (
                        a.where != "own" or a.name not in phase.writes_next
                    )
                    found[a.name] = found.get(a.name, False) or elsewhere
        return found

    def _commit(self, sets: Any) -> None:
        """Swap the buffers of what was written.

        Committed entries are stale in the other one.
        """
        stale: dict[str, Words] = {}
        for name in sorted({n for p in self.plan.phases for n in p.writes_next}):
            is_vertex = self.state.signature[name].kind is PropertyKind.VERTEX
            stale[name] = sets.passed if is_vertex else self.sources_of.get(name)
        self.buffers.swap(stale)

    # -- reduces

    def _reduce(
        self, number: int, phase: Phase, sets: Any, arguments: dict[str, Any]
    ) -> None:
        function = self.plan.functions_of(phase)[0]
        self._freshen(phase, self.full)
        width = phase.width
        dtype = memory_dtype(function.returns, self.plan.real)
        dtype = "bool" if function.returns == "bool" else dtype
        main = next(
            e for e in self.kernel.entries if e.phase == number and e.role == "main"
        )
        rows = self.device.reduce_rows(main, self.graph)
        arguments["due"] = self.full if self.on is None else self.on
        arguments["partials"] = self.buffers.temporary(
            f"partials {number}", dtype, (rows, width)
        )
        arguments["reduced"] = self.buffers.temporary(
            f"reduced {number}", dtype, (width,)
        )
        self._launch(number, arguments)
        result = np.array(self.device.download(arguments["reduced"]))
        name = str(function.into)
        if sets.track and not self._same_reduction(name, result):
            sets.all_due, sets.base = True, None
        self._store_reduction(name, result, dtype)

    def _same_reduction(self, name: str, result: Any) -> bool:
        read = any(
            a.name == name for f in self.plan.analysis.functions for a in f.accesses
        )
        if not read:
            return True
        if name not in self.state:
            return False
        return bool(np.array_equal(self.state.stored(name), result))

    def _store_reduction(self, name: str, result: Any, dtype: str) -> None:
        type_ = PropertyType(PropertyKind.VECTOR, dtype, result.shape)
        self.state.put_result(name, type_, result)
        self.buffers.current.pop(name, None)

    # -- launches

    def _ensure_reductions(self) -> None:
        """Make a place for vectors that a reduce fills after ``d`` is made."""
        for field in self.kernel.kernel_source.fields:
            if field.source == "vector" and field.name not in self.state:
                width = self.plan.analysis.reductions[field.name]
                dtype = (
                    "bool"
                    if field.dtype == "int32" and self._is_bool(field.name)
                    else field.dtype
                )
                type_ = PropertyType(PropertyKind.VECTOR, dtype, (width,))
                self.state.put_result(field.name, type_, np.zeros(width, dtype))

    def _is_bool(self, name: str) -> bool:
        return any(
            f.into == name and f.returns == "bool" for f in self.plan.analysis.functions
        )

    def _launch(self, number: int, arguments: dict[str, Any]) -> None:
        self._ensure_reductions()
        source = self.kernel.kernel_source
        builtins = {
            "superstep": self.state.superstep,
            "vertex_count": self.graph.vertex_count,
            "edge_count": self.graph.edge_count,
        }
        fault = None
        if source.plan.options.checked:
            fault = self.buffers.temporary("fault", "int64", (6,))
            self.device.fill(fault, 0)
            builtins["fault"] = fault
        arguments["d"] = self.buffers.data(source, self.kernel.module.Data, builtins)
        for entry in self.kernel.entries:
            if entry.phase == number:
                self._launch_entry(entry, arguments)
        if fault is not None:
            _raise_fault(source.sites, np.array(self.device.download(fault)))

    def _launch_entry(self, entry: Entry, arguments: dict[str, Any]) -> None:
        bound = dict(arguments)
        for name in entry.arguments:
            if name.startswith(("in_", "out_")):
                bound[name] = self.buffers.graph[name]
            elif name == "hubs":
                along = (
                    "in" if self.plan.phases[entry.phase].kind == "vertex" else "out"
                )
                bound[name] = self.buffers.graph[f"{along}_hubs"]
            elif name == "chunks":
                bound[name] = self.buffers.graph[
                    _CHUNKS[self.plan.phases[entry.phase].kind]
                ]
        bound["hub_degree"] = HUB_DEGREE
        try:
            self.device.launch(self.kernel, entry, self.graph, bound)
        except MemoryError as error:
            raise DeviceMemoryError(
                "the kernel's memory could not be allocated",
                where=entry.name,
                got=error,
            ) from error
        except Exception as error:
            if (
                type(error).__module__.startswith("numba")
                and "Error" in type(error).__name__
            ):
                raise self.kernel.explain_error(error) from error
            raise


def _fill_value(text: str, field: Field) -> Any:
    from featgraph.device import ordering

    if hasattr(ordering, text):
        return getattr(ordering, text)
    if text in {"True", "False"}:
        return text == "True"
    inner = text[text.index("(") + 1 : -1] if "(" in text else text
    value = {"math.inf": np.inf, "-math.inf": -np.inf}.get(inner)
    return np.dtype(field.dtype).type(
        float(inner)
        if value is None and "." in inner
        else value
        if value is not None
        else int(inner)
    )


def _check_state(kernel: Kernel, state: State) -> None:
    """Refuse what only the graph can tell."""
    if state.graph.directed and any(
        f.uses_reverse for f in kernel.plan.analysis.functions
    ):
        function = next(f for f in kernel.plan.analysis.functions if f.uses_reverse)
        raise StateError(
            "fg.reverse needs an undirected graph",
            where=function.declared.source.where(),
            got="a directed graph",
            fix="build the graph with directed=False",
        )


def _raise_fault(sites: list[tuple[str, str, int, str, int]], fault: Any) -> None:
    taken, site, vertex, edge, index, bound = (int(x) for x in fault)
    if not taken:
        return
    function, file, line, name, axis = sites[site]
    where = f"vertex {vertex}" if edge < 0 else f"edge {edge} into vertex {vertex}"
    error = KernelFaultError(
        f"an index of d.{name} is out of range",
        where=f"{file}:{line} in {function}, {where}",
        got=f"index {index} on axis {axis}",
        expected=f"0 <= index < {bound}",
        fix="the state may have been written in part; make it anew",
    )
    error.function, error.vertex, error.edge = function, vertex, edge  # type: ignore[attr-defined]
    error.index, error.bound = index, bound  # type: ignore[attr-defined]
    raise error
