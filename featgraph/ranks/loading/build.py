"""Parts built from edges that were given to each rank in chunks, or of a whole graph.

`build` sends edges in chunks to the owners of their ends. `part_of_whole` selects a
rank's edges of a whole graph, which all ranks have, and sends none. `edges_of` checks
given edges, on GPUs if all ranks have them there, or by `target`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import require_flag
from featgraph.base.dataclass import replace
from featgraph.base.errors import GraphInputError
from featgraph.cuda.values import DeviceValues, is_on_gpu, offset_dtype
from featgraph.graph import Graph
from featgraph.graph.building.check import checked_count, checked_sides
from featgraph.graph.building.edges import (
    EdgeList,
    edges_on_gpu,
    edges_on_host,
    ends_on_gpu,
)
from featgraph.graph.partition.partition import Partition
from featgraph.graph.views.structure import is_given_on_gpu
from featgraph.ranks.engines.failures import on_all, require_same
from featgraph.ranks.engines.messages import gather_texts, reduce_number
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.graph import DistributedGraph, Whole
from featgraph.ranks.loading.chunks import (
    ROUND_EDGES,
    Chunk,
    Division,
    EdgeChunks,
    count_sources,
    exchange_edges,
)
from featgraph.ranks.loading.cutting import (
    Counted,
    Cut,
    Kind,
    cut_evenly,
    kind_of,
    on_all_ranks,
    target_of,
)
from featgraph.ranks.loading.parts import Found, localized, made_graph

__all__ = [
    "ABOUT",
    "agree",
    "build",
    "edges_of",
    "entries_of",
    "number_rows",
    "part_of_whole",
]

Array = npt.NDArray[Any]
#: A name of these exchanges, for errors.
ABOUT = "edges of a graph"


def build(
    engine: Engine, given: EdgeChunks, along: str, ranks: object = None
) -> DistributedGraph:
    """Build a distributed graph; all ranks call it.

    Parameters
    ----------
    engine : Engine
    given : EdgeChunks
        The edges given to this rank, with row numbers; they are released.
    along : {"both", "in"}
        Whether a rank gets all edges at its vertices, or those into them.
    ranks : optional
        The number of ranks that get vertices: see `working_ranks`.

    Notes
    -----
    Memory of a rank: its given edges, then those at its own vertices, and messages of
    `ROUND_EDGES` edges; a count for each word of 32 vertices, and two bits for each
    vertex, to find ghosts. A graph with sides needs a count for each vertex during the
    cut, and two numbers for each vertex.
    """
    kind = kind_of(engine, given, along)
    counted = Counted.of_all(engine, count_edges(given, kind))
    cut = cut_evenly(engine, kind, counted, ranks)
    division = Division.of(cut.partition, cut.partition.places)
    out = None if kind.both_ends else count_sources(engine, given, division)
    whole = counted.whole(kind)
    edges = given, division, kind.given_count, kind.both_ends
    arrived = exchange_edges(engine, *edges)
    found = part_of_edges(arrived, whole, (division, engine.rank), along, out)
    found = replace(found, starts=cut.starts(engine.rank))
    return made_graph(engine, whole, cut.partition, along, found, cut.is_idle)


def number_rows(engine: Engine, given: EdgeChunks) -> None:
    """Set the rows of this rank's edges, which follow those of lower ranks."""
    sizes = engine.all_gather(np.array([given.size], np.int64), about="given edges")
    row = int(np.concatenate(sizes)[: engine.rank].sum())
    for i, chunk in enumerate(given.chunks):
        given.chunks[i] = Chunk(chunk.sources, chunk.targets, chunk.weights, row)
        row += chunk.size


