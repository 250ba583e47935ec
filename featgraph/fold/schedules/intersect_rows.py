"""Schedules of all triangles: intersect rows of neighbors (0012).

They use oriented rows of an undirected graph (`Oriented`), in which edges lead to the
end of higher degree. A vertex is named by its degree order there, its position in the
order of degrees. Rows are sorted by it, so that they can be searched and merged; the
rows of an `AdjacencyLayout` are in any order.

On CUDA, lanes share the search of one row in another (`SearchSchedule`), and a block
keeps a bitmap of a long row in shared memory (`BitmapSchedule`). On the CPU, a thread
marks the members of a row in an array (`MarkSchedule`), or merges two sorted rows
(`MergeSchedule`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from featgraph.base.dataclass import dataclass
from featgraph.fold.schedules.base import (
    Binding,
    BlockScope,
    FeatureAxis,
    GraphArray,
    KernelShape,
    Schedule,
    Scope,
)
from featgraph.fold.schedules.mapping import INTERSECTIONS, WARP, Mapping
from featgraph.fold.tree.layout import Csr, Walk
from featgraph.fold.tree.nodes import (
    Areas,
    Comment,
    FromPlace,
    Intersect,
    Meet,
    Places,
    Sweep,
    Waits,
)
from featgraph.fold.tree.statements import Body, agreed, code, expression, when

__all__ = [
    "BitmapSchedule", "Intersection", "MarkSchedule", "MergeSchedule", "Oriented",
    "SearchSchedule", "SortedRows", "rows_intersected",
]  # fmt: skip


@dataclass(frozen=True)
class SortedRows(Csr):
    """CSR rows in ascending degree order; a place is an index into their arrays."""

    def start(self, vertex: str) -> str:
        """Return the text of the place at which the row of a vertex begins."""
        return f"{self.offsets}[{vertex}]"

    def stop(self, vertex: str) -> str:
        """Return the text of the place behind the row of a vertex."""
        return f"{self.offsets}[{vertex} + 1]"

    def end_at(self, place: str) -> str:
        """Return the text of the degree order of the neighbor at a place."""
        return f"{self.ends}[{self._number(place)}]"

    def edge(self, place: str) -> str:
        """Return the text of the id of the edge at a place."""
        return self.edge_at(place)[2]

    def upper_place(self, place: str) -> str:
        """Return, for a place in `Oriented.lower`, that of the edge in `upper`."""
        return f"{self.numbers}[{self._number(place)}]"


@dataclass(frozen=True)
class Oriented:
    """Arguments of kernels that find triangles: the rows of an oriented graph.

    Attributes
    ----------
    upper, lower, both : SortedRows
        Neighbors of each vertex: those of higher degree order; those of lower degree
        order, with the places of their edges in `upper`; all.
    intrinsics : str
        Module of atomics, bit operations and shuffles.
    number_type : str
        Type of edge ids; "" for plain Python integers.
    within : str
        Test that triangles may have edge ``{0}``; "" if they may have all edges.
    reads_twins : bool
        Whether `within` tests both directions of an edge.
    passed : str
        Test that edge ``{0}`` passed, in either direction. Only triangles with such an
        edge run then; "" if all triangles run.
    in_parts : bool
        Whether a rank has the rows of a part of a graph only: it finds the triangles
        whose first and second corners are in the sets of `parts`.
    """

    upper: SortedRows
    lower: SortedRows
    both: SortedRows
    intrinsics: str
    number_type: str = ""
    within: str = ""
    reads_twins: bool = False
    passed: str = ""
    in_parts: bool = False

    @property
    def filtered_by(self) -> tuple[str, ...]:
        """Names of the arrays that `within` and `passed` read, beside the property."""
        if self.passed:
            return ("edge_state", "edge_twin")
        return ("edge_twin",) if self.reads_twins else ()

    def vertex(self, order: str) -> str:
        """Return the text of the vertex with a degree order."""
        return f"order_vertex[{order}]"

    def order(self, vertex: str) -> str:
        """Return the text of the degree order of a vertex."""
        return f"degree_order[{vertex}]"

    def twin(self, edge: str) -> str:
        """Return the text of the id of an edge's twin, its other direction."""
        twin = f"edge_twin[{edge}]"
        return f"{self.number_type}({twin})" if self.number_type else twin

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the sets of first corners, and of second corners."""
        return ("triangle_begins", "triangle_middles") if self.in_parts else ()

    def elsewhere(self) -> Body:
        """Return a `continue` for triangles that another rank or batch finds."""
        if not self.in_parts:
            return []
        begins, middles = self.parts
        test = f"{self.intrinsics}.test_bit"
        own = f"{test}({begins}, u) and {test}({middles}, v)"
        return when([f"not ({own})"], code("continue"))

    def is_active(self, vertex: str) -> str:
        """Return the test that a vertex is active."""
        return f"{self.intrinsics}.test_bit(active, {vertex})"

    def is_within(self, edge: str) -> str:
        """Return the test that triangles may have an edge; "" if they may have all."""
        return self.within.format(edge)

    def skipped(self, edge: str) -> Body:
        """Return a `continue` for an edge that triangles may not have."""
        if not self.within:
            return []
        return when([f"not ({self.is_within(edge)})"], code("continue"))

    def found(self, other: str, mine: str, body: Body, is_within: bool = False) -> Body:
        """Return `body` for a common neighbor of u and v, if their triangle runs.

        Parameters
        ----------
        other, mine : str
            Places of the neighbor in the row of u, and in that of v.
        is_within : bool
            Whether the edge from v has passed the test `within` already.
        """
        out = code(
            f"e_uw = {self.upper.edge(other)}\n"
            f"e_vw = {self.upper.edge(mine)}\n"
            f"w = {self.vertex('high')}"
        )
        tests = [
            self.is_within("e_uw"),
            *([] if is_within else [self.is_within("e_vw")]),
        ]
        runs = expression(f"both_active or {self.is_active('w')}")
        if self.passed:
            passed = (self.passed.format(edge) for edge in ("e_uv", "e_uw", "e_vw"))
            runs = expression(" or ".join(passed))
        return out + when([*tests, runs], body)

    def some_active(self, vertex: str) -> Body:
        """Return the test that a vertex, or a neighbor of higher order, is active."""
        upper = self.upper
        active = self.is_active(self.vertex(upper.end_at("position")))
        return code(
            f"is_active = all_active or {self.is_active(vertex)}\n"
            "some_active = is_active\n"
            "position = start\n"
            "while not some_active and position < stop:\n"
            f"    some_active = {active}\n"
            f"    position = {upper.place('position + 1')}"
        )


class Intersection(Schedule):
    """Base of schedules that enumerate triangles; features play no part.

    Attributes
    ----------
    does : str
        Docstring of its kernels.
    """

    is_selectable = False
    runs = "intersects"
    shares_features = None
    does: ClassVar[str]

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding: lanes are independent."""
        alone = dict.fromkeys(("edge", "vertex"), Scope())
        walk = Walk("range", lanes=mapping.lanes_per_vertex, own="lane")
        own = "{} < hub_degree" if mapping.hubs else ""
        return Binding(False, FeatureAxis(1), walk, alone, own=own)

    @abstractmethod
    def arguments(self, rows: Oriented) -> tuple[str, ...]:
        """Return the arguments of a kernel beside the data and its bounds."""

    @abstractmethod
    def intersect(self, node: Intersect, binding: Binding, rows: Oriented) -> Body:
        """Return a sweep of rows or edges, with the body of `node` at each triangle."""


