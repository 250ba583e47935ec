"""The CPU as a device: NumPy arrays and Numba's threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.graph import Graph
from featgraph.program.active import word_count
from featgraph.runtime.devices.cpu_sweeps import (
    CpuSweeps,
)
from featgraph.runtime.devices.host_arrays import host_graph_array
from featgraph.runtime.devices.protocol import Array, Words

__all__ = ["CpuDevice"]


class CpuDevice(CpuSweeps):
    """NumPy arrays and Numba's threads."""

    name = "cpu"
    recorder = None

    def __init__(self) -> None:
        super().__init__()
        self.full_sets: dict[int, Words] = {}

    def upload(self, array: npt.NDArray[Any], memory: Array | None = None) -> Array:
        """Return an array of the device; on the CPU `array` itself."""
        return array

    def upload_words(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return a bitvector of the device; on the CPU `words` itself."""
        return words

    def hold(self, words: Words | None) -> Words | None:
        """Return a set that stays as it is: a copy."""
        return None if words is None else words.copy()

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a host array; on the CPU `array` itself."""
        return array  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array with any contents."""
        return np.empty(shape, dtype)

    def working_memory(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array that kernels write before they use it."""
        return self.empty(shape, dtype)

    def fill(self, array: Array, value: Any) -> None:
        """Set all elements."""
        array[...] = value

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array to another one."""
        np.copyto(target, source)

    def near(self, words: Words, keys: Array, sign: float, limit: float) -> Words:
        """Return the vertices of a set with a feature of ``sign * key <= limit``."""
        near = np.empty_like(words)
        rows = keys.reshape(len(keys), -1)
        self._loops.near(words, rows, np.float64(sign), np.float64(limit), near)
        at = np.flatnonzero(near)
        self._note(near, at, 0, int(np.bitwise_count(near[at]).sum()))
        return near

    def first_key(self, words: Words, keys: Array, sign: float) -> float:
        """Return the smallest ``sign * key`` in a set; inf for the empty one."""
        rows = keys.reshape(len(keys), -1)
        return float(self._loops.first_key(words, rows, np.float64(sign)))

    def targets(self, edge_state: Array, arrays: Mapping[str, Array]) -> Words:
        """Return the targets of the edges that passed last."""
        offsets = arrays["in_offsets"]
        words = np.zeros(word_count(offsets.size - 1), np.uint32)
        self._loops.collect_targets(edge_state, offsets, words)
        return words

    def refresh_edges(
        self, words: Words, next_: Array, current: Array, arrays: Mapping[str, Array]
    ) -> None:
        """Copy the rows of the out-edges of the vertices in `words`."""
        rows = (len(current), current.size // max(len(current), 1))
        self._loops.refresh_edges(
            words,
            next_.reshape(rows),
            current.reshape(rows),
            arrays["out_offsets"],
            arrays["out_edges"],
        )

    def graph_array(self, graph: Graph, name: str) -> Array:
        """Return an array of the graph by its name in generated code."""
        return host_graph_array(graph, name)

    def reduce_rows(self, arrays: Mapping[str, Array]) -> int:
        """Return how many partial results a reduce leaves, by the graph's arrays."""
        return len(arrays["vertex_chunks"]) - 1

    def form_of(
        self,
        plan: FoldPlan,
        phase: Phase,
        graph: Graph,
        count: int | None,
        is_listed: bool,
    ) -> str:
        """Return which form of a kernel runs a phase; on the CPU there is one."""
        return "plain"

    def list_vertices(self, mask: npt.NDArray[np.bool_]) -> Array | None:
        """Return None: here sweeps go by words and pass over empty ones."""
        return None

    def synchronize(self) -> None:
        """Wait for launched work; there is none on the CPU."""