def count_edges(given: EdgeChunks, kind: Kind) -> Counted:
    """Count the in-edges given to this rank, and add up their digest."""
    from featgraph.graph.building import digests  # loads Numba
    from featgraph.graph.partition import kernels

    into = np.zeros(kind.counters, np.int64)
    sums = np.zeros(4, np.uint64)
    for chunk in given.parts(ROUND_EDGES):
        ends = chunk.sources, chunk.targets
        kernels.add_into(*ends, kind.directed, kind.shift, into)
        digests.add_ends(sums[:2], chunk.rows, *ends)
        if chunk.weights is not None:
            digests.add_values(sums[2:], chunk.rows, chunk.weights)
    return Counted(into, sums)


def part_of_edges(
    arrived: Chunk,
    whole: Whole,
    at: tuple[Division, int],
    along: str,
    out: Array | None,
) -> Found:
    """Return the part of a rank, built from the received edges.

    `out` are the out-degrees of own vertices. None: the part has all out-edges.
    """
    own = at[0].own(at[1])
    if along == "in":
        arrived = _by_target(arrived, *own, whole)
    ends = arrived.sources, arrived.targets
    ghosts = localized(ends, *at)
    count = own[1] - own[0]
    is_directed = whole.directed or along == "in"
    local = Graph(EdgeList(*ends, arrived.weights, count + ghosts.size, is_directed))
    of_own = np.asarray(local.in_degree[:count])
    if out is None:
        out = np.asarray(local.out_degree[:count])
    rows = _given_rows(whole, local, arrived.all_rows)
    return Found(local, ghosts, rows, (of_own, out))


def _by_target(arrived: Chunk, first: int, last: int, whole: Whole) -> Chunk:
    """Return the edges into own vertices by target, with twins as edges."""
    u, v, rows = arrived.sources, arrived.targets, arrived.all_rows
    into = np.flatnonzero((v >= first) & (v < last))
    twins = np.empty(0, np.int64)
    if not whole.directed:
        twins = np.flatnonzero((u >= first) & (u < last) & (u != v))
    which = np.concatenate((into, twins))
    targets = np.concatenate((v[into], u[twins]))
    # Within a row, edges and twins are in the order in which they were given.
    order = np.lexsort((which, targets))
    which = which[order]
    weights = arrived.weights
    given = np.asarray(whole.given_count, rows.dtype)
    return Chunk(
        np.concatenate((u[into], v[twins]))[order],
        targets[order],
        None if weights is None else weights[which],
        np.concatenate((rows[into], rows[twins] + given))[order],
    )


def _given_rows(whole: Whole, local: Graph, rows: Array) -> Array:
    """Return the row in given order of each edge of the part, by its slot."""
    slots = local.given_index
    found: Array
    if local.directed:
        found = rows[slots]
        return found
    is_twin = slots >= rows.size
    found = rows[slots - is_twin * slots.dtype.type(rows.size)]
    found += is_twin * found.dtype.type(whole.given_count)
    return found


def part_of_whole(
    engine: Engine, graph: Graph, partition: Partition, along: str, is_idle: bool
) -> DistributedGraph:
    """Return a distributed graph from a whole graph on each rank; all ranks call it.

    Parameters
    ----------
    engine : Engine
    graph : Graph
        The whole graph, the same on all ranks.
    partition : Partition
    along : {"both", "in"}
    is_idle : bool
        Whether ranks without vertices stay without any.
    """
    digests, names = (graph.digest, graph.weights_digest), graph._edges.names
    whole, begins = Whole.of(graph._edges, digests, names), None
    if partition.order is not None:  # else edge ids ascend by rank
        into = np.asarray(graph.in_degree, np.int64)
        begins = np.cumsum(into) - into
    cut = Cut(partition, is_idle, begins)
    if is_given_on_gpu(graph):
        from featgraph.ranks.loading.on_gpu import cut_on_gpu  # imports the dialect

        return cut_on_gpu(engine, graph, cut, whole, along)
    at = Division.of(partition, partition.places), engine.rank
    arrived = _at_own(graph, *at, along == "both" or not graph.directed)
    out = np.asarray(graph.out_degree)[_own(partition, engine.rank)]
    found = part_of_edges(arrived, whole, at, along, out)
    found = replace(found, starts=cut.starts(engine.rank))
    return made_graph(engine, whole, partition, along, found, is_idle)


