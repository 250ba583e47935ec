"""The graph as plans see it: traits, rows of edges, and the arrays that list them.

A plan depends on `GraphTraits`, and on no other property of a graph: foldmaps keep
kernels by them. `graph_traits` and `traits_of_degrees` find them.

`rows_along` returns the rows that a gather goes along. One emitter prints the gathers
of every `along`: only the place of the rows differs.
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
    "COLUMN", "EDGES_ALONG", "GIANT_SHARE", "HUB_DEGREE", "HUB_PART", "JOINED_ENTRIES",
    "JOINED_PART", "LONG_ROW", "MANY_ROWS", "NUMBER", "PART_ENTRIES", "REVERSED",
    "SUM_BLOCK", "GraphTraits", "Rows", "along_of", "along_to_push", "backward_edge",
    "expands_along", "graph_sizes", "graph_traits", "hub_degree_of",
    "needs_wide_positions", "other_along", "phase_along", "rows_along", "rows_with",
    "set_traits", "traits_along", "traits_of_degrees", "windows_of",
]  # fmt: skip

#: A vertex of at least this degree is left to a block of its own on the GPU.
HUB_DEGREE = 2048
#: Edges that a block takes of such a vertex where blocks need not meet: a block of 512
#: threads takes 1.3 us for as many edges, whatever it does for them (NVIDIA H100).
HUB_PART = 4096
#: The same where the last of the blocks goes on with what all have come to. Rows of
#: half as many more are whole.
JOINED_PART = 8192
#: A block that takes a row of more than one in so many of all edges ends behind all
#: others: as many are on a GPU at a time, or somewhat less (264, NVIDIA H100).
GIANT_SHARE = 300
#: A row of so many vertices of higher degree is left to a block of its own: its bitmap
#: then saves six steps of a search or more.
LONG_ROW = 64
#: Contributions that are summed one after the other. A row with more is cut into blocks
#: of so many, by place in the row, whose sums are added up pairwise.
SUM_BLOCK = 512
#: Edges a vertex from which on blocks of so many vertices exceed the smallest chunk,
#: `SMALLEST_CHUNK` of `runtime.devices.cpu_sweeps`.
MANY_EDGES = 38
#: So many rows like the longest hide how long one takes.
MANY_ROWS = 1024
#: A row of so many edges takes no time that others would have to hide.
SHORT_ROW = 64
#: No block works on more edges at a time: it has at most that many threads.
_MOST_SLOTS = 1024


@dataclass(frozen=True)
class GraphTraits:
    """Traits of a graph that planning reads.

    Attributes
    ----------
    typical_degree : int
        The power of two below the in-degree that three quarters of the edges' targets
        do not exceed, at most 64, so that similar graphs share kernels. A warp waits
        for the vertex with most edges, which a mean over vertices does not bound.
    has_hubs : bool
        Whether some vertex has so many edges that one warp would hold up the others.
    wide_offsets : bool
        Whether edge offsets are int64.
    undirected : bool
        Whether edges have twins.
    wide_both : bool
        Whether int64 offsets are needed where in- and out-edges stand together.
    long_rows : bool
        Whether some row has more edges than are summed one after the other.
    layout : str
        How edges are stored, a value of `GraphView.layout`: see `fold.tree.layout`.
    rows_of_longest : int
        How many rows like the longest that is no hub's all edges would make, to the
        nearest power of two, at most 1024; that, too, where all rows are short; 0 for
        no graph.
    renumbered : bool
        Whether vertex ids in kernels differ from the user's: those of a shard.
    has_giant : bool
        Whether the row of some hub is so long that all others would wait for a block
        that takes it alone.
    two_sides : bool
        Whether each edge leads from the first of two sides to the second.
    is_dense : bool
        Whether vertices have so many edges that a block of `SUM_BLOCK` vertices is more
        than the least that a thread of a CPU takes at a time.
    sizes : EdgeSizes or None
        What predictions of exclusive functions go by; None for all others, whose plans
        are for any size.
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
        ...

    @property
    def edge_count(self) -> int:
        """E, directed edges."""
        ...

    @property
    def directed(self) -> bool:
        """False where every edge has a twin."""
        ...

    @property
    def sides(self) -> tuple[int, ...] | None:
        """Number of vertices of each side; None without sides."""
        ...


def needs_wide_positions(edge_count: int) -> bool:
    """Whether positions of edges need 64 bits in a kernel.

    A position may step past the end of its row by the edges that a block works on at a
    time, so 32 bits do not quite reach as far as they do for the offsets themselves.
    """
    return edge_count >= 2**31 - _MOST_SLOTS


