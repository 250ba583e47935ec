"""One superstep of a plan through the emulator: the arguments are bound by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from featgraph.device import ordering
from featgraph.fold.analysis.changes import tells_targets
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.printing.emit import emit
from featgraph.fold.printing.module import Entry, KernelSource
from featgraph.program.signature import PropertyKind
from featgraph.runtime.devices import gpu_arrays
from featgraph.runtime.devices.host_arrays import cut_windows
from tests.simt.emulator import Emulator
from tests.simt.memory import padded, poisoned

#: Edges of a window, about.
WINDOW = 12
#: Edges of a part of the row of a hub.
PART = 4
#: Blocks of a grid: two, so that strides are taken.
GRID = 2


def words_of(mask: Any) -> Any:
    """Return a mask as words of an active bitvector."""
    padded = np.zeros(-(-len(mask) // 32) * 32, np.uint8)
    padded[: len(mask)] = mask
    return np.packbits(padded, bitorder="little").view(np.uint32)


def mask_of(words: Any, count: int) -> Any:
    """Return the words of an active bitvector as a mask."""
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:count].astype(bool)


def shares_of(
    plan: FoldPlan, phase: Phase, words: dict[str, Any], degrees: Any
) -> dict[str, Any]:
    """Return the sources that have edges, and how many those before each have."""
    sources = words["sources" if phase.kind.sweeps_edges else "active_sources"]
    everything = phase.kind.pushes and not plan.takes_active(phase)
    mask = mask_of(sources, len(degrees)) | everything
    rows = np.flatnonzero(mask & (degrees > 0))
    begins = np.append(0, np.cumsum(degrees[rows]))
    return {
        "share_rows": rows.astype(np.int32),
        "share_begins": begins.astype(degrees.dtype),
        "share_count": np.array([rows.size], np.int32),
    }


def active_behind(plan: FoldPlan, committed: Any, targets: Any) -> Any:
    """Return the active set after a superstep (S3)."""
    if plan.phases[-1].kind.sweeps_edges:
        return targets
    tells = tells_targets(plan.analysis.functions)
    return committed | targets if tells else committed


def parts_of(hubs: Any, degrees: Any) -> Any:
    """Return the rows of hubs in parts of some edges: row, first and last, ..."""
    parts = [
        (row, first, min(first + PART, degrees[row]))
        for row in hubs
        for first in range(0, degrees[row], PART)
    ]
    return np.array(parts, np.int32).ravel()


@dataclass
class Result:
    """The result of a superstep: values by property, committed vertices."""

    values: dict[str, Any]
    active_out: Any


class Superstep:
    """Runs the phases of a plan by the protocol of the architecture.

    Parameters
    ----------
    kernels : KernelSource
        The generated module.
    graph : Graph
    values : dict
        As given by the user.
    hub_degree : int
        From here on a vertex is a hub.
    text : str, optional
        Stands in for the module's text (planted faults).
    form : str
        How kernels come to their vertices wherever they can: see `FoldPlan`.
    graph_arrays : dict, optional
        Arrays of another layout of the graph, by name.
    """

    def __init__(
        self,
        kernels: KernelSource,
        graph: Any,
        values: dict[str, Any],
        *,
        hub_degree: int = 9,
        text: str | None = None,
        form: str = "plain",
        graph_arrays: dict[str, Any] | None = None,
    ) -> None:
        self.kernels = kernels
        self.plan: FoldPlan = kernels.plan
        self.graph = graph
        self.count = graph.vertex_count
        self.given = values
        self.hub_degree, self.form = hub_degree, form
        self.emulator = Emulator()
        self.module = self.emulator.load(text or kernels.text)
        self.entries = [(self.module, entry) for entry in kernels.entries]
        if form != "plain":
            others = emit(replace(kernels.plan, frontier_form=form))
            module = self.emulator.load(others.text)
            phases = {entry.phase for entry in others.entries}
            self.entries = [(module, entry) for entry in others.entries] + [
                (m, e)
                for m, e in self.entries
                if e.phase not in phases or e.role != "main"
            ]
        self.others = np.arange(self.count) % 5 == 0  # listed though not due
        self.reduced: dict[str, Any] = {}
        self.arrays = self._arrays(values)
        self.buffers = {
            "in_offsets": graph.in_edges.row_offsets,
            "in_sources": graph.in_edges.column_indices,
            "out_offsets": graph.out_edges.row_offsets,
            "out_targets": graph.out_edges.column_indices,
            "out_edges": graph.out_edges.edge_ids,
            "incident_offsets": graph.incident_edges.row_offsets,
            "incident_neighbors": graph.incident_edges.column_indices,
            "incident_edges": graph.incident_edges.edge_ids,
            "vertex_count": graph.vertex_count,
            "hub_degree": hub_degree,
            # 0 not run, 1 stopped, 2 passed last
            "edge_state": np.zeros(graph.edge_count, np.uint8),
            **(graph_arrays or {}),
        }

    # -- the state

    def _arrays(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of `d` by name; edge properties by edge id."""
        arrays: dict[str, Any] = {}
        signature = self.plan.analysis.signature
        for name, value in values.items():
            type_ = signature[name]
            if type_.kind is PropertyKind.SCALAR:
                arrays[name] = np.dtype(
                    self.plan.real if type_.dtype == "real" else type_.dtype
                ).type(value)
            elif type_.kind is PropertyKind.EDGE:
                place = self.graph.given_index
                if type_.shared:
                    place = place % self.graph.given_edge_count
                arrays[name] = value[place].copy()
            else:
                arrays[name] = value.copy()
            if name in self.plan.strides:
                arrays[name] = padded(arrays[name], self.plan.strides[name])
            if type_.iterated:
                arrays[f"{name}_next"] = arrays[name].copy()
        return arrays | {
            "in_degree": np.diff(self.graph.in_edges.row_offsets).astype(np.int32),
            "out_degree": np.diff(self.graph.out_edges.row_offsets).astype(np.int32),
            "superstep": np.zeros(1, np.int64),
            "vertex_count": self.count,
            "living_count": self.graph.living_count,
            "edge_count": self.graph.edge_count,
            "edge_twin": None if self.graph.directed else self.graph.twins,
            "edge_is_twin": self.graph.given_index >= self.graph.given_edge_count,
            "fault": np.zeros(6, np.int64),
        }

    def _temporary(self, field: Any) -> Any:
        temporary = self.plan.analysis.temporaries[field.of]
        shape = (self.count, *temporary.item_shape)
        fill = self.kernels.fill_values.get(field.name)
        if fill is None:
            poison = np.nan if field.dtype.startswith("float") else -12345
            return np.full(shape, poison, field.dtype)
        names = {
            "PACKED_NONE_FLOAT32": ordering.PACKED_NONE_FLOAT32,
            "PACKED_NONE_INT32": ordering.PACKED_NONE_INT32,
            "math": np,
            **{t: np.dtype(t).type for t in ("float32", "float64", "int32", "int64")},
        }
        value = eval(fill, names)  # noqa: S307 - text of our own emitter
        return np.full(shape, value, field.dtype)

    def data(self) -> Any:
        """Return `d`."""
        for field in self.kernels.fields:
            if field.source == "temporary" and field.name not in self.arrays:
                self.arrays[field.name] = self._temporary(field)
            if field.name in self.plan.analysis.reductions:
                self.arrays.setdefault(field.name, np.zeros(1))
        return self.module.Data(*[self.arrays[f.name] for f in self.kernels.fields])

    # -- the protocol

    def run(self, active: Any) -> Result:
        """Run all phases from an active mask."""
        accesses = [a for f in self.plan.analysis.functions for a in f.accesses]
        foreign = {a.mode for a in accesses if a.where == "foreign"}
        if active.any() and "read" in foreign:
            active = np.ones(self.count, bool)  # S6
        stopped = np.zeros(self.count, bool)
        committed = np.zeros(self.count, bool)
        passed, targets = None, np.zeros(self.count, bool)
        poisoned: set[str] = set()
        for number, phase in enumerate(self.plan.phases):
            functions = self.plan.functions_of(phase)
            due = (active | targets) & ~stopped
            sources, ends = self._ends()
            for along in self.plan.expands:
                if along != "out":
                    due[ends[active[sources]]] = True
                if along != "in":
                    due[sources[active[ends]]] = True
            due &= ~stopped
            sources = active if passed is None else passed
            if phase.kind.reduces:
                due = np.ones(self.count, bool)
            swept = due.copy()
            if phase.kind.pulls_edges:
                starts, ends = self._ends()
                swept[ends[sources[starts]]] = True
            some_due = phase.finds_due and self.form == "plain"
            if some_due:  # among all, which of them are
                swept |= True
            self._poison(phase, swept, sources, poisoned)
            words = {
                "due": words_of(swept if some_due else due),
                "some_due": some_due,
                "listed": np.flatnonzero(due | self.others).astype(np.int32),
                "swept": words_of(swept),
                "allowed": words_of(~stopped),
                "sources": words_of(sources),
                "active_sources": words_of(active),
                "all_sources": bool(sources.all()),
                "passed": np.zeros(-(-self.count // 32), np.uint32),
                "targets": np.zeros(-(-self.count // 32), np.uint32),
            }
            self._launch_phase(number, phase, words)
            if phase.kind.sweeps_edges or phase.kind.pulls_edges:
                targets = self._targets(words)
            if phase.kind.pulls_edges:
                due |= targets & ~stopped
            verdicts = any(f.kind.writes_vertices for f in functions)
            if phase.kind.pulls and verdicts:
                passed = mask_of(words["passed"], self.count)
                stopped |= due & ~passed
                committed = (committed & ~(due & ~passed)) | passed
            self._put_back(phase, due, passed)
        return Result(self._values(), active_behind(self.plan, committed, targets))

    def _put_back(self, phase: Phase, due: Any, passed: Any) -> None:
        """Restore the entries that a phase leaves to its caller."""
        for name in phase.restores_behind:
            stopped = self.buffers["edge_state"] == 1
            if self.plan.analysis.signature[name].kind is PropertyKind.VERTEX:
                stopped = due & ~passed
            stopped = stopped[: len(self.arrays[name])]
            self.arrays[f"{name}_next"][stopped] = self.arrays[name][stopped]

    def _targets(self, words: dict[str, Any]) -> Any:
        """Return the targets; after several edge phases, of edges that passed last."""
        if sum(phase.kind.sweeps_edges for phase in self.plan.phases) <= 1:
            return mask_of(words["targets"], self.count)
        out = self.graph.out_edges
        targets = np.zeros(self.count, bool)
        passed = self.buffers["edge_state"][out.edge_ids] == 2
        targets[out.column_indices[passed]] = True
        return targets

    def _ends(self) -> tuple[Any, Any]:
        out = self.graph.out_edges
        sources = np.repeat(np.arange(self.count), np.diff(out.row_offsets))
        return sources, out.column_indices

    def _poison(
        self, phase: Phase, swept: Any, sources: Any, poisoned: set[str]
    ) -> None:
        """Poison the rows that a phase sweeps: it must write or restore all of them."""
        for name in set(phase.writes_next) - poisoned:
            poisoned.add(name)
            rows = swept
            if self.plan.analysis.signature[name].kind is PropertyKind.EDGE:
                rows = np.zeros(self.graph.edge_count, bool)
                rows[self.graph.out_edges.edge_ids] = sources[self._ends()[0]]
                rows &= self.buffers["edge_state"] != 1
            array = self.arrays[f"{name}_next"]
            array[rows] = np.nan if array.dtype.kind == "f" else 77

    def _launch_phase(self, number: int, phase: Phase, words: dict[str, Any]) -> None:
        for module, entry in self.entries:
            if entry.phase == number:
                self._launch(module, entry, phase, words)

    def _launch(
        self, module: ModuleType, entry: Entry, phase: Phase, words: dict[str, Any]
    ) -> None:
        d = self.data()
        degrees = np.diff(self.buffers[phase.rows.offsets])
        hubs = np.flatnonzero(degrees >= self.hub_degree).astype(np.int32)
        available = {**self.buffers, **words, "d": d, "hubs": hubs}
        available["hub_parts"] = parts = parts_of(hubs, degrees)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_arrays, "JOINED_PART", PART)
            joined = gpu_arrays.joined_parts(hubs, degrees[hubs])
        available["joined_parts"] = joined
        function = self.plan.functions_of(phase)[0]
        if entry.role == "finish":
            shape = self.plan.facts.reductions[function.into].shape
            dtype = next(
                (f.dtype for f in self.kernels.fields if f.name == function.into),
                self._reduced_dtype(function),
            )
            reduced = np.full(math.prod(shape), 55, dtype)
            self.reduced[function.into] = reduced.reshape(shape)  # the same memory
            self.arrays[function.into] = self.reduced[function.into]
            available |= {"partials": self.partials, "reduced": reduced}
        elif phase.kind.reduces:
            width = math.prod(self.plan.facts.reductions[function.into].shape)
            width = phase.mapping.part_size or width
            self.partials = np.full((GRID, width), 66, self._reduced_dtype(function))
            available["partials"] = self.partials
        grid = GRID
        if entry.role == "hubs":
            each = len(parts) // 3 if "hub_parts" in entry.arguments else len(hubs)
            if "joined_parts" in entry.arguments:
                each = len(joined) // 5
            grid = max(each, 1)
        for name, (dtype, shape) in entry.parts.items():
            available[name] = poisoned((each, *shape), np.dtype(dtype))
        if entry.parts:
            available["joined_met"][:] = 0
        if entry.covers:
            threads = self.count * phase.mapping.lanes_per_vertex
            grid = -(-threads // entry.block)
            # Some threads have none, but where a block has one vertex.
            is_one = phase.mapping.lanes_per_vertex == entry.block
            assert is_one or threads % entry.block
        if "windows" in entry.arguments:
            vertices = 32 // phase.mapping.lanes_per_edge
            available["windows"] = windows = cut_windows(
                degrees, vertices, WINDOW, self.hub_degree
            )
            if entry.covers:
                grid = -(-(windows.size - 1) * 32 // entry.block)
        if "listed" in entry.arguments:
            grid = -(
                -words["listed"].size * phase.mapping.lanes_per_vertex // entry.block
            )
        groups = grid * entry.block // phase.mapping.lanes_per_vertex
        for name, (dtype, shape) in entry.scratch.items():
            available[name] = poisoned((groups, *shape), np.dtype(dtype))
        if phase.mapping.lists_rows:
            available |= shares_of(self.plan, phase, words, degrees)
        arguments = [available[name] for name in entry.arguments]
        self.emulator.launch(module, entry.name, grid, entry.block, arguments)
        if entry.parts:  # as the next launch has to find it
            assert not available["joined_met"].any()

    def _reduced_dtype(self, function: Any) -> str:
        return {"real": self.plan.real, "bool": "int32"}.get(
            function.returns, function.returns
        )

    def _values(self) -> dict[str, Any]:
        """Return the committed values, edge properties as given."""
        values: dict[str, Any] = {}
        for name, type_ in self.plan.analysis.signature.items():
            loose = {PropertyKind.SCALAR, PropertyKind.VECTOR}
            if type_.kind in loose or type_.shared:
                continue  # never written
            last = f"{name}_next" if type_.iterated else name
            value = self.arrays[last]
            if name in self.plan.strides:
                value = value[:, : type_.item_shape[0]]
            if type_.kind is PropertyKind.EDGE:
                # The second row of a self-loop belongs to no edge.
                given = self.given[name].copy()
                given[self.graph.given_index] = value
                value = given
            values[name] = value
        reductions = self.plan.facts.reductions
        return values | {
            name: value.astype(reductions[name].dtype)
            for name, value in self.reduced.items()
        }
