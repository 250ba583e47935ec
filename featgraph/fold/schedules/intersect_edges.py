"""Schedules of triangles of passed edges: intersect the rows of both ends.

An edge passed if its edge function returned True (``edge_state[e] == 2``). Schedules
differ in how threads find passed edges: in chunks of all edges, in words of a set, or
on a list.
"""

from __future__ import annotations

from featgraph.fold.schedules.base import Binding, GraphArray, KernelShape
from featgraph.fold.schedules.intersect_rows import Intersection, Oriented
from featgraph.fold.schedules.mapping import WARP, LaunchSizes, Mapping
from featgraph.fold.tree.nodes import Areas, Comment, Intersect, Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = [
    "WARPS_AN_EDGE",
    "ChangedWordSchedule",
    "ChunkedEdgeSchedule",
    "ListedEdgeSchedule",
    "WarpEdgeSchedule",
    "passed_edges_intersected",
]


#: Warps that share the rows of an edge on the list of passed edges (CUDA). One warp
#: takes a third of a millisecond for two rows of 5,000 neighbors.
WARPS_AN_EDGE = 8


def passed_edges_intersected(on_gpu: bool, renumbered: bool) -> Mapping:
    """Return the mapping that intersects the rows of both ends of an edge.

    Ranks have a list of passed edges, because they exchange them.
    """
    if not on_gpu:
        return Mapping(1, 1, 1, False, "chunked_edges")
    if renumbered:
        return Mapping(1, 1, WARP * WARPS_AN_EDGE, False, "listed_edges")
    return Mapping(1, 1, WARP, False, "warp_edges")


#: Skip edge ``e`` if it has not passed, if it is a self-loop, which is in no triangle,
#: or if its other direction has passed and is earlier.
_OWN_DIRECTION = """\
twin = edge_twin[e]
earlier = twin < e and edge_state[twin] == 2
if edge_state[e] != 2 or twin == e or earlier:
    continue"""


class _PassedEdges(Intersection):
    """Base: take each edge in one direction, and each triangle from one of its edges.

    Sums are added to memory at each triangle: consecutive edges need not share ends.
    """

    def arguments(self, rows: Oriented) -> tuple[str, ...]:
        """Return the names of the states of edges, and of the rows of all neighbors."""
        edges = ("edge_state", "edge_twin", "in_sources", "degree_order")
        return (*edges, "order_vertex", *rows.both.arrays, *rows.parts)

    def intersect(self, node: Intersect, binding: Binding, rows: Oriented) -> Body:
        """Return a sweep of edges: for each, the shorter row searched in the longer."""
        both, walk, intrinsics = rows.both, binding.walk, rows.intrinsics
        each = code(
            f"twin = {rows.twin('e')}\n"
            f"one = {rows.order('in_sources[e]')}\n"
            f"two = {rows.order('in_sources[twin]')}\n"
            "edge = e if one < two else twin\n"
            "WITHIN\n"
            "low, high = (one, two) if one < two else (two, one)\n"
            f"start, stop = {both.bounds('low')}\n"
            f"other, end = {both.bounds('high')}\n"
            "swaps = end - other < stop - start\n"
            "if swaps:\n"
            "    start, stop, other, end = other, end, start, stop",
            WITHIN=rows.skipped("edge"),
        )
        members = "range(start, stop)"
        if walk.lanes > 1:
            first, step = both.place("start + lane"), both.place(str(walk.lanes))
            members = f"range({first}, stop, {step})"
        each += code(
            f"for position in {members}:\n"
            f"    third = {both.end_at('position')}\n"
            f"    other = {intrinsics}.lower_bound({both.ends}, other, end, third)\n"
            "    if other == end:\n"  # further members are larger
            "        break\n"
            f"    if {both.end_at('other')} != third:\n"
            "        continue\n"
            f"    to_low = {both.edge('position')}\n"
            f"    to_high = {both.edge('other')}\n"
            "    if swaps:\n"
            "        to_low, to_high = to_high, to_low\n"
            "    FOUND",
            FOUND=_found(rows) + node.body,
        )
        return [Sweep("e", "edge_state", "takes", each)]


def _found(rows: Oriented) -> Body:
    """Return the statements in front of the function, for a triangle that was found.

    They `continue` unless ``edge`` is its first passed edge, and sort its corners by
    degree order.
    """
    out: Body = []
    for name in ("to_low", "to_high"):
        out += rows.skipped(name)
    out.append(Comment("The first of a triangle's edges that passed takes it."))
    for name in ("to_low", "to_high"):
        twin = f"edge_state[{rows.twin(name)}]"
        out += code(
            f"if {name} < edge and (edge_state[{name}] == 2 or {twin} == 2):\n"
            "    continue"
        )
    out += code(
        f"u, v, w, e_uv, e_uw, e_vw = {rows.intrinsics}.sort_triangle(low, high, "
        "third, edge, to_low, to_high)"
    )
    out += code("\n".join(f"{x} = {rows.vertex(x)}" for x in ("u", "v", "w")))
    return out + rows.elsewhere()


