"""One thread intersects the row of ``v`` with those of the vertices below it (CPU)."""

from __future__ import annotations

from abc import abstractmethod

from featgraph.fold.schedules.base import Binding, KernelShape
from featgraph.fold.schedules.intersection import Intersection, placed
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.nodes import (
    Areas,
    Comment,
    FromPlace,
    Intersect,
    Places,
    Sweep,
    Waits,
)
from featgraph.fold.tree.oriented import Oriented
from featgraph.fold.tree.statements import Body, code

__all__ = ["MarkSchedule", "MergeSchedule"]


class _ChunkedRows(Intersection):
    """A chunk is a range of rows, with about as much work as every other."""

    does = "Sweep the rows of a chunk, and the triangles that begin there."

    def arguments(self, rows: Oriented) -> tuple[str, ...]:
        """Return the active set, and the rows above and below."""
        arrays = ("order_vertex", *rows.upper.arrays, *rows.lower.arrays)
        return ("active", "all_active", *arrays, *rows.filtered_by)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over rows, the body of `node` in it."""
        return [
            Areas(),
            *code("for row in range(first, last):\n    BODY", BODY=node.body),
        ]

    def intersect(self, node: Intersect, binding: Binding, rows: Oriented) -> Body:
        """Return a sweep of rows: for each, all vertices below that have more above."""
        upper, lower, places = rows.upper, rows.lower, placed(node)
        third: Body = [Waits(places, self.third(rows, node.body), index="found")]
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
        """Return what stands in front of all rows."""
        return []

    def before(self, rows: Oriented) -> Body:
        """Return what is done for a row first."""
        return []

    def behind(self, rows: Oriented) -> Body:
        """Return what is done for each member of a row last, at ``position``."""
        return []

    @abstractmethod
    def third(self, rows: Oriented, body: Body) -> Body:
        """Return `body` for each member of u's row from ``begin`` on that v's has."""


class MarkSchedule(_ChunkedRows):
    """Members of a row are marked in an array over vertices: one read finds one."""

    name = "mark"
    targets = ("cpu", "cuda")  # on a GPU in bits, for the rows of hubs

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return "one thread a row, whose members are marked"

    def front(self, rows: Oriented) -> Body:
        """Return the array of marks."""
        what = Comment("One more than the place of each member in the row.")
        return [what, *code("place = np.zeros(order_vertex.size, np.int32)")]

    def before(self, rows: Oriented) -> Body:
        """Mark the members that are within."""
        edge = rows.upper.edge("position")
        within = code(f"e_vw = {edge}") + rows.skipped("e_vw") if rows.within else []
        return code(
            "for position in range(start, stop):\n"
            "    WITHIN\n"
            f"    place[{rows.upper.end_at('position')}] = position - start + 1",
            WITHIN=within,
        )

    def behind(self, rows: Oriented) -> Body:
        """Take a mark away."""
        return code(f"place[{rows.upper.end_at('position')}] = 0")

    def third(self, rows: Oriented, body: Body) -> Body:
        """Return `body` for each member of u's row that is marked."""
        return code(
            "for other in range(begin, end):\n"
            f"    high = {rows.upper.end_at('other')}\n"
            "    found = place[high] - 1\n"
            "    if found >= 0:\n"
            "        FOUND",
            FOUND=rows.found("other", "start + found", body, is_within=True),
        )


class MergeSchedule(_ChunkedRows):
    """Both rows are gone through side by side."""

    name = "merge"
    targets = ("cpu",)

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return "one thread a row, merged with the rows of its members"

    def third(self, rows: Oriented, body: Body) -> Body:
        """Return `body` for each vertex that both rows come to."""
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
    """Return places for the members of the longest row of a chunk."""
    if not places:
        return []
    upper = rows.upper
    out = code(
        "longest = 0\n"
        "for row in range(first, last):\n"
        f"    longest = max(longest, {upper.stop('row')} - {upper.start('row')})"
    )
    return [*out, Places(places, "longest")]