def _own(partition: Partition, rank: int) -> Any:
    """Return an index of the vertices of a rank: a slice or an array."""
    own = slice(*map(int, partition.cuts[rank : rank + 2]))
    return own if partition.order is None else partition.order[own]


def _at_own(graph: Graph, division: Division, rank: int, both_ends: bool) -> Chunk:
    """Return the edges at own vertices, in given order, by numbers of a division."""
    from featgraph.graph.partition import kernels  # loads Numba

    weights, dtype = graph.weights, graph._edges.weights_dtype
    chunk = Chunk(graph.sources, graph.targets, weights)
    given = EdgeChunks([chunk], graph.vertex_count, graph.directed, dtype)
    found: list[Chunk] = []
    own = division.own(rank)
    places = np.empty(ROUND_EDGES, np.int64)
    for some in given.parts(ROUND_EDGES):
        numbered = division.renumbered(some)
        ends = numbered.sources, numbered.targets
        count = kernels.list_at(*ends, *own, both_ends, places)
        found.append(numbered.at(places[:count]))
    rows_dtype = offset_dtype(2 * graph.given_edge_count)
    return Chunk(
        _joined([part.sources for part in found], np.int32),
        _joined([part.targets for part in found], np.int32),
        None if dtype is None else _joined([part.weights for part in found], dtype),
        _joined([part.rows for part in found], rows_dtype),
    )


def _joined(parts: list[Any], dtype: Any) -> Array:
    """Concatenate arrays, and release each as soon as it is copied."""
    end = sum(part.size for part in parts)
    made = np.empty(end, dtype)
    while parts:
        part = parts.pop()
        made[end - part.size : end] = part
        end -= part.size
    return made


# -- edges given to each rank, checked on the host or on GPUs


def edges_of(
    engine: Engine, sources: object, targets: object, options: dict[str, Any]
) -> EdgeChunks:
    """Return the checked edges given to this rank; all ranks call it.

    Parameters
    ----------
    engine : Engine
    sources, targets : object
        Ends as the caller passed them.
    options : dict
        The other arguments of `Graph.from_edges`.
    """
    ends, weights = (sources, targets), options["weights"]
    on_gpu = all(is_on_gpu(c) for c in (*ends, weights) if c is not None)
    target = _target_of(engine, options["target"], _size(sources), on_gpu)
    count, directed, sides = on_all(engine, lambda: _checked_options(options), ABOUT)

    def given_on_gpu() -> EdgeChunks | None:
        gpu_ends = ends_on_gpu(*ends, "cuda")
        if gpu_ends is None:
            return None
        found = edges_on_gpu(gpu_ends, weights, count, directed, sides)
        if found is None:
            return None
        edges, own = found
        values: Any = own
        if isinstance(own, DeviceValues):
            values = own.array
        elif own is not None:
            from featgraph.cuda import arrays

            values = arrays.upload(own)
        chunk = Chunk(edges.sources, edges.targets, values)
        dtype = None if values is None else np.dtype(values.dtype)
        return EdgeChunks([chunk], edges.vertex_count, directed, dtype, sides, True)

    def given_on_host() -> EdgeChunks:
        u, v, own, found = edges_on_host(ends, weights, count, sides)
        # Kernels take arrays in native byte order.
        u, v = (a.astype(a.dtype.newbyteorder("="), copy=False) for a in (u, v))
        dtype = None if own is None else own.dtype
        return EdgeChunks([Chunk(u, v, own)], found, directed, dtype, sides)

    if target == "cuda":
        made = on_all(engine, given_on_gpu, ABOUT)
        if on_all_ranks(engine, made is not None):
            return made  # type: ignore[return-value]
    return on_all(engine, given_on_host, ABOUT)


