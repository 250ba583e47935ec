"""Which edges a gather goes along, and the arrays of the graph that list them.

One emitter prints the gathers of every `along`: what differs is where the rows are.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from collections.abc import Sequence

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import declared_along
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.schedules.block import JOINED_ENTRIES, PART_ENTRIES
from featgraph.fold.syntax.vertex_numbers import NUMBER
from featgraph.program.signature import PropertyKind

__all__ = [
    "COLUMN",
    "JOINED_ENTRIES",
    "NUMBER",
    "PART_ENTRIES",
    "REVERSED",
    "SAID",
    "Rows",
    "along_of",
    "along_to_push",
    "expands_along",
    "hub_degree_of",
    "other_along",
    "phase_along",
    "rows_along",
    "rows_with",
    "traits_along",
    "windows_of",
]


#: The first word of the name of a column of a graph, as kernels take it; the second
#: one says along which rows it is by slot, or that it is by id. Its own name follows.
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
    alike = not any(_tells_twins_apart(f, analysis) for f in functions)
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
        along == "both" or not _tells_twins_apart(function, analysis)
    ):
        return "in"
    return along


def _tells_twins_apart(function: Analysed, analysis: Analysis) -> bool:
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
    asks = any(t is not None and t.kind is PropertyKind.EDGE for t in types)
    asks = asks or any(f.twin_operations for f in members)
    # Results of edges are kept by their ids, for later functions of other phases.
    sweeps = any(f.kind.writes_edges for f in members)
    own = {id(f) for f in members}
    others = (f.kind for f in analysis.functions if id(f) not in own)
    tells_passed = sweeps and any(k.writes_edges or k.intersects for k in others)
    return along, asks or tells_passed or options.checked


def other_along(
    previous: Sequence[Analysed], function: Analysed, alongs: Dict[str, str]
) -> str | None:
    """Return why a gather cannot share the pass of earlier ones over edges."""
    for earlier in previous:
        own, theirs = alongs[function.name], alongs[earlier.name]
        share = function.kind.gathers and earlier.kind.gathers
        if share and own != theirs:
            return (
                f"{function.name} gathers along {SAID[own]}, "
                f"{earlier.name} along {SAID[theirs]}"
            )
    return None


SAID = {"in": "in-edges", "out": "out-edges", "both": "in- and out-edges"}


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
