"""Due sets, refreshes and lists of rows go by the layout, on every target.

A graph in extents refuses to give an array of CSR (`LaidOut`), so that whole runs show
that nothing of the runtime goes along rows by itself.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect
from featgraph.fold.tree.layout import Csr
from featgraph.program.active import ActiveSet
from featgraph.runtime.devices import cpu_sweeps, host_arrays
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory import graph_arrays
from tests.bank import BANK, BY_NAME, BankProgram
from tests.layouts.extents import Extents
from tests.layouts.laid_out import LAYOUT, laid_out, layout_named
from tests.layouts.test_extents import BySlot, FirstExtentAlone, same_bits
from tests.simt.emulator import MemoryFault

#: Vertices of this degree are left to blocks.
HUB_DEGREE = 30


def _device(target: str, stack: ExitStack) -> Any:
    """Return a device with hubs and several chunks on small graphs."""
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    if target == "cpu":
        for module in (cpu_sweeps, host_arrays):
            patch.setattr(module, "SMALLEST_CHUNK", 1)
        return choose_device("cpu")
    if not dialect.is_installed():
        pytest.skip("needs numba-cuda, the dialect")
    from featgraph.runtime.devices import cuda_device, cuda_sets
    from tests.simt.gpu import emulated_gpu

    stack.enter_context(emulated_gpu())
    for module in (cuda_device, cuda_sets):
        patch.setattr(module, "HUB_DEGREE", HUB_DEGREE)
    return cuda_device.cuda_device()


@dataclass(frozen=True)
class SetCalls:
    """Calls of a device's vertex sets, on a graph with hubs where the layout allows.

    Each method returns what was found, and what NumPy says.
    """

    device: Any
    layout: str
    has_hubs: bool = True

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        source, target = rng.integers(0, 150, (2, 900))
        if self.has_hubs:
            source[:50], target[50:100] = 3, 11
        graph = fg.Graph.from_edges(source, target, vertex_count=150)
        if self.layout != "csr":
            graph = laid_out(graph, 6, self.device.name, self.layout)
        active = rng.random(150) < 0.2
        active[3] = True
        values = {
            "rng": rng, "graph": graph, "active": active,
            "arrays": graph_arrays.graph_arrays(graph, self.device),
            "words": self.device.upload(ActiveSet(150, active).words),
        }  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _mask(self, words: Any) -> Any:
        return ActiveSet.from_words(150, self.device.download(words)).mask

    def expand(self, count: int | None, along: str) -> tuple[Any, Any]:
        found = self.device.sets.expand(self.words, self.arrays, count, along)
        due, graph = self.active.copy(), self.graph
        if along != "out":
            due[graph.targets[self.active[graph.sources]]] = True
        if along != "in":
            due[graph.sources[self.active[graph.targets]]] = True
        return self._mask(found), due

    def edges_of(self, along: str) -> tuple[Any, Any]:
        degrees = {"in": self.graph.in_degree, "out": self.graph.out_degree}[along]
        found = self.device.sets.edges_of(self.words, self.arrays, along)
        return found, degrees[self.active].sum()

    def targets(self) -> tuple[Any, Any]:
        state = self.rng.integers(0, 3, 900).astype(np.uint8)
        found = self.device.sets.targets(self.device.upload(state), self.arrays)
        wanted = np.zeros(150, bool)
        wanted[np.repeat(np.arange(150), self.graph.in_degree)[state == 2]] = True
        return self._mask(found), wanted

    def refresh_edges(self) -> tuple[Any, Any]:
        entries = np.arange(900 * 5.0).reshape(900, 5)
        next_, current = self.device.upload(-entries), self.device.upload(entries)
        self.device.sets.refresh_edges(self.words, next_, current, self.arrays)
        of_active = self.active[self.graph.in_edges.column_indices]
        wanted = np.where(of_active[:, None], entries, -entries)
        return self.device.download(next_), wanted


#: Functions of due sets, with their arguments.
CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    **{
        f"expand {along} {name}": ("expand", (count, along))
        for along in ("in", "out", "both")
        for name, count in (("few", 0), ("unknown", None), ("many", 150))
    },
    "edges in": ("edges_of", ("in",)),
    "edges out": ("edges_of", ("out",)),
    "targets": ("targets", ()),
    "refresh": ("refresh_edges", ()),
}
CASES = [
    pytest.param(target, has_hubs, id=f"{target}{'-hubs' * has_hubs}")
    for target, has_hubs in (("cpu", True), ("cuda", False), ("cuda", True))
]


@pytest.mark.drawn(24)
@pytest.mark.parametrize(("name", "given"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("on", "has_hubs"), CASES)
@pytest.mark.parametrize("layout", ["csr", LAYOUT])
def test_sets_are_found(
    layout: str, on: str, has_hubs: bool, name: str, given: tuple[Any, ...]
) -> None:
    with ExitStack() as stack:
        calls = SetCalls(_device(on, stack), layout, has_hubs)
        found, wanted = getattr(calls, name)(*given)
        np.testing.assert_array_equal(found, wanted)


class AllSlots(Extents):
    """Takes spare slots for edges, where all are gone through."""

    def slot_at(self, slot: str) -> tuple[str, str, str]:
        return (
            "",
            f"{self.ends}[{slot}]",
            self._number(f"{self.array('numbers')}[{slot}]"),
        )


_ROWS = ["expand in few", "expand in many", "expand in unknown"]
#: Fault of a layout -> where it is planted, and what it spoils. What reads spare slots
#: would write anywhere: the emulator sees that, a CPU does not.
SPOILT = {
    "FirstExtentAlone": (FirstExtentAlone, "cpu", [*_ROWS, "targets", "edges in"]),
    "FirstExtentAlone on CUDA": (FirstExtentAlone, "cuda", _ROWS),
    "BySlot": (BySlot, "cuda", _ROWS),
    "AllSlots": (AllSlots, "cuda", ["refresh"]),
}


@pytest.mark.parametrize(("fault", "on", "names"), SPOILT.values(), ids=SPOILT)
def test_a_planted_fault_is_caught(fault: Any, on: str, names: list[str]) -> None:
    for name in names:
        with ExitStack() as stack:
            layout = layout_named(fault.__name__, fault.of)
            calls = SetCalls(_device(on, stack), layout)
            method, given = CALLS[name]
            with pytest.raises((AssertionError, IndexError, MemoryFault)):
                np.testing.assert_array_equal(*getattr(calls, method)(*given))


# -- whole runs


def _runs(program: BankProgram, target: str, **options: Any) -> None:
    """Run a program on a graph in CSR, and on the same in extents: the same bits."""
    rng = np.random.default_rng(8)
    source, target_ = rng.integers(0, 60, (2, 200))
    source[:35], target_[35:70] = 3, 11
    graph = fg.Graph.from_edges(
        source, target_, vertex_count=60, directed=not program.undirected
    )
    values = program.make_state(graph, program.widths[0], rng)
    other, found = laid_out(graph, 9, target), []
    for each in (graph, other):
        state = fg.State(each, **copy.deepcopy(values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            ran = fg.iterate(
                program.foldmaps, state, target=target, max_supersteps=3,
                active=np.arange(0, 60, 7), **options,
            )  # fmt: skip
        found.append((state, ran.active_counts))
    (csr, counts), (laid, laid_counts) = found
    assert laid_counts == counts
    for name in csr:
        same_bits(laid[name], csr[name], name)


@pytest.mark.drawn(48)
@pytest.mark.parametrize("program", BANK, ids=str)
def test_runs_have_the_same_bits(program: BankProgram) -> None:
    _runs(program, "cpu")


#: Program -> options under which its due sets are found in ways of their own.
OPTIONS = [
    ("label_propagation", {"change_driven": True}),
    ("components", {"asynchronous": True}),
    ("reachability", {"direction": "push"}),
    ("along_both", {}),
    ("along_out", {}),
]


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_options_have_the_same_bits(name: str, options: dict[str, Any]) -> None:
    _runs(BY_NAME[name], "cpu", **options)


EMULATED = [
    ("bfs", {}),
    ("label_propagation", {"change_driven": True}),
    ("edge_atomics", {"folding": False}),
    ("label_propagation", {"schedule": "balanced_push", "direction": "push"}),
]


@pytest.mark.parametrize(("name", "options"), EMULATED)
def test_the_cuda_runtime_has_the_same_bits(name: str, options: dict[str, Any]) -> None:
    with ExitStack() as stack:
        _device("cuda", stack)
        _runs(BY_NAME[name], "cuda", **options)


def _by_offsets(rows: Any, *types: str) -> Csr:
    return Csr(rows.offsets, rows.ends, "", *types)


def test_csr_is_refused_where_edges_are_in_extents() -> None:
    """A layout that goes by offsets all the same is seen."""
    layout = layout_named("by_offsets", _by_offsets)
    graph = laid_out(fg.Graph.from_edges([0, 1], [1, 2]), 0, layout=layout)
    with pytest.raises(AssertionError, match="whatever the layout"):
        graph_arrays.graph_arrays(graph, choose_device("cpu")).kernel("reach", "out")
