"""The graph as plans see it: traits, rows of edges, and the names of their arrays.

A plan depends on the `GraphTraits` of a graph only, so that foldmaps cache kernels by
traits and graphs with equal traits share kernels. `graph_traits` computes them.

`rows_along` returns the `Rows` that a gather walks, the names of arrays of the graph.
Gathers of every `along` are printed alike, with the names of other arrays.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping as Dict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import declared_along
from featgraph.fold.plan.options import Options
from featgraph.fold.schedules.block import JOINED_ENTRIES, PART_ENTRIES
from featgraph.fold.schedules.exclusive_costs import EdgeSizes
from featgraph.fold.syntax.names import NUMBER
from featgraph.graph import Graph
from featgraph.graph.degrees import SHORT, most_edges, short_counts
from featgraph.graph.views.view import Stamp
from featgraph.program.signature import PropertyKind

__all__ = [
    "COLUMN", "EDGES_ALONG", "HUB_DEGREE", "HUB_PART", "JOINED_ENTRIES",
    "JOINED_PART", "LONG_ROW", "MANY_ROWS", "NUMBER", "PART_ENTRIES", "REVERSED",
    "SUM_BLOCK", "GraphTraits", "Rows", "along_of", "along_to_push", "backward_edge",
    "expands_along", "graph_sizes", "graph_traits", "hub_degree_of",
    "needs_wide_positions", "other_along", "phase_along", "rows_along", "rows_with",
    "set_traits", "traits_along", "traits_of_degrees", "windows_of",
]  # fmt: skip

#: Least degree of a hub: a vertex that a whole block processes on the GPU.
HUB_DEGREE = 2048
#: Edges in a part of a hub's row, if parts are independent: a block of 512 threads
#: takes 1.3 us for as many edges, whatever functions run on them (NVIDIA H100).
HUB_PART = 4096
#: Edges in a part of a hub's row, if the last block combines the results of all parts.
#: Rows of up to one and a half times as many edges are not cut.
JOINED_PART = 8192
#: A row of more than E / `GIANT_SHARE` edges keeps its block busy after all others have
#: ended: about as many blocks run on a GPU at a time (264, NVIDIA H100).
GIANT_SHARE = 300
#: Least number of neighbors of higher degree order for which a block of its own
#: intersects the rows of a vertex: its bitmap then saves six or more steps of a search.
LONG_ROW = 64
#: Contributions that are summed one after the other. A longer row is cut into blocks of
#: as many, by place in the row, whose sums are added pairwise. Ten million times 0.1 is
#: off by 9.7e-6, 4.1e-6 and 2.4e-6 with blocks of 1,024, 512 and 256 (0025).
SUM_BLOCK = 512
#: Mean degree from which on a block of `SUM_BLOCK` vertices has more edges than the
#: smallest chunk, `SMALLEST_CHUNK` of `runtime.devices.cpu_sweeps`.
MANY_EDGES = 38
#: Number of rows as long as the longest whose sum hides the time of one such row.
MANY_ROWS = 1024
#: Most edges in a row whose time need not be hidden by others.
SHORT_ROW = 64
#: Most edges on which a block works at a time: its number of threads.
_MOST_SLOTS = 1024


@dataclass(frozen=True)
class GraphTraits:
    """Traits of a graph that planning reads.

    Attributes
    ----------
    typical_degree : int
        Third quartile, over edges, of the target's in-degree, rounded down to a power
        of two, 1 to 64; so similar graphs share kernels. A mean over vertices would be
        too low: a warp waits for the vertex with the most edges.
    has_hubs : bool
        Whether a vertex has `HUB_DEGREE` edges or more.
    wide_offsets : bool
        Whether edge offsets are int64.
    undirected : bool
        Whether edges have twins.
    wide_both : bool
        Whether offsets of rows of in- and out-edges together are int64.
    long_rows : bool
        Whether a row has more than `SUM_BLOCK` edges.
    layout : str
        Layout of edges in memory, a value of `GraphView.layout`: see
        `fold.tree.layout`.
    rows_of_longest : int
        E divided by the length of the longest row that is no hub's, to the nearest
        power of two, at most 1024. 1024 if all rows are short; 0 for no graph.
    renumbered : bool
        Whether kernels use the local numbers of a shard for vertices.
    has_giant : bool
        Whether the row of a hub is so long that all other blocks would wait for the
        block that takes it (`GIANT_SHARE`).
    two_sides : bool
        Whether each edge leads from the first of two sides to the second.
    is_dense : bool
        Whether a block of `SUM_BLOCK` vertices has more edges than the smallest chunk
        of a CPU thread (`MANY_EDGES`).
    sizes : EdgeSizes or None
        Sizes from which times of exclusive functions are predicted; None for all other
        plans, which are for any size.
    """

    typical_degree: int = 32
    has_hubs: bool = False
    wide_offsets: bool = False
    undirected: bool = False
    wide_both: bool = False
    long_rows: bool = False
    layout: str = "csr"
    rows_of_longest: int = 0
    renumbered: bool = False
    has_giant: bool = False
    two_sides: bool = False
    is_dense: bool = False
    sizes: EdgeSizes | None = None


class Sized(Protocol):
    """Interface of an object with the sizes of a graph."""

    @property
    def vertex_count(self) -> int:
        """V."""

    @property
    def edge_count(self) -> int:
        """E, directed edges."""

    @property
    def directed(self) -> bool:
        """False if every edge has a twin."""

    @property
    def sides(self) -> tuple[int, ...] | None:
        """Number of vertices of each side; None without sides."""


def needs_wide_positions(edge_count: int) -> bool:
    """Return whether positions of edges need 64 bits in a kernel.

    A lane's position may pass the end of its row by up to `_MOST_SLOTS`, the edges that
    a block works on at a time, and must not overflow there.
    """
    return edge_count >= 2**31 - _MOST_SLOTS


_DEGREES = np.arange(SHORT)
#: Stamp of the shape of a graph -> its traits, and its sizes. Keys are weak.
_traits: weakref.WeakKeyDictionary[Stamp, GraphTraits] = weakref.WeakKeyDictionary()
_sizes: weakref.WeakKeyDictionary[Stamp, EdgeSizes] = weakref.WeakKeyDictionary()


def set_traits(graph: Graph, traits: GraphTraits) -> None:
    """Set the traits of a graph, such as those of the whole graph for a shard."""
    _traits[graph.stamps.shape] = traits


def graph_traits(graph: Graph, target: str = "cpu") -> GraphTraits:
    """Return the traits of a graph, cached.

    Degrees are counted on the device of `target`, where rows are built.
    """
    shape, layout = graph.stamps.shape, graph.stamps.layout
    cached = _traits.get(shape)
    if cached is not None:
        return cached
    top = _longest(graph, target)
    below = _longest(graph, target, HUB_DEGREE)
    short = short_counts(graph, "in", target)
    traits = traits_of_degrees(graph, top, below, short)
    traits = replace(traits, two_sides=backward_edge(graph) == -1)
    if layout is not None:
        traits = replace(traits, layout=layout.name)
    _traits[shape] = traits
    return traits


def graph_sizes(graph: Graph, target: str = "cpu") -> EdgeSizes:
    """Return the sizes of a graph, cached; degrees are counted as for its traits."""
    shape = graph.stamps.shape
    if shape not in _sizes:
        into = most_edges(graph, "in", target)
        out = most_edges(graph, "out", target) if graph.directed else into
        sides = graph.sides or (graph.vertex_count,) * 2
        _sizes[shape] = EdgeSizes(graph.edge_count, (sides[0], sides[-1]), (out, into))
    return _sizes[shape]


def backward_edge(graph: Graph) -> int | None:
    """Return the first given edge that does not lead from side to side; -1 if all do.

    None if the graph has not two sides, or has twins.
    """
    sides = graph.sides
    if sides is None or len(sides) != 2 or not graph.directed:
        return None
    found = np.flatnonzero((graph.sources >= sides[0]) | (graph.targets < sides[0]))
    return int(found[0]) if found.size else -1


def traits_of_degrees(
    graph: Sized, longest: int, below_hubs: int, short: NDArray[np.int64]
) -> GraphTraits:
    """Return the traits of a graph from statistics of its degrees.

    Parameters
    ----------
    graph : Sized
        A graph, or an object with its sizes.
    longest, below_hubs : int
        Edges in the longest row, and in the longest row that is no hub's.
    short : ndarray of int64
        Number of vertices with 0, 1, ... `SHORT` - 1 in-edges.
    """
    edges = graph.edge_count
    swept = edges // 2 if graph.sides else edges  # one side at a time
    return GraphTraits(
        typical_degree=_typical_degree(edges, short),
        has_hubs=longest >= HUB_DEGREE,
        wide_offsets=needs_wide_positions(edges),
        undirected=not graph.directed,
        wide_both=graph.directed and needs_wide_positions(2 * edges),
        long_rows=longest > SUM_BLOCK,
        rows_of_longest=_rows_of_longest(edges, below_hubs),
        has_giant=longest >= HUB_DEGREE and longest * GIANT_SHARE > swept,
        is_dense=edges > MANY_EDGES * graph.vertex_count,
    )


def _longest(graph: Graph, target: str, below: int | None = None) -> int:
    """Return the length of the longest row; with `below`, of rows shorter than that."""
    sides = ("in", "out") if graph.directed else ("in",)
    return max(most_edges(graph, side, target, below) for side in sides)


def _rows_of_longest(edge_count: int, longest: int) -> int:
    if longest <= SHORT_ROW:
        return MANY_ROWS
    return min(MANY_ROWS, 1 << round(math.log2(edge_count / longest)))


def _typical_degree(edge_count: int, short: NDArray[np.int64]) -> int:
    """Return the in-degree at three quarters of the edges, down to a power of two."""
    degree = int((short * _DEGREES).cumsum().searchsorted(0.75 * edge_count))
    return min(SHORT, 1 << max(degree.bit_length() - 1, 0))


#: First word of the name of a graph's array of a column. The second word is the order
#: of its values: "id", or "in", "out" or "both" for the slots of such rows. The name of
#: the column follows.
COLUMN = "column"


@dataclass(frozen=True)
class Rows:
    """Arrays that list the edges of every vertex, by their names in generated code.

    Attributes
    ----------
    offsets : str
        Array of the first slot of each row (V + 1).
    ends : str
        Array of the vertex at the other end, by slot.
    edges : str
        Array of edge ids, by slot; "" if slots are edge ids, or if none is used.
    hubs : str
        List of hubs: vertices with long rows.
    hub_parts, joined_parts : str
        Parts of the rows of hubs, for independent blocks; and for blocks of which the
        last one combines the results, with shorter rows whole.
    chunks, windows : str
        Cuts of the vertices into equal work for threads (CPU), and into windows of
        about equally many edges for warps.
    finds_edges : bool
        Whether edge ids are used.
    by_slot : bool
        Whether functions use the slot of an edge in these rows as its id.
    """

    offsets: str
    ends: str
    edges: str
    hubs: str
    hub_parts: str
    joined_parts: str
    chunks: str
    windows: str
    finds_edges: bool = True
    by_slot: bool = False

    @property
    def arguments(self) -> list[str]:
        """Names of the arrays that a kernel over these rows takes."""
        return [name for name in (self.offsets, self.ends, self.edges) if name]


def _rows(side: str, ends: str, edges: str) -> Rows:
    """Return the names of arrays for rows whose offsets are ``<side>_offsets``."""
    return Rows(
        f"{side}_offsets", ends, edges, f"{side}_hubs", f"{side}_hub_parts",
        f"{side}_joined_parts", f"{side}_chunks", f"{side}_windows",
    )  # fmt: skip


#: `along` -> rows of the vertices that gather.
_ROWS = {
    "in": _rows("in", "in_sources", ""),
    "out": _rows("out", "out_targets", "out_edges"),
    "both": _rows("incident", "incident_neighbors", "incident_edges"),
}
#: `along` of a gather -> the same edges seen from the neighbors, for a push.
REVERSED = {"in": "out", "out": "in", "both": "both"}


def rows_along(along: str, *, finds_edges: bool = True) -> Rows:
    """Return the rows that a sweep along "in", "out" or "both" walks."""
    rows = _ROWS[along]
    return rows if finds_edges else replace(rows, edges="", finds_edges=False)


def along_to_push(
    along: str, functions: Sequence[Analysed], analysis: Analysis, traits: GraphTraits
) -> str:
    """Return the edges along which a neighbor pushes to vertices that gather `along`.

    In an undirected graph the in-edges do as well as the out-edges, and their ids are
    their slots; unless functions use the direction of an edge. A shard has the in-edges
    of its own vertices only.
    """
    alike = not any(_reads_direction(f, analysis) for f in functions)
    if traits.undirected and along == "in" and alike and not traits.renumbered:
        return "in"
    return REVERSED[along]


def rows_with(name: str) -> Rows | None:
    """Return the rows to which an array of the graph belongs, by its name, or None."""
    name = name.split(" ")[0]
    for rows in _ROWS.values():
        lists = rows.hubs, rows.hub_parts, rows.joined_parts, rows.chunks
        if name in (*rows.arguments, *lists):
            return rows
    return None


def hub_degree_of(name: str) -> int:
    """Return the least degree in a list of hubs, by its name; 0 for all hubs."""
    return int(name.partition(" ")[2] or 0)


def windows_of(name: str) -> tuple[Rows, int, int] | None:
    """Return the rows, and the most vertices and edges, of windows by their name."""
    first, *limits = name.split(" ")
    for rows in _ROWS.values():
        if first == rows.windows:
            vertices, edges = map(int, limits)
            return rows, vertices, edges
    return None


def along_of(function: Analysed, analysis: Analysis, traits: GraphTraits) -> str:
    """Return the edges that a gather walks, "in", "out" or "both"; "in" for others.

    In an undirected graph the in-edges of a vertex lead to the same neighbors, in the
    same order, as its out-edges, and there is one for each given edge at the vertex. So
    "both" means the in-edges there, and "out" does, too, unless the function uses the
    direction of an edge.
    """
    along = declared_along(function)
    if traits.undirected and (
        along == "both" or not _reads_direction(function, analysis)
    ):
        return "in"
    return along


def _reads_direction(function: Analysed, analysis: Analysis) -> bool:
    """Return whether a function distinguishes an edge from its twin."""
    read = [analysis.signature.get(a.name) for a in function.accesses]
    per_direction = any(
        type_ is not None and type_.kind is PropertyKind.EDGE and not type_.shared
        for type_ in read
    )
    return per_direction or bool(function.twin_operations)


def phase_along(
    members: Sequence[Analysed],
    analysis: Analysis,
    options: Options,
    alongs: Dict[str, str],
) -> tuple[str, bool]:
    """Return the edges that the gathers of a phase walk, and whether it needs edge ids.

    Edges are opaque (S10), so all uses of an id are visible in the access table. If
    there is none, the array of ids is not loaded; in-edges need no such array, since
    their slots are their ids.
    """
    gathers = [f for f in members if f.kind.gathers]
    along = alongs[gathers[0].name] if gathers else "in"
    types = [analysis.signature.get(a.name) for f in members for a in f.accesses]
    needs_ids = any(t is not None and t.kind is PropertyKind.EDGE for t in types)
    needs_ids = needs_ids or any(f.twin_operations for f in members)
    # Verdicts of edges are stored by edge id, for functions of other phases.
    sweeps = any(f.kind.writes_edges for f in members)
    own = {id(f) for f in members}
    others = (f.kind for f in analysis.functions if id(f) not in own)
    keeps_results = sweeps and any(k.writes_edges or k.intersects for k in others)
    return along, needs_ids or keeps_results or options.checked


def other_along(
    previous: Sequence[Analysed], function: Analysed, alongs: Dict[str, str]
) -> str | None:
    """Return why a gather cannot share a walk with earlier gathers; None if it can."""
    for earlier in previous:
        own, theirs = alongs[function.name], alongs[earlier.name]
        share = function.kind.gathers and earlier.kind.gathers
        if share and own != theirs:
            return (
                f"{function.name} gathers along {EDGES_ALONG[own]}, "
                f"{earlier.name} along {EDGES_ALONG[theirs]}"
            )
    return None


#: `along` -> edges in words.
EDGES_ALONG = {"in": "in-edges", "out": "out-edges", "both": "in- and out-edges"}


def expands_along(
    functions: Sequence[Analysed], alongs: Dict[str, str]
) -> tuple[str, ...]:
    """Return the edges of gathers before any edge function: see `FoldPlan` (S4)."""
    found: dict[str, None] = {}
    for function in functions:
        if function.kind.writes_edges:
            break
        if function.kind.gathers:
            found[alongs[function.name]] = None
    return ("both",) if "both" in found else tuple(found)


def traits_along(along: str, traits: GraphTraits) -> GraphTraits:
    """Return the traits for rows along some edges; "both" doubles degrees."""
    if along != "both":
        return traits
    return replace(traits, typical_degree=min(64, 2 * traits.typical_degree))