def entries_of(engine: Engine, matrix: Any, target: object) -> EdgeChunks:
    """Return the edges of the entries of this rank's matrix; all ranks call it.

    Parameters
    ----------
    engine : Engine
    matrix : scipy.sparse array or matrix
        Of the same shape on all ranks.
    target : str or None
        See `Graph.from_biadjacency`.
    """
    size = int(getattr(matrix, "nnz", 0))
    where = _target_of(engine, target, size, on_gpu=False)

    def taken() -> EdgeList:
        return Graph.from_biadjacency(matrix, target=where)._edges

    edges = on_all(engine, taken, ABOUT)
    on_gpu = on_all_ranks(engine, edges.is_given_on_gpu)
    if on_gpu:
        ends = edges.on_gpu.sources, edges.on_gpu.targets
        chunk = Chunk(*ends, edges.weights_on_gpu())
    else:
        chunk = Chunk(edges.sources, edges.targets, edges.weights)
    known = edges.vertex_count, False, edges.weights_dtype, edges.sides
    return EdgeChunks([chunk], *known, is_on_gpu=on_gpu)


def _target_of(engine: Engine, target: object, size: int, on_gpu: bool) -> str:
    """Return the target on which all ranks check their edges.

    Parameters
    ----------
    target : object
        The caller's target, the same on all ranks.
    size : int
        Number of edges of this rank.
    on_gpu : bool
        Whether they are on a GPU.
    """
    total = reduce_number(engine, size, "sum", ABOUT)
    return target_of(engine, target, total, on_gpu)


def _size(values: object) -> int:
    shape = getattr(values, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) == 1 else 0
    return len(values) if hasattr(values, "__len__") else 0


def _checked_options(
    options: dict[str, Any],
) -> tuple[int | None, bool, tuple[int, ...] | None]:
    """Return the number of vertices, whether edges are directed, and the sides.

    Raises
    ------
    GraphInputError
        For options that need the whole graph.
    """
    refused = {
        "duplicates": options["duplicates"] != "keep",
        "names": bool(options["names"]),
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise GraphInputError(
                "this needs the whole graph, which no rank has",
                where=f"{name}=",
                got=repr(options[name]),
                fix=f"leave {name} out, or write the graph once, with it, as slices: "
                "featgraph convert",
            )
    directed = require_flag("directed", options["directed"])
    sides, count = options["sides"], options["vertex_count"]
    if sides is not None:
        sides = checked_sides(sides, count)
        return sum(sides), directed, sides
    return None if count is None else checked_count(count), directed, None


def agree(engine: Engine, given: EdgeChunks, count: object) -> None:
    """Agree on one kind of graph and its number of vertices; all ranks call it.

    Sets ``given.vertex_count`` and ``given.weights_dtype`` alike on all ranks. Raises
    GraphInputError if ranks differ, or there are no vertices.
    """
    dtype = given.weights_dtype
    kinds = f"directed={given.directed}, vertex_count={count}, sides={given.sides}"
    kinds += f", {'no' if dtype is None else 'with'} weights"
    fix = "give all ranks the same arguments, and all or none of them weights"
    what, about = "the kind of graph differs between ranks", "the kind of graph"
    require_same(engine, kinds, what, fix, about)
    # The dtype of weights on a rank without edges does not count.
    types = gather_texts(engine, f"{dtype}" if given.size else "", about)
    found = sorted(set(filter(None, types)))
    if len(found) > 1:
        got = ", ".join(found)
        raise GraphInputError("weights of ranks have different types", got=got, fix=fix)
    if dtype is not None and found:
        given.weights_dtype = np.dtype(found[0])
        chunks = given.chunks
        for i, chunk in enumerate(chunks if not given.size else []):
            empty = np.empty(0, given.weights_dtype)
            chunks[i] = Chunk(chunk.sources, chunk.targets, empty)
    given.vertex_count = reduce_number(engine, given.vertex_count, "max", about)
    if not given.vertex_count:
        raise GraphInputError(
            "a graph needs at least one vertex",
            got="no edges on any rank and no vertex_count",
            fix="give vertex_count: vertices without edges are allowed",
        )