def _placed(node: Intersect) -> tuple[str, ...]:
    """Return the roles whose sums may wait in arrays along the row of ``v``."""
    return tuple(each for each in ("w", "e_vw") if each in node.may_wait)


#: Words of the bitmap of a long row. It covers the last vertices in degree order, which
#: are most members of long rows; others are found by binary search.
BITMAP_WORDS = 4096
#: Shared memory of a block, in bytes, for sums at members of the row; sums that do not
#: fit are added to global memory. With the bitmap and its counts, it makes 48 KiB.
SUM_BYTES = 1 << 14
#: Lanes that share the rest of one row ``u`` behind the vertex ``v`` of the block.
BITMAP_LANES = 16


def rows_intersected(
    requested: str, on_gpu: bool, typical_degree: int, has_hubs: bool
) -> Mapping:
    """Return the mapping of a phase over all triangles.

    If `requested` is not one of `INTERSECTIONS`, the default is chosen.
    """
    requested = requested if requested in INTERSECTIONS else "auto"
    if not on_gpu:
        return Mapping(1, 1, 1, False, "mark" if requested == "auto" else requested)
    # Half of the edges of a vertex lead to higher ones; a lane takes two or more.
    lanes = min(WARP, max(1, typical_degree // 4))
    long_rows = has_hubs or typical_degree > WARP
    hubs = long_rows if requested == "auto" else requested == "mark"
    return Mapping(1, 1, lanes, False, "search", hubs)


class SearchSchedule(Intersection):
    """Lanes share the shorter of two rows: row ``v``, and row ``u`` behind ``v``.

    Binary search finds each member in the longer one. With hubs, long rows ``v`` are
    left to blocks.
    """

    name = "search"
    hub_schedule = "bitmap"
    does = "Sweep rows, and search the triangles that begin there."

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        lanes = (
            f"{mapping.lanes_per_vertex} lanes"
            if mapping.lanes_per_vertex > 1
            else "one thread"
        )
        hubs = ", a block and a bitmap for each long row" if mapping.hubs else ""
        return f"{lanes}, searching the shorter of two rows in the longer{hubs}"

    def arguments(self, rows: Oriented) -> tuple[str, ...]:
        """Return the names of the active set, and of the arrays of upper rows."""
        sets = ("active", "all_active", "vertex_count")
        return (*sets, "order_vertex", *rows.upper.arrays, *rows.filtered_by)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over rows, around the body of `node`."""
        lanes = binding.walk.lanes
        shift = f" >> {lanes.bit_length() - 1}" if lanes > 1 else ""
        front = code(
            f"lane = cuda.laneid & {lanes - 1}\n"
            f"first_row = int32(cuda.grid(1){shift})\n"
            f"stride = int32(cuda.gridsize(1){shift})"
        )
        loop = "for low in range(first_row, int32(vertex_count), stride):\n    BODY"
        return [*front, Areas(), *code(loop, BODY=node.body)]

    def intersect(self, node: Intersect, binding: Binding, rows: Oriented) -> Body:
        """Return a sweep of rows ``u``: for each, all members ``v`` but the last."""
        upper = rows.upper
        own = binding.own.format("end - first")
        left = f" or not {own}" if own else ""
        member = code(
            f"middle = {upper.end_at('position')}\n"
            f"first, end = {upper.bounds('middle')}\n"
            f"if first == end{left}:\n"
            "    continue\n"
            f"e_uv = {upper.edge('position')}\n"
            "WITHIN\n"
            f"v = {rows.vertex('middle')}\n"
            f"both_active = is_active or {rows.is_active('v')}",
            WITHIN=rows.skipped("e_uv"),
        )
        member.append(Waits(("v", "e_uv"), _searched(rows, binding, node.body)))
        each = code(
            f"start, stop = {upper.bounds('low')}\n"
            "if stop - start < 2:\n"  # v and w
            "    continue\n"
            f"u = {rows.vertex('low')}\n"
            "ACTIVE\n"
            "if not some_active:\n"
            "    continue",
            ACTIVE=rows.some_active("u"),
        )
        members = (
            f"for position in range(start, {upper.place('stop - 1')}):\n    MEMBER"
        )
        each.append(Waits(("u",), code(members, MEMBER=member)))
        return [Sweep("low", "", "", each)]


def _searched(rows: Oriented, binding: Binding, body: Body) -> Body:
    """Return `body` for the members of row u behind v that are in row v, too."""
    upper, lanes = rows.upper, binding.walk.lanes
    own = f"range({upper.place('near + lane')}, near_end, {upper.place(str(lanes))})"
    # Members ascend: each search begins where the last one ended.
    return code(
        f"begin = {upper.place('position + 1')}\n"
        "swaps = end - first < stop - begin\n"
        "near, near_end = (first, end) if swaps else (begin, stop)\n"
        "far, far_end = (begin, stop) if swaps else (first, end)\n"
        f"for own in {own}:\n"
        f"    high = {upper.end_at('own')}\n"
        f"    far = warp.lower_bound({upper.ends}, far, far_end, high)\n"
        f"    if far < far_end and {upper.end_at('far')} == high:\n"
        "        other, mine = (far, own) if swaps else (own, far)\n"
        "        FOUND",
        FOUND=rows.found("other", "mine", body),
    )


class BitmapSchedule(Intersection):
    """A block takes one long row ``v``, with a bitmap of it in shared memory.

    A load of a word and one of its count yield whether ``w`` is a member, and its place
    in the row, so that sums at members can be in shared memory.
    """

    name = "bitmap"
    does = "Sweep long rows, a block each, and the triangles with them in the middle."
    lists = (GraphArray("hubs", "upper_hubs"),)

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding: lanes combine their sums."""
        scopes = {
            "edge": Scope(BITMAP_LANES),
            "vertex": Scope(WARP),
            "row": BlockScope(shape.threads, "block"),
        }
        walk = Walk("range", lanes=BITMAP_LANES, own="lane")
        return Binding(True, FeatureAxis(1), walk, scopes)

    def arguments(self, rows: Oriented) -> tuple[str, ...]:
        """Return the names of the active set, the long rows, upper and lower rows."""
        sets = ("active", "all_active", "hubs")
        arrays = ("order_vertex", *rows.upper.arrays, *rows.lower.arrays)
        return (*sets, *arrays, *rows.filtered_by)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the body of `node` for the row of the block."""
        front = code("thread = int32(cuda.threadIdx.x)\nrow = hubs[cuda.blockIdx.x]")
        return [*front, Areas(), *node.body]

    def intersect(self, node: Intersect, binding: Binding, rows: Oriented) -> Body:
        """Return the bitmap, and a loop over lower neighbors with tests against it."""
        threads, places = binding.scopes["row"].lanes, _placed(node)
        each = code(
            f"v = {rows.vertex('row')}\n"
            f"start, stop = {rows.upper.bounds('row')}\n"
            f"is_active = all_active or {rows.is_active('v')}"
        )
        # Sums at as many members as fit shared memory.
        sums: Body = [Places(places, size_bytes=SUM_BYTES)] if places else []
        each += [*_cleared(threads), *sums, Meet("sync", "row")]
        each += [*_marked(rows, threads), Meet("sync", "row")]
        each += code(
            f"outside = warp.lower_bound({rows.upper.ends}, start, stop, base)\n"
            f"lane = cuda.laneid & {BITMAP_LANES - 1}\n"
            f"group = thread >> {BITMAP_LANES.bit_length() - 1}"
        )
        third: Body = [Waits(places, _looked_up(rows, node.body), index="found")]
        body = _below(rows, threads // BITMAP_LANES, third)
        if places:
            members = f"range(thread, min(stop - start, place_count), {threads})"
            take: Body = [FromPlace(places, "found", "start + found")]
            body += [Meet("sync", "row")]
            body += code(f"for found in {members}:\n    TAKE", TAKE=take)
        each.append(Waits(("v",), body, "vertex"))
        return [Sweep("row", "", "", each)]


def _cleared(threads: int) -> Body:
    """Return an empty bitmap, and the degree order of its first bit, ``base``."""
    what: Body = [
        Comment("The last by degree: which are members, and the place of the first of"),
        Comment("a word."),
    ]
    return what + code(
        f"bits = cuda.shared.array({BITMAP_WORDS}, uint32)\n"
        f"before = cuda.shared.array({BITMAP_WORDS}, int32)\n"
        f"base = int32(max(order_vertex.size - {32 * BITMAP_WORDS}, 0))\n"
        f"for word in range(thread, {BITMAP_WORDS}, {threads}):\n"
        "    bits[word] = uint32(0)"
    )


def _marked(rows: Oriented, threads: int) -> Body:
    """Return statements that set bits of members, and prefix counts of words."""
    upper = rows.upper
    last = upper.end_at("start + found - 1")
    return code(
        f"for found in range(thread, stop - start, {threads}):\n"
        f"    high = {upper.end_at('start + found')}\n"
        "    if high >= base:\n"
        "        word = uint32(uint32(high - base) >> 5)\n"
        "        last_word = int32(-1)\n"
        "        if found > 0:\n"
        f"            last_word = int32(({last} - base) >> 5)\n"
        "        if last_word != int32(word):\n"
        "            before[word] = int32(found)\n"
        "        warp.set_bit(bits, high - base)"
    )


def _below(rows: Oriented, groups: int, third: Body) -> Body:
    """Return `third` for each lower neighbor ``u`` of ``v``, a group of lanes each."""
    upper, lower = rows.upper, rows.lower
    within = f"takes = takes and {rows.is_within('e_uv')}" if rows.within else ""
    each: Body = [
        Comment("All lanes of the warp go round together: they add up below.")
    ]
    each += code(
        "lower = first + group\n"
        "takes = lower < last_lower\n"
        f"lower = {lower.place('min(lower, last_lower - 1)')}\n"
        f"position = {lower.upper_place('lower')}\n"
        f"low = {lower.end_at('lower')}\n"
        f"e_uv = {upper.edge('position')}\n"
        f"{within}\n"
        f"begin = {upper.place('position + 1')}\n"
        f"end = {upper.stop('low')} if takes else begin\n"
        f"u = {rows.vertex('low')}\n"
        f"both_active = is_active or {rows.is_active('u')}"
    )
    each.append(Waits(("u", "e_uv"), third))
    out = code(f"first_lower, last_lower = {lower.bounds('row')}")
    turns = f"range(first_lower, last_lower, {lower.place(str(groups))})"
    return out + agreed(code(f"for first in {turns}:\n    BODY", BODY=each), "warp")


def _looked_up(rows: Oriented, body: Body) -> Body:
    """Return `body` for members of row u behind ``v`` that are in the bitmap."""
    upper = rows.upper
    step = upper.place(str(BITMAP_LANES))
    return code(
        f"for other in range({upper.place('begin + lane')}, end, {step}):\n"
        f"    high = {upper.end_at('other')}\n"
        "    found = int32(-1)\n"
        "    if high >= base:\n"
        "        bit = uint32(high - base)\n"
        "        word = bits[bit >> 5]\n"
        "        below = uint32((uint32(1) << (bit & uint32(31))) - 1)\n"
        "        if uint32((word >> (bit & uint32(31))) & uint32(1)) != 0:\n"
        "            count = warp.count_bits(uint32(word & below))\n"
        "            found = int32(before[bit >> 5] + count)\n"
        "    elif start < outside:\n"
        f"        hit = warp.lower_bound({upper.ends}, start, outside, high)\n"
        f"        if hit < outside and {upper.end_at('hit')} == high:\n"
        "            found = int32(hit - start)\n"
        "    if found >= 0:\n"
        f"        mine = {upper.place('start + found')}\n"
        "        FOUND",
        FOUND=rows.found("other", "mine", body),
    )


class _ChunkedRows(Intersection):
    """Base: a thread takes chunks, ranges of rows with about equal work (CPU)."""

    does = "Sweep the rows of a chunk, and the triangles that begin there."

    def arguments(self, rows: Oriented) -> tuple[str, ...]:
        """Return the names of the active set, and of upper and lower rows."""
        arrays = ("order_vertex", *rows.upper.arrays, *rows.lower.arrays)
        return ("active", "all_active", *arrays, *rows.filtered_by)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over rows, around the body of `node`."""
        return [
            Areas(),
            *code("for row in range(first, last):\n    BODY", BODY=node.body),
        ]

    def intersect(self, node: Intersect, binding: Binding, rows: Oriented) -> Body:
        """Return a sweep of rows ``v``: for each, the lower neighbors ``u``.

        Neighbors whose rows have no member behind ``v`` are skipped.
        """
        upper, lower, places = rows.upper, rows.lower, _placed(node)
        third: Body = [Waits(places, self.third(rows, node.body), index="found")]
        # Of row u, only the members behind v: a third of the reads of row v (kron-18).
        second = code(
            f"for lower in range({lower.bounds('row')}):\n"
            f"    position = {lower.upper_place('lower')}\n"
            f"    low = {lower.end_at('lower')}\n"
            f"    begin = position + 1\n"
            f"    end = {upper.stop('low')}\n"
            "    if begin == end:\n"
            "        continue\n"
            f"    u = {rows.vertex('low')}\n"
            f"    e_uv = {upper.edge('position')}\n"
            "    WITHIN\n"
            f"    both_active = is_active or {rows.is_active('u')}\n"
            "    if not (both_active or some_active):\n"
            "        continue\n"
            "    THIRD",
            WITHIN=rows.skipped("e_uv"),
            THIRD=[Waits(("u", "e_uv"), third)],
        )
        each = code(
            f"start, stop = {upper.bounds('row')}\n"
            "if start == stop or "
            f"{lower.start('row')} == {lower.stop('row')}:\n"
            "    continue\n"
            f"v = {rows.vertex('row')}\n"
            "ACTIVE\n"
            "BEFORE",
            ACTIVE=rows.some_active("v"),
            BEFORE=self.before(rows),
        )
        each.append(Waits(("v",), second))
        behind = self.behind(rows)
        if places:
            behind.append(FromPlace(places, "position - start", "position"))
        if behind:
            each += code("for position in range(start, stop):\n    BODY", BODY=behind)
        return [*self.front(rows), *_longest(rows, places), Sweep("row", "", "", each)]

    def front(self, rows: Oriented) -> Body:
        """Return statements in front of all rows."""
        return []

    def before(self, rows: Oriented) -> Body:
        """Return statements at the begin of a row."""
        return []

    def behind(self, rows: Oriented) -> Body:
        """Return statements for each member at the end of a row, at ``position``."""
        return []

    @abstractmethod
    def third(self, rows: Oriented, body: Body) -> Body:
        """Return `body` for each member of row u from ``begin`` on that is in row v."""


class MarkSchedule(_ChunkedRows):
    """Mark the members of a row in an array over vertices: a test is one load."""

    name = "mark"
    targets = ("cpu", "cuda")  # on a GPU, it requests `BitmapSchedule` for long rows

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return "one thread a row, whose members are marked"

    def front(self, rows: Oriented) -> Body:
        """Return the array of marks."""
        what = Comment("One more than the place of each member in the row.")
        return [what, *code("place = np.zeros(order_vertex.size, np.int32)")]

    def before(self, rows: Oriented) -> Body:
        """Mark the members of the row."""
        edge = rows.upper.edge("position")
        within = code(f"e_vw = {edge}") + rows.skipped("e_vw") if rows.within else []
        return code(
            "for position in range(start, stop):\n"
            "    WITHIN\n"
            f"    place[{rows.upper.end_at('position')}] = position - start + 1",
            WITHIN=within,
        )

    def behind(self, rows: Oriented) -> Body:
        """Clear a mark."""
        return code(f"place[{rows.upper.end_at('position')}] = 0")

    def third(self, rows: Oriented, body: Body) -> Body:
        """Return `body` for each marked member of row u."""
        return code(
            "for other in range(begin, end):\n"
            f"    high = {rows.upper.end_at('other')}\n"
            "    found = place[high] - 1\n"
            "    if found >= 0:\n"
            "        FOUND",
            FOUND=rows.found("other", "start + found", body, is_within=True),
        )


class MergeSchedule(_ChunkedRows):
    """Merge row ``u`` behind ``v`` with row ``v``; both are sorted."""

    name = "merge"
    targets = ("cpu",)

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return "one thread a row, merged with the rows of its members"

    def third(self, rows: Oriented, body: Body) -> Body:
        """Return `body` for each vertex in both rows."""
        return code(
            "other, mine = begin, start\n"
            "while other < end and mine < stop:\n"
            f"    high = {rows.upper.end_at('other')}\n"
            f"    found, own = mine - start, {rows.upper.end_at('mine')}\n"
            "    mine += own <= high\n"
            "    if own == high:\n"
            "        FOUND\n"
            "    other += own >= high",
            FOUND=rows.found("other", "start + found", body),
        )


def _longest(rows: Oriented, places: tuple[str, ...]) -> Body:
    """Return arrays for the members of the longest row of a chunk."""
    if not places:
        return []
    upper = rows.upper
    out = code(
        "longest = 0\n"
        "for row in range(first, last):\n"
        f"    longest = max(longest, {upper.stop('row')} - {upper.start('row')})"
    )
    return [*out, Places(places, "longest")]
