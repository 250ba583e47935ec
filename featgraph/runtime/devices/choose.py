"""Choice of the device of a target, and the CPU device.

`choose_device` returns the `Device` for ``target=``; the CUDA device is imported when
it is first chosen. `CpuDevice` works on NumPy arrays with Numba's threads; its launches
and sets are in `cpu_sweeps`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.cuda.dialect import chosen_target
from featgraph.cuda.values import host_values
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.graph import Graph
from featgraph.runtime.devices.cpu_sweeps import CpuSweeps
from featgraph.runtime.devices.fixed_trees import HostTrees
from featgraph.runtime.devices.host_arrays import host_graph_array
from featgraph.runtime.devices.protocol import (
    Array,
    Device,
    DeviceGraph,
    GraphSize,
    Values,
)

__all__ = ["choose_device"]


class CpuRows:
    """Values of properties in NumPy arrays, with rows without padding."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an uninitialized array for values of a shape."""
        return np.empty(shape, dtype)

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Return an array with these values; a host array is returned as it is."""
        return host_values(values)

    def extended(self, values: Values, room: int, memory: Array | None = None) -> Array:
        """Return an array of `room` rows: these values, then zeros."""
        given = host_values(values)
        made = np.zeros((room, *given.shape[1:]), given.dtype)
        made[: len(given)] = given
        return made

    def download(self, array: Array, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return the values: the array itself, or its first rows."""
        return self.held(array, shape)  # type: ignore[no-any-return]

    def held(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Return the array itself, or its first rows."""
        return array if len(array) == shape[0] else array[: shape[0]]

    def put(self, array: Array, ids: Array, values: Array) -> None:
        """Write some rows."""
        array[ids] = values

    def copy_marked(self, marks: Array, source: Array, target: Array) -> None:
        """Copy the rows of `source` with a mark of 1 to `target`."""
        is_marked = marks[: len(source)] == 1
        target[is_marked] = source[is_marked]


class CpuDevice(CpuSweeps):
    """The CPU target: NumPy arrays, and kernels on Numba's threads."""

    name = "cpu"
    is_scarce = False
    recorder = None

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.trees = CpuRows(), HostTrees()

    def upload(self, values: Values, memory: Array | None = None) -> Array:
        """Return an array of the device; on the CPU a host array itself."""
        return host_values(values)

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a host array; on the CPU `array` itself."""
        return array  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an uninitialized array."""
        return np.empty(shape, dtype)

    def working_memory(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array of zeros, for values that kernels compute."""
        return np.zeros(shape, dtype)

    def make_spare_memory(self) -> None:
        """Return None: no memory of the host is kept."""

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""
        array[...] = value

    def add_one(self, array: Array) -> None:
        """Add one to the first element."""
        array[0] += 1

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one."""
        np.copyto(target, source)

    def graph_array(self, graph: Graph, name: str) -> Array:
        """Return an array of the graph by its name in generated code."""
        return host_graph_array(graph, name)

    def reduce_rows(self, graph: DeviceGraph, phase: Phase) -> int:
        """Return the number of partial results of a reduce over a graph's vertices."""
        chunks = "word_chunks" if phase.in_a_tree else "vertex_chunks"
        chunks = chunks if phase.combined_in < 0 else "vertex_blocks"
        return len(graph[chunks]) - 1

    def frontier_form_of(
        self,
        plan: FoldPlan,
        phase: Phase,
        graph: GraphSize,
        count: int | None,
        is_listed: bool,
    ) -> str:
        """Return the only frontier form of the CPU, "plain"."""
        return "plain"

    def list_vertices(
        self, vertices: npt.NDArray[np.int32], count: int
    ) -> Array | None:
        """Return None: sweeps of the CPU skip empty words instead."""
        return None

    def synchronize(self) -> None:
        """Wait for launched work; there is none on the CPU."""


def choose_device(target: str, graph: Graph | None = None) -> Device:
    """Return the device for ``"auto"``, ``"cpu"`` or ``"cuda"``, for work on a graph.

    Raises
    ------
    DeviceError
        If the target is CUDA, and CUDA cannot be used.
    PlanError
        If the target is unknown.
    """
    if graph is not None and graph.changing is not None:
        target = graph.changing.target_of(target)
    if chosen_target(target) == "cpu":
        return _CPU
    if not _loaded:  # an import statement would take a twentieth of a call's time
        from featgraph.runtime.devices import cuda_device

        _loaded.append(cuda_device)
    device: Device = _loaded[0].cuda_device()
    return device


_CPU = CpuDevice()
#: The module of the CUDA target, which imports the dialect.
_loaded: list[Any] = []
