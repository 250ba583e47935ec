"""Launches of a kernel's entries for a state: arguments, reduces, faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from featgraph.errors import DeviceMemoryError, KernelFaultError
from featgraph.fold.codegen.module import Entry, Field
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.plan import Phase
from featgraph.fold.plan.traits import HUB_DEGREE
from featgraph.program.signature import PropertyKind, PropertyType
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import LONG_ROW, Device
from featgraph.runtime.memory.buffers import Buffers, buffers_of

__all__ = ["Launcher"]

Words = Any
#: Phase kind -> the cut of what it sweeps into chunks of equal work, and what a block
#: takes each (CUDA). Others go through rows of edges, which name their own.
_CHUNKS = {"reduce": "vertex_chunks", "triangle": "triangle_chunks"}
_HUBS = {"triangle": "upper_hubs"}
#: How the names of a graph's own arrays begin.
_OF_GRAPH = (
    "in_", "out_", "incident_", "upper_", "lower_", "both_", "rank_", "vertex_rank",
)  # fmt: skip


class Launcher:
    """Launches the entries of one kernel for one state.

    Parameters
    ----------
    reduced_over : words
        The vertices that reduces run over.
    """

    def __init__(
        self, kernel: Kernel, state: State, device: Device, reduced_over: Words
    ) -> None:
        self.kernel = kernel
        self.plan = kernel.plan
        self.state = state
        self.graph = state.graph
        self.device = device
        self.reduced_over = reduced_over
        self.buffers: Buffers = buffers_of(state, device)
        #: Fields of `d` that are neither the State's nor the graph's.
        self.extra: dict[str, Any] = {}
        fields = kernel.kernel_source.fields
        #: Entry -> its arguments that are the graph's.
        self._of_graph: dict[str, dict[str, Any]] = {}
        #: Phase and form -> what runs it.
        self._of_phase: dict[tuple[int, str], list[tuple[Kernel, Entry]]] = {}
        #: Gives a list of all vertices that can be due, made when it is first asked
        #: for; None where those are too many.
        self.find_listed: Callable[[], Any] | None = None
        self._has_lists: dict[int, bool] = {}
        #: Whether the current buffers stand for the next ones: nothing reads what is
        #: written in a superstep.
        self.in_place = False
        self._vectors = [field for field in fields if field.source == "vector"]

    def fill_pushed(self, phase: Phase) -> None:
        """Set the temporaries that a phase pushes into to their identities."""
        for field in self.kernel.kernel_source.fields:
            text = self.kernel.kernel_source.fill_values.get(field.name)
            if text is not None and field.of == phase.into:
                array = self.buffers._field(field, self.kernel.kernel_source, {})
                self.device.fill(array, _fill_value(text, field))

    def reduce(
        self, number: int, phase: Phase, sets: Any, arguments: dict[str, Any]
    ) -> None:
        """Run a reduce and keep its result in the State."""
        name, reduction = phase.into, self.plan.facts.reductions[phase.into]
        count = math.prod(reduction.shape)
        rows = self.device.reduce_rows(self.buffers.graph)
        arguments["due"] = self.reduced_over
        arguments["partials"] = self.buffers.temporary(
            f"partials {number}", reduction.partial_dtype, (rows, count)
        )
        arguments["reduced"] = self.buffers.temporary(
            f"reduced {name}", reduction.dtype, (count,)
        )
        self.launch(number, arguments)
        result = np.array(self.device.download(arguments["reduced"]))
        result = result.reshape(reduction.shape)
        if sets.track and not self._same_reduction(name, result):
            sets.all_due, sets.base = True, None
        self._store_reduction(name, result)
        # The kernels behind it read the result where it is.
        reduced = arguments["reduced"]
        if reduced.shape != result.shape:
            reduced = reduced.reshape(result.shape)
        self.buffers.current[name] = reduced

    def _same_reduction(self, name: str, result: Any) -> bool:
        if not self.plan.facts.reductions[name].is_read:
            return True
        if name not in self.state:
            return False
        return bool(np.array_equal(self.state.stored(name), result))

    def _store_reduction(self, name: str, result: Any) -> None:
        dtype = self.plan.facts.reductions[name].dtype
        type_ = PropertyType(PropertyKind.VECTOR, dtype, result.shape)
        self.state.put_result(name, type_, result)

    def _ensure_reductions(self) -> None:
        """Make a place for vectors that a reduce fills after ``d`` is made."""
        for field in self._vectors:
            if field.name not in self.state:
                found = self.plan.facts.reductions[field.name]
                self._store_reduction(field.name, np.zeros(found.shape, found.dtype))

    def launch(self, number: int, arguments: dict[str, Any]) -> None:
        """Launch the entries of a phase."""
        self._ensure_reductions()
        source = self.kernel.kernel_source
        builtins = {
            "superstep": self.state.superstep,
            "vertex_count": self.graph.vertex_count,
            "edge_count": self.graph.edge_count,
            **self.extra,
        }
        fault = None
        if source.plan.options.checked:
            fault = self.buffers.temporary("fault", "int64", (6,))
            self.device.fill(fault, 0)
            builtins["fault"] = fault
        arguments["d"] = self.buffers.data(
            source, self.kernel.module.Data, builtins, self.in_place
        )
        for kernel, entry in self._entries(number, arguments.get("active_count")):
            self._launch_entry(kernel, entry, arguments)
        if fault is not None:
            _raise_fault(source.sites, np.array(self.device.download(fault)))

    def _graph_arguments(self, entry: Entry) -> dict[str, Any]:
        """Return the arguments of an entry that are the graph's, and stay."""
        phase, arrays = self.plan.phases[entry.phase], self.buffers.graph
        long_row = LONG_ROW if phase.kind == "triangle" else HUB_DEGREE
        found: dict[str, Any] = {"hub_degree": long_row}
        for name in entry.arguments:
            if name.startswith(_OF_GRAPH) or name == "edge_twin":
                found[name] = arrays[name]
            elif name == "hubs":
                found[name] = arrays[_HUBS.get(phase.kind, phase.rows.hubs)]
            elif name == "chunks":
                chunks = _CHUNKS.get(phase.kind, phase.rows.chunks)
                found[name] = arrays["edge_chunks" if phase.from_edges else chunks]
        return found

    def _entries(self, number: int, count: int | None) -> list[tuple[Kernel, Entry]]:
        """Return what runs a phase; `count`: how many vertices are active, if known."""
        form = self.form_of(number, count)
        found = self._of_phase.get((number, form))
        if found is None:
            found = [(self.kernel, e) for e in self.kernel.entries if e.phase == number]
            if form != "plain":
                other = self.kernel.in_form(form)
                found = [t for t in found if t[1].role != "main"]
                found += [(other, e) for e in other.entries if e.phase == number]
            self._of_phase[number, form] = found
        return found

    def form_of(self, number: int, count: int | None) -> str:
        """Return which form of the kernel runs a phase: see `FoldPlan`."""
        phase, has_list = self.plan.phases[number], self._has_list(number)
        return self.device.form_of(self.plan, phase, self.graph, count, has_list)

    def _has_list(self, number: int) -> bool:
        """Whether a phase can go by a list, and there is one."""
        if self.find_listed is None:
            return False
        known = self._has_lists.get(number)
        if known is None:
            # Kernels that go round have no listed form.
            covers = any(e.covers for e in self.kernel.entries if e.phase == number)
            can_be = covers and self.plan.can_take("listed", self.plan.phases[number])
            self._has_lists[number] = known = can_be and self.find_listed() is not None
        return known

    def _launch_entry(
        self, kernel: Kernel, entry: Entry, arguments: dict[str, Any]
    ) -> None:
        of_graph = self._of_graph.get(entry.name)
        if of_graph is None:
            of_graph = self._of_graph[entry.name] = self._graph_arguments(entry)
        bound = {**arguments, **of_graph}
        if "listed" in entry.arguments and self.find_listed is not None:
            bound["listed"] = self.find_listed()
        launch = self.device.launch
        self.call(kernel, entry.name, launch, kernel, entry, self.graph, bound)

    def call(self, kernel: Kernel, name: str, function: Any, *arguments: Any) -> Any:
        """Call what may compile a kernel, and return what it does.

        Raises
        ------
        DeviceMemoryError
            If memory cannot be allocated.
        UserFunctionError
            If the compiler refuses a function.
        """
        try:
            return function(*arguments)
        except MemoryError as error:
            raise DeviceMemoryError(
                "the kernel's memory could not be allocated", where=name, got=error
            ) from error
        except Exception as error:
            if (
                type(error).__module__.startswith("numba")
                and "Error" in type(error).__name__
            ):
                raise kernel.explain_error(error) from error
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


def _raise_fault(sites: list[tuple[str, str, int, str, int]], fault: Any) -> None:
    taken, site, vertex, edge, index, bound = (int(x) for x in fault)
    if not taken:
        return
    function, file, line, name, axis = sites[site]
    where = f"vertex {vertex}" if edge < 0 else f"edge {edge} at vertex {vertex}"
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