_DEGREES = np.arange(SHORT)
#: By the shape of a graph.
_traits: weakref.WeakKeyDictionary[Stamp, GraphTraits] = weakref.WeakKeyDictionary()
_sizes: weakref.WeakKeyDictionary[Stamp, EdgeSizes] = weakref.WeakKeyDictionary()


def set_traits(graph: Graph, traits: GraphTraits) -> None:
    """Plan for a graph as if it had these traits, such as those of a larger graph."""
    _traits[graph.stamps.shape] = traits


def graph_traits(graph: Graph, target: str = "cpu") -> GraphTraits:
    """Return the traits of a graph, found where a target builds its rows."""
    shape, layout = graph.stamps.shape, graph.stamps.layout
    known = _traits.get(shape)
    if known is not None:
        return known
    top = _longest(graph, target)
    below = _longest(graph, target, HUB_DEGREE)
    short = short_counts(graph, "in", target)
    made = traits_of_degrees(graph, top, below, short)
    made = replace(made, two_sides=backward_edge(graph) == -1)
    if layout is not None:
        made = replace(made, layout=layout.name)
    _traits[shape] = made
    return made


def graph_sizes(graph: Graph, target: str = "cpu") -> EdgeSizes:
    """Return the sizes of a graph, whose degrees are found as its traits are."""
    shape = graph.stamps.shape
    if shape not in _sizes:
        into = most_edges(graph, "in", target)
        out = most_edges(graph, "out", target) if graph.directed else into
        sides = graph.sides or (graph.vertex_count,) * 2
        _sizes[shape] = EdgeSizes(graph.edge_count, (sides[0], sides[-1]), (out, into))
    return _sizes[shape]


def backward_edge(graph: Graph) -> int | None:
    """Return the first given edge that does not lead from side to side; -1 if all do.

    None for a graph without two sides, and for one whose edges have twins.
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
        The length of the longest row, and of the longest that is no hub's.
    short : ndarray of int64
        How many vertices have 0, 1, ... `SHORT` - 1 in-edges.
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


def _floor(number: int, most: int) -> int:
    """Return the power of two below a number, from 1 to `most`."""
    return min(most, 1 << max(number.bit_length() - 1, 0))


def _longest(graph: Graph, target: str, below: int | None = None) -> int:
    """Return the length of the longest row, of all or of those that are shorter."""
    sides = ("in", "out") if graph.directed else ("in",)
    return max(most_edges(graph, side, target, below) for side in sides)


def _rows_of_longest(edge_count: int, longest: int) -> int:
    if longest <= SHORT_ROW:
        return MANY_ROWS
    return min(MANY_ROWS, 1 << round(math.log2(edge_count / longest)))


def _typical_degree(edge_count: int, short: NDArray[np.int64]) -> int:
    """Return the in-degree at three quarters of the edges, down to a power of two."""
    ends = (short * _DEGREES).cumsum()
    return _floor(int(ends.searchsorted(0.75 * edge_count)), SHORT)


#: The first word of the name of a column of a graph, as kernels take it; the second
#: names the rows along which it is by slot, or its ids. Its own name follows.
COLUMN = "column"


@dataclass(frozen=True)
class Rows:
    """Arrays that list the edges of every vertex, by their names in generated code.

    Attributes
    ----------
    offsets : str
        Where the row of each vertex begins.
    ends : str
        The vertex at the other end of each slot's edge.
    edges : str
        The edge id of each slot; "" where slots are edge ids, or none is used.
    hubs, hub_parts, joined_parts, chunks, windows : str
        The vertices with long rows; these rows in parts, which blocks take that need
        not meet; the same where the last block of a row goes on, and short ones are
        whole; the cut of the vertices into equal work for threads, and into windows
        of about as many edges for warps.
    finds_edges : bool
        Whether ids of edges are used.
    by_slot : bool
        Whether the slots of edges in these rows will do as their numbers, wherever the
        layout has them.
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
    """Return the names of arrays that begin with that of a side."""
    return Rows(
        f"{side}_offsets", ends, edges, f"{side}_hubs", f"{side}_hub_parts",
        f"{side}_joined_parts", f"{side}_chunks", f"{side}_windows",
    )  # fmt: skip


#: `along` -> the rows of the vertices that gather.
_ROWS = {
    "in": _rows("in", "in_sources", ""),
    "out": _rows("out", "out_targets", "out_edges"),
    "both": _rows("incident", "incident_neighbors", "incident_edges"),
}
#: `along` -> that of the neighbors: edges to the vertices that gather from them.
REVERSED = {"in": "out", "out": "in", "both": "both"}


