"""Contenders that insert and delete batches: the dynamic graph, and ways around it.

All keep directed edges with one weight, in one direction, each edge once. An insertion
is of edges that are not there, and a deletion of edges that are. Each contender has to
check that itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numba import njit
from scipy import sparse

import featgraph as fg

__all__ = ["CONTENDERS", "USUAL", "Edges", "Holder", "joined"]

Array = Any


@dataclass(eq=False)
class Edges:
    """Edges of a batch, or of a graph: targets are rows, as in its in-edges."""

    sources: Array
    targets: Array
    weights: Array

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, places: Any) -> Edges:
        """Return the edges at some places, or of a mask."""
        return Edges(*(array[places] for array in vars(self).values()))

    def keys(self) -> Array:
        """Return a number for each edge, which ascend by row."""
        return self.targets.astype(np.int64) << 32 | self.sources

    def split(self, count: int) -> list[Edges]:
        """Return as many parts of them, one behind the other."""
        return [self[part] for part in np.array_split(np.arange(len(self)), count)]


def joined(*parts: Edges) -> Edges:
    """Return the edges of all parts, one behind the other."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Edges(*map(np.concatenate, columns))


def cuda_array(array: Array) -> Any:
    """Return a copy of an array on the GPU."""
    from featgraph.cuda.dialect import cuda

    return cuda.to_device(np.ascontiguousarray(array))


class Holder:
    """The graph of a contender, changed in batches.

    It is made of edges in the form of `place`, the number of vertices and the target.
    ``insert(batch)`` adds edges, ``delete(batch)`` takes edges out, and ``rows()``
    returns the length of each row, and all weights or their sum.
    """

    #: The package that it needs, beside SciPy; whether its arrays lie on the GPU.
    package, is_there = "featgraph", False

    @classmethod
    def place(cls, edges: Edges) -> Any:
        """Return edges in the form that all methods take them in."""
        return edges


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

    def rows(self) -> tuple[Array, Any]:
        weights = self.graph.weights if self.columns else np.nan
        return np.asarray(self.graph.in_degree), weights


class Rebuilt(Holder):
    """`Graph.from_edges` of all edges, and its in-edges, anew."""

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.base, self.count = edges, vertex_count
        self._build(edges)

    def _build(self, edges: Edges) -> None:
        self.graph = fg.Graph.from_edges(
            **vars(edges), vertex_count=self.count, duplicates="last"
        )
        _ = self.graph.in_edges

    def insert(self, batch: Edges) -> None:
        self._build(joined(self.base, batch))

    def delete(self, batch: Edges) -> None:
        edges = Edges(self.graph.sources, self.graph.targets, self.graph.weights)
        self._build(edges[~np.isin(edges.keys(), batch.keys())])

    def rows(self) -> tuple[Array, Any]:
        return self.graph.in_degree, self.graph.weights


def sorted_once(keys: Array, weights: Array) -> tuple[Array, Array]:
    """Return keys in ascending order, each once, with the last of its weights."""
    order = keys.argsort(kind="stable")
    is_last = keys[order][1:] != keys[order][:-1]
    order = order[np.append(is_last, np.ones_like(is_last, shape=min(keys.size, 1)))]
    return keys[order], weights[order]


class Sorted(Holder):
    """Sorted keys of all edges: each batch is put behind them, and all are sorted.

    The same functions work on arrays of CuPy.
    """

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.keys, self.weights = sorted_once(edges.keys(), edges.weights)
        self.count = vertex_count

    def insert(self, batch: Edges) -> None:
        keys = np.append(self.keys, batch.keys())
        weights = np.append(self.weights, batch.weights)
        self.keys, self.weights = sorted_once(keys, weights)

    def delete(self, batch: Edges) -> None:
        gone = batch.keys()
        gone.sort()
        place = np.searchsorted(gone, self.keys).clip(max=gone.size - 1)
        is_left = gone[place] != self.keys
        self.keys, self.weights = self.keys[is_left], self.weights[is_left]

    def rows(self) -> tuple[Array, Any]:
        return np.bincount(self.keys >> 32, minlength=self.count), self.weights


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

    def insert(self, batch: Edges, is_deletion: bool = False) -> None:
        more = sorted_once(batch.keys(), batch.weights)
        self.keys, self.weights = merge(self.keys, self.weights, *more, is_deletion)

    def delete(self, batch: Edges) -> None:
        self.insert(batch, is_deletion=True)


class SortedOnGpu(Sorted):
    """Sorted keys on a GPU, by CuPy."""

    package, is_there = "cupy", True

    @classmethod
    def place(cls, edges: Edges) -> Edges:
        return Edges(*map(import_module("cupy").asarray, vars(edges).values()))

    def rows(self) -> tuple[Array, Any]:
        lengths, weights = super().rows()
        return lengths.get(), weights.get()


class MergedOnGpu(SortedOnGpu):
    """The same; a batch is sorted, and its edges are put at their places."""

    def insert(self, batch: Edges) -> None:
        more, values = sorted_once(batch.keys(), batch.weights)
        place = np.searchsorted(self.keys, more)
        is_there = self.keys[place.clip(max=self.keys.size - 1)] == more
        self.weights[place[is_there]] = values[is_there]
        place = place[~is_there]
        place += np.arange(place.size, like=place)
        old = self.keys, self.weights
        is_old = np.ones_like(is_there, shape=old[0].size + place.size)
        is_old[place] = False
        made = []
        for array, new in zip(old, (more, values), strict=True):
            made.append(np.empty_like(array, shape=is_old.size))
            made[-1][is_old], made[-1][place] = array, new[~is_there]
        self.keys, self.weights = made


class SciPy(Holder):
    """A CSR matrix A: ``A + B``, and ``A - B`` without the zeros that it leaves."""

    def __init__(self, edges: Edges, vertex_count: int, target: str = "cpu") -> None:
        self.shape = vertex_count, vertex_count
        self.matrix = self._matrix(edges)

    def _matrix(self, edges: Edges) -> Any:
        entries = edges.weights, (edges.targets, edges.sources)
        return sparse.coo_matrix(entries, self.shape).tocsr()

    def insert(self, batch: Edges) -> None:
        self.matrix = self.matrix + self._matrix(batch)

    def delete(self, batch: Edges) -> None:
        self.matrix = self.matrix - self._matrix(batch)
        self.matrix.eliminate_zeros()

    def rows(self) -> tuple[Array, Any]:
        return np.diff(self.matrix.indptr), self.matrix.data


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

    def rows(self) -> tuple[Array, Any]:
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

    def rows(self) -> tuple[Array, Any]:
        return np.array(self.graph.indegree()), self.graph.es["weight"]


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

    def rows(self) -> tuple[Array, Any]:
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
    "merge on the GPU": MergedOnGpu,
    "sort on the GPU": SortedOnGpu,
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
