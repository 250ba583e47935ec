"""Contenders that insert and delete batches: the dynamic graph, and ways around it.

All keep directed edges with one weight, in one direction, each edge once. An insertion
is of edges that are not there, and a deletion of edges that are. Each contender has to
check that itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

import numpy as np
from numba import njit
from scipy import sparse

import featgraph as fg

__all__ = ["CONTENDERS", "USUAL", "Edges", "Holder", "keys_of"]

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


def cuda_array(array: Array) -> Any:
    """Return a copy of an array on the GPU."""
    from featgraph.cuda.dialect import cuda

    return cuda.to_device(np.ascontiguousarray(array))


def keys_of(sources: Array, targets: Array) -> Array:
    """Return a number for each edge, which ascend by row."""
    return targets.astype(np.int64) << 32 | sources


class Holder(ABC):
    """The graph of a contender, changed in batches."""

    #: The package that it needs, beside SciPy; whether its arrays lie on the GPU.
    package, is_there = "featgraph", False

    @abstractmethod
    def __init__(self, edges: Any, vertex_count: int, target: str = "cpu") -> None:
        """Make the graph of some edges."""

    @classmethod
    def place(cls, edges: Edges) -> Any:
        """Return edges in the form that all methods take them in."""
        return edges

    @abstractmethod
    def insert(self, batch: Any) -> None:
        """Add edges."""

    @abstractmethod
    def delete(self, batch: Any) -> None:
        """Take edges out."""

    @abstractmethod
    def rows(self) -> tuple[Array, float]:
        """Return the length of each row, and the sum of all weights."""


class Dynamic(Holder):
    """An `fg.DynamicGraph`, on the target that it is given.

    Attributes
    ----------
    columns : int
        Of 4 bytes each: none; a weight; a weight, a type and two times.
    is_both : bool
        If rows of both directions exist.
    """

    columns, is_both = 1, False

    def __init__(self, edges: Any, vertex_count: int, target: str = "cpu") -> None:
        self.graph = fg.DynamicGraph.from_edges(
            **edges, vertex_count=vertex_count, duplicates="last", target=target
        )
        if self.is_both:
            self.graph.neighbors(0)

    @classmethod
    def place(cls, edges: Edges) -> Any:
        """Return arrays by the names of arguments."""
        u, v, weights = edges.sources, edges.targets, edges.weights
        put = (lambda array: array) if not cls.is_there else cuda_array
        given = {"sources": put(u), "targets": put(v)}
        if cls.columns:
            given["weights"] = put(weights)
        if cls.columns > 1:
            values = {"type": u % 8, "begin": u, "end": u + v % 64}
            given["columns"] = {name: put(array) for name, array in values.items()}
        return given

    def insert(self, batch: Any) -> None:
        self.graph.insert_edges(**batch)

    def delete(self, batch: Any) -> None:
        self.graph.delete_edges(batch["sources"], batch["targets"])

    def mix(self, batch: Any, insert: Array) -> None:
        """Insert edges and delete others in one batch."""
        self.graph.update(**batch, insert=insert)

    def rows(self) -> tuple[Array, float]:
        weights = self.graph.weights if self.columns else np.nan
        return np.asarray(self.graph.in_degree), float(
            np.sum(weights, dtype=np.float64)
        )


class Rebuilt(Holder):
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


class Sorted(Holder):
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


class SciPy(Holder):
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


class NetworKit(Holder):
    """Its graph, which has edges in both directions; it looks for repeats."""

    package = "networkit"

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.graph = import_module("networkit").GraphFromCoo(
            self._listed(edges), n=vertex_count, weighted=True, directed=True
        )

    def _listed(self, edges: Edges) -> Any:
        ends = edges.sources.astype(np.uint64), edges.targets.astype(np.uint64)
        return edges.weights.astype(np.float64), ends

    def insert(self, batch: Edges) -> None:
        self.graph.addEdges(self._listed(batch), checkMultiEdge=True)

    def delete(self, batch: Edges) -> None:
        for pair in zip(batch.sources.tolist(), batch.targets.tolist(), strict=True):
            self.graph.removeEdge(*pair)

    def rows(self) -> tuple[Array, float]:
        degrees = map(self.graph.degreeIn, range(self.graph.numberOfNodes()))
        return np.fromiter(degrees, np.int64), self.graph.totalEdgeWeight()


class IGraph(Holder):
    """Its graph, whose edges may be repeated; it builds its index in each batch."""

    package = "igraph"

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.graph = import_module("igraph").Graph(vertex_count, directed=True)
        self.insert(edges)

    def _pairs(self, edges: Edges) -> Any:
        return np.stack([edges.sources, edges.targets], axis=1).tolist()

    def insert(self, batch: Edges) -> None:
        values = {"weight": batch.weights.tolist()}
        self.graph.add_edges(self._pairs(batch), attributes=values)

    def delete(self, batch: Edges) -> None:
        self.graph.delete_edges(self.graph.get_eids(self._pairs(batch)))

    def rows(self) -> tuple[Array, float]:
        return np.array(self.graph.indegree()), sum(self.graph.es["weight"])


class NetworkX(Holder):
    """A `DiGraph`: dictionaries of dictionaries."""

    package = "networkx"

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.graph = import_module("networkx").DiGraph()
        self.graph.add_nodes_from(range(vertex_count))
        self.insert(edges)

    def insert(self, batch: Edges) -> None:
        arrays = (array.tolist() for array in vars(batch).values())
        self.graph.add_weighted_edges_from(zip(*arrays, strict=True))

    def delete(self, batch: Edges) -> None:
        ends = batch.sources.tolist(), batch.targets.tolist()
        self.graph.remove_edges_from(zip(*ends, strict=True))

    def rows(self) -> tuple[Array, float]:
        degrees = np.array([degree for _, degree in self.graph.in_degree()])
        return degrees, self.graph.size(weight="weight")


def variant(**attributes: Any) -> type[Holder]:
    """Return `Dynamic` with other attributes."""
    return type("Variant", (Dynamic,), attributes)


CONTENDERS: dict[str, type[Holder]] = {
    "dynamic": Dynamic,
    "dynamic, batches on the GPU": variant(is_there=True),
    "merge into CSR": Merged,
    "SciPy A + B": SciPy,
    "sort all": Sorted,
    "from_edges": Rebuilt,
    "dynamic, 0 columns": variant(columns=0),
    "dynamic, 0 columns, on the GPU": variant(columns=0, is_there=True),
    "dynamic, 4 columns": variant(columns=4),
    "dynamic, 4 columns, on the GPU": variant(columns=4, is_there=True),
    "dynamic, both directions": variant(is_both=True),
    "NetworKit": NetworKit,
    "igraph": IGraph,
    "NetworkX": NetworkX,
}
#: Contenders of a run by default.
USUAL = list(CONTENDERS)[:6]