class ChunkedEdgeSchedule(_PassedEdges):
    """One thread takes the edges of a chunk (CPU)."""

    name = "chunked_edges"
    targets = ("cpu",)
    does = "Sweep the edges of a chunk that passed, and their triangles."
    lists = (GraphArray("chunks", "edge_chunks"),)

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return "one thread, searching the shorter of two rows in the longer"

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over edges, around the body of `node`."""
        each = code(_OWN_DIRECTION) + node.body
        return [Areas(), *code("for e in range(first, last):\n    EACH", EACH=each)]


class WarpEdgeSchedule(_PassedEdges):
    """A warp takes one passed edge at a time, among 32 that its lanes test (CUDA)."""

    name = "warp_edges"
    does = "Sweep the edges that passed, a warp each, and their triangles."

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return f"{WARP} lanes, searching the shorter of two rows in the longer"

    def places(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of threads that test edges."""
        return sizes.edges

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over edges, around the body of `node`."""
        number, place = shape.number_type, shape.place_type
        next_ = code(
            f"e = {number}(base + warp.trailing_zeros(pending))\n"
            "pending = uint32(pending & (pending - uint32(1)))"
        )
        loop = code("while pending != 0:\n    BODY", BODY=next_ + node.body)
        each = code(
            f"e = {number}(min(base + lane, count - 1))\n"
            "takes = base + lane < count and edge_state[e] == 2\n"
            "if takes:\n"
            f"    twin = {number}(edge_twin[e])\n"
            "    earlier = twin < e and edge_state[twin] == 2\n"
            "    takes = twin != e and not earlier\n"
            f"pending = warp.group_bits(takes, {WARP})"
        )
        each += agreed(noted(loop, "the whole warp"), "warp")
        front = code(
            "lane = int32(cuda.laneid)\n"
            f"count = {place}(edge_state.shape[0])\n"
            f"first = {place}(cuda.grid(1) - lane)\n"
            f"stride = {place}(cuda.gridsize(1))"
        )
        turns = code("for base in range(first, count, stride):\n    BODY", BODY=each)
        return [*front, Areas(), *agreed(turns, "warp")]


class ChangedWordSchedule(ChunkedEdgeSchedule):
    """One thread takes the edges of a chunk of the set of changed edges (CPU)."""

    name = "changed_words"
    lists = (GraphArray("chunks", "edge_word_chunks"),)

    def arguments(self, rows: Oriented) -> tuple[str, ...]:
        """Return the names that the base has, and that of the set of changed edges."""
        return (*super().arguments(rows), "changed_edges")

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over edges, around the body of `node`."""
        each = code(
            "e = word * 32 + cpu.trailing_zeros(pending)\n"
            f"pending = uint32(pending & (pending - uint32(1)))\n{_OWN_DIRECTION}"
        )
        words = code(
            "for word in range(first, last):\n"
            "    pending = changed_edges[word]\n"
            "    while pending != 0:\n"
            "        EACH",
            EACH=each + node.body,
        )
        return [Areas(), *words]


class ListedEdgeSchedule(WarpEdgeSchedule):
    """Several warps take one edge of a list, each a part of the shorter row (CUDA)."""

    name = "listed_edges"
    does = "Take the edges on the list, some warps each, and their triangles."

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of blocks that share the edges of the list."""
        return sizes.bounded(sizes.shared_out(sizes.edges), mapping.lanes_per_vertex)

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        lanes = mapping.lanes_per_vertex
        return f"{lanes} lanes, searching the shorter of two rows in the longer"

    def arguments(self, rows: Oriented) -> tuple[str, ...]:
        """Return the names that the base has, and those of the list and the set."""
        marked = () if rows.in_parts else ("changed_edges",)
        listed = ("passed_edges", "passed_count")
        return (*super().arguments(rows), *listed, *marked)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over edges, around the body of `node`."""
        number, warps = shape.number_type, binding.walk.lanes // WARP
        shift = warps.bit_length() - 1
        leave = noted(code("continue"), "the whole warp")
        each = code(
            f"e = {number}(passed_edges[uint32(turn >> {shift})])\n"
            f"lane = int32(cuda.laneid + {WARP} * (turn & {warps - 1}))\n"
            f"twin = {number}(edge_twin[e])"
        )
        earlier = "twin == e or (twin < e and edge_state[twin] == 2)"
        each += agreed(when([earlier], leave), "warp") + node.body
        front = code(
            "first, stride = int64(cuda.grid(1) >> 5), int64(cuda.gridsize(1) >> 5)\n"
            f"count = int64(passed_count[0]) * int64({warps})"
        )
        turns = code("for turn in range(first, count, stride):\n    BODY", BODY=each)
        return [*front, Areas(), *agreed(noted(turns, "the whole warp"), "warp")]