def rows_along(along: str, *, finds_edges: bool = True) -> Rows:
    """Return the rows that a sweep along some edges goes through."""
    rows = _ROWS[along]
    return rows if finds_edges else replace(rows, edges="", finds_edges=False)


def along_to_push(
    along: str, functions: Sequence[Analysed], analysis: Analysis, traits: GraphTraits
) -> str:
    """Return which edges lead to the vertices that gather from a neighbor `along`.

    Of an undirected graph these are also the in-edges, whose ids are slots, unless
    the direction of an edge is asked for. A part of a graph lists edges one way only.
    """
    alike = not any(_reads_direction(f, analysis) for f in functions)
    if traits.undirected and along == "in" and alike and not traits.renumbered:
        return "in"
    return REVERSED[along]


def rows_with(name: str) -> Rows | None:
    """Return the rows that an array of the graph, by its name, belongs to."""
    name = name.split(" ")[0]
    for rows in _ROWS.values():
        lists = rows.hubs, rows.hub_parts, rows.joined_parts, rows.chunks
        if name in (*rows.arguments, *lists):
            return rows
    return None


def hub_degree_of(name: str) -> int:
    """Return from which degree on such an array lists vertices; 0 where all hubs."""
    return int(name.partition(" ")[2] or 0)


def windows_of(name: str) -> tuple[Rows, int, int] | None:
    """Return the rows, and most vertices and edges, of windows by their name."""
    first, *limits = name.split(" ")
    for rows in _ROWS.values():
        if first == rows.windows:
            vertices, edges = map(int, limits)
            return rows, vertices, edges
    return None


def along_of(function: Analysed, analysis: Analysis, traits: GraphTraits) -> str:
    """Return which edges a gather goes along; "in" for other functions.

    The in-edges of a vertex of an undirected graph lead to the same neighbors, in the
    same order, as its out-edges, and there is one for each given edge at the vertex.
    So along both is along them; along the out-edges differs only for functions that use
    the direction of an edge.
    """
    along = declared_along(function)
    if traits.undirected and (
        along == "both" or not _reads_direction(function, analysis)
    ):
        return "in"
    return along


def _reads_direction(function: Analysed, analysis: Analysis) -> bool:
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
    """Return which edges the gathers of a phase go along, and whether it needs ids.

    Edges are opaque (S10), so their uses are known. Slots of in-edges are
    their ids; along others, an array of them is left out where there is none.
    """
    gathers = [f for f in members if f.kind.gathers]
    along = alongs[gathers[0].name] if gathers else "in"
    types = [analysis.signature.get(a.name) for f in members for a in f.accesses]
    needs_ids = any(t is not None and t.kind is PropertyKind.EDGE for t in types)
    needs_ids = needs_ids or any(f.twin_operations for f in members)
    # Results of edges are kept by their ids, for later functions of other phases.
    sweeps = any(f.kind.writes_edges for f in members)
    own = {id(f) for f in members}
    others = (f.kind for f in analysis.functions if id(f) not in own)
    keeps_results = sweeps and any(k.writes_edges or k.intersects for k in others)
    return along, needs_ids or keeps_results or options.checked


def other_along(
    previous: Sequence[Analysed], function: Analysed, alongs: Dict[str, str]
) -> str | None:
    """Return why a gather cannot share the pass of earlier ones over edges."""
    for earlier in previous:
        own, theirs = alongs[function.name], alongs[earlier.name]
        share = function.kind.gathers and earlier.kind.gathers
        if share and own != theirs:
            return (
                f"{function.name} gathers along {EDGES_ALONG[own]}, "
                f"{earlier.name} along {EDGES_ALONG[theirs]}"
            )
    return None


EDGES_ALONG = {"in": "in-edges", "out": "out-edges", "both": "in- and out-edges"}


def expands_along(
    functions: Sequence[Analysed], alongs: Dict[str, str]
) -> tuple[str, ...]:
    """Return along which edges those gather that no edge function precedes (S4)."""
    found: dict[str, None] = {}
    for function in functions:
        if function.kind.writes_edges:
            break
        if function.kind.gathers:
            found[alongs[function.name]] = None
    return ("both",) if "both" in found else tuple(found)


def traits_along(along: str, traits: GraphTraits) -> GraphTraits:
    """Return the traits of a graph whose rows are those along some edges."""
    if along != "both":
        return traits
    return replace(traits, typical_degree=min(64, 2 * traits.typical_degree))
