"""Contenders that insert and delete batches: the dynamic graph, and ways around it.

All keep directed edges with one weight, in one direction, each edge once. An insertion
is of edges that are not there, and a deletion of edges that are: what each contender
has to find out by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numba import njit
from scipy import sparse

import featgraph as fg

__all__ = ["CONTENDERS", "DynamicThere", "Edges", "Holder", "keys_of"]

Array = Any


class Edges:
    """Edges of a batch, or of a graph: targets are rows, as in its in-edges."""

    def __init__(self, sources: Array, targets: Array, weights: Array) -> None:
        self.sources, self.targets, self.weights = sources, targets, weights

    def __len__(self) -> int:
        return len(self.sources)

    def split(self, count: int) -> list[Edges]:
        """Return as many parts of them, one behind the other."""
        parts = zip(
            *(np.array_split(a, count) for a in vars(self).values()), strict=True
        )
        return [Edges(*part) for part in parts]


def keys_of(sources: Array, targets: Array) -> Array:
    """Return a number for each edge, which ascend by row."""
    return targets.astype(np.int64) << 32 | sources


class Holder(Protocol):
    """A graph of a contender, which keeps what it is after each batch."""

    def insert(self, batch: Edges) -> None:
        """Add edges."""
        ...

    def delete(self, batch: Edges) -> None:
        """Take edges out."""
        ...

    def rows(self) -> tuple[Array, float]:
        """Return the length of each row, and the sum of all weights."""
        ...


class Dynamic:
    """An `fg.DynamicGraph`, on the target that it is given."""

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.graph = fg.DynamicGraph.from_edges(
            edges.sources, edges.targets, weights=edges.weights,
            vertex_count=vertex_count, duplicates="last", target=target,
        )  # fmt: skip

    def insert(self, batch: Edges) -> None:
        self.graph.insert_edges(batch.sources, batch.targets, weights=batch.weights)

    def delete(self, batch: Edges) -> None:
        self.graph.delete_edges(batch.sources, batch.targets)

    def mix(self, come: Edges, go: Edges) -> None:
        """Insert edges and delete others in one batch."""
        pairs = zip(vars(come).values(), vars(go).values(), strict=True)
        sources, targets, weights = (np.concatenate(pair) for pair in pairs)
        insert = np.arange(len(sources)) < len(come)
        self.graph.update(sources, targets, insert=insert, weights=weights)

    def rows(self) -> tuple[Array, float]:
        total = float(np.sum(self.graph.weights, dtype=np.float64))
        return np.asarray(self.graph.in_degree), total


class DynamicThere(Dynamic):
    """The same on the GPU; batches lie there before they are timed."""

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        super().__init__(edges, vertex_count, target)
        self.there: tuple[Edges, Edges] | None = None

    def insert(self, batch: Edges) -> None:
        """Add edges."""
        super().insert(self._moved(batch))

    def delete(self, batch: Edges) -> None:
        """Take edges out."""
        super().delete(self._moved(batch))

    def _moved(self, batch: Edges) -> Edges:
        if self.there is None or self.there[0] is not batch:
            from numba import cuda

            arrays = batch.sources, batch.targets, batch.weights
            self.there = batch, Edges(*map(cuda.to_device, arrays))
        return self.there[1]


class Rebuilt:
    """`Graph.from_edges` of all edges, and its in-edges, anew."""

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.base, self.count = edges, vertex_count
        self._build(edges)

    def _build(self, *parts: Edges) -> None:
        ends = (np.concatenate([getattr(p, end) for p in parts])
                for end in ("sources", "targets", "weights"))  # fmt: skip
        sources, targets, weights = ends
        self.graph = fg.Graph.from_edges(
            sources, targets, weights=weights, vertex_count=self.count,
            duplicates="last",
        )  # fmt: skip
        _ = self.graph.in_edges

    def insert(self, batch: Edges) -> None:
        self._build(self.base, batch)

    def delete(self, batch: Edges) -> None:
        graph = self.graph
        is_left = ~np.isin(
            keys_of(graph.sources, graph.targets),
            keys_of(batch.sources, batch.targets),
        )
        ends = graph.sources, graph.targets, graph.weights
        self._build(Edges(*(array[is_left] for array in ends)))

    def rows(self) -> tuple[Array, float]:
        return self.graph.in_degree, float(np.sum(self.graph.weights, dtype=np.float64))


class Sorted:
    """Sorted keys of all edges: each batch is put behind them, and all are sorted."""

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.keys, self.weights = np.empty(0, np.int64), np.empty(0, np.float32)
        self.count = vertex_count
        self.insert(edges)

    def insert(self, batch: Edges) -> None:
        keys = np.append(self.keys, keys_of(batch.sources, batch.targets))
        weights = np.append(self.weights, batch.weights)
        order = np.argsort(keys, kind="stable")
        is_last = np.append(np.diff(keys[order]) != 0, True)
        order = order[is_last]
        self.keys, self.weights = keys[order], weights[order]

    def delete(self, batch: Edges) -> None:
        gone = np.sort(keys_of(batch.sources, batch.targets))
        place = np.searchsorted(gone, self.keys).clip(max=gone.size - 1)
        is_left = gone[place] != self.keys
        self.keys, self.weights = self.keys[is_left], self.weights[is_left]

    def rows(self) -> tuple[Array, float]:
        lengths = np.bincount(self.keys >> 32, minlength=self.count)
        return lengths, float(np.sum(self.weights, dtype=np.float64))


@njit(nogil=True)
def merge(keys, weights, more, more_weights, is_deletion):  # type: ignore[no-untyped-def]
    """Merge sorted keys, of which later ones win, or take those of a batch out."""
    size = keys.size if is_deletion else keys.size + more.size
    out, values = np.empty(size, keys.dtype), np.empty(size, weights.dtype)
    i = j = n = 0
    while i < keys.size or (j < more.size and not is_deletion):
        if j == more.size or (i < keys.size and keys[i] < more[j]):
            out[n], values[n] = keys[i], weights[i]
            i += 1
            n += 1
        else:
            i += i < keys.size and keys[i] == more[j]
            if not is_deletion:
                out[n], values[n] = more[j], more_weights[j]
                n += 1
            j += 1
    return out[:n], values[:n]


class Merged(Sorted):
    """The same keys; the sorted batch is merged with them in one pass."""

    def _merge(self, batch: Edges, *, is_deletion: bool) -> None:
        keys = keys_of(batch.sources, batch.targets)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        order = order[np.append(np.diff(keys) != 0, True)[: keys.size]]
        keys = keys_of(batch.sources[order], batch.targets[order])
        self.keys, self.weights = merge(
            self.keys, self.weights, keys, batch.weights[order], is_deletion
        )

    def insert(self, batch: Edges) -> None:
        if self.keys.size:
            self._merge(batch, is_deletion=False)
        else:
            super().insert(batch)

    def delete(self, batch: Edges) -> None:
        self._merge(batch, is_deletion=True)


class SciPy:
    """A CSR matrix A: ``A + B``, and ``A - B`` without the zeros that it leaves."""

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.count = vertex_count
        self.matrix = self._matrix(edges)

    def _matrix(self, edges: Edges) -> Any:
        shape = self.count, self.count
        entries = edges.weights, (edges.targets, edges.sources)
        return sparse.coo_matrix(entries, shape).tocsr()

    def insert(self, batch: Edges) -> None:
        self.matrix = self.matrix + self._matrix(batch)

    def delete(self, batch: Edges) -> None:
        self.matrix = self.matrix - self._matrix(batch)
        self.matrix.eliminate_zeros()

    def rows(self) -> tuple[Array, float]:
        return np.diff(self.matrix.indptr), float(
            self.matrix.data.sum(dtype=np.float64)
        )


CONTENDERS: dict[str, Callable[..., Holder]] = {
    "dynamic": Dynamic,
    "dynamic, batches on the GPU": DynamicThere,
    "merge into CSR": Merged,
    "SciPy A + B": SciPy,
    "sort all": Sorted,
    "from_edges": Rebuilt,
}
