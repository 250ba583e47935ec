"""Layouts of adjacency: statements that find and traverse the edges of a vertex.

Only layouts print indices into an adjacency. `Walk` describes a loop over a row, and
`AdjacencyLayout` generates such loops over *places*: a row has consecutive places
``start`` to ``stop``, and a subclass maps a place to a slot in memory. In `Csr` a place
is a slot::

    start, stop = row_offsets[v], row_offsets[v + 1]
    for position in range(start, stop):
        u = column_indices[position]
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.tree.nodes import AllEdges, Meet
from featgraph.fold.tree.statements import (
    Body,
    agreed,
    code,
    copied,
    every,
    when,
)

__all__ = ["AdjacencyLayout", "Csr", "OneRow", "Together", "Walk"]


@dataclass(frozen=True)
class Pairs:
    """Statements for two edges in flight: `first` for both, then `behind` for each.

    Attributes
    ----------
    where : str
        Test, the same for all edges, that `first` may run for both edges.
    names : tuple of str
        Variables, besides those of the edge, that `first` binds and `behind` reads.
    """

    where: str
    first: Body
    behind: Body
    names: tuple[str, ...]


@dataclass(frozen=True)
class Walk:
    """The loop of one lane over the edges of a vertex, and the lanes that share them.

    Attributes
    ----------
    form : str
        The loop:

        - "range": a ``for`` loop over positions.
        - "while": a counter of the type of positions, which may be narrower.
        - "rounds": equally many rounds for all lanes of `company`; a lane without an
          edge takes a valid one, with ``inside_edge`` False.
        - "batches": rounds through one row, in which each lane has several edges in
          flight; a batch has ``batch_count`` edges.
        - "together": rounds through the rows of all lanes of a warp.
        - "apart": each lane of a warp walks its own short row; all lanes share a long
          row.
    lanes : int
        Lanes that share the row: each takes every `lanes`-th position.
    own : str
        Text of the number of this lane among them; "" for a single lane.
    company : str
        Lanes with equally many rounds: "warp" or "block".
    at_a_time : int
        Edges that a lane has in flight, so that their loads overlap; 1 for "range".
    is_looped : bool
        Whether these edges are a loop that the compiler unrolls, not repeated text.
    numbers_late : bool
        Whether the id of an edge is loaded in the ``if`` that ends the body, since few
        edges pass its test.
    is_shared : bool
        For "together": whether the rows are those of a list, and all warps share their
        edges evenly.
    pairs : Pairs or None
        For "while": statements for two edges in flight; None for one edge at a time.
    alone : int
        For "apart": longest row, in edges, that one lane walks alone.
    ends_together : bool
        For "while": whether all lanes of a vertex leave the loop once one of them has
        set ``all_found``.
    """

    form: str
    lanes: int = 1
    own: str = ""
    company: str = "warp"
    at_a_time: int = 1
    is_looped: bool = False
    numbers_late: bool = False
    is_shared: bool = False
    pairs: Pairs | None = None
    alone: int = 0
    ends_together: bool = False


@dataclass(frozen=True)
class OneRow:
    """Statements of a warp whose lanes all take edges of one row.

    Attributes
    ----------
    starts : body
        Statements in front of the first edge.
    takes : list of body
        Statements for each edge that a lane has in flight, as in `Together`; of the
        variables there only ``inside_edge`` is bound.
    behind : body
        Statements behind the last edge. The row belongs to the lanes whose group in the
        warp has the number ``row``; they store the result.
    """

    starts: Body
    takes: list[Body]
    behind: Body


@dataclass(frozen=True)
class Together:
    """Statements of a warp that traverses the rows of its lanes side by side.

    The rows of a warp are concatenated; in a round consecutive lanes take consecutive
    edges, so a lane may have an edge of the row of another lane.

    Attributes
    ----------
    takes : list of body
        Statements for each edge that a lane has in flight. ``inside_edge`` is False for
        a lane past the last edge; ``run_n`` is the number of preceding lanes whose n-th
        edge is of the same row.
    behind : body
        Statements behind these in each round. ``row_begin`` and ``row_end`` bound the
        lane's own row in the concatenation, and ``round_begin`` is the first place of
        the round there.
    lent : mapping
        Variable that the lane of an edge reads from the lane of its row by a shuffle ->
        whether the variable is a bool.
    one_row : OneRow or None
        Statements for rows so long that the warp takes one row after the other.
    """

    takes: list[Body]
    behind: Body
    lent: Mapping[str, bool]
    one_row: OneRow | None = None


class AdjacencyLayout(ABC):
    """Rows of edges, by vertex, and walks over their places, ``start`` to ``stop``.

    A subclass binds ``start`` and ``stop`` of a row, and maps a ``position`` between
    them to an edge in memory. In rounds a lane without an edge loads one all the same:
    for an empty row, ``start`` or the place before it (0 at least) must be valid.

    The statements for an edge read ``u``, ``v`` and its id ``e``. In rounds they may
    also read ``inside_edge``, which is False for a lane that has no edge left, and the
    number of the round, ``step``.

    A part of a row has a name: "" is the whole row, "part" the part that `narrowed`
    leaves, and "block" the current block of a loop of `blocks`.

    Walks over all edges go over the slots of `ends`, some of which may be empty.

    Attributes
    ----------
    ends : str
        Name of the array with the vertex at the other end of each edge.
    place_type, number_type : str
        Integer types of places, and of edge ids; "" for Python's. Without a type, Numba
        computes places in int64.
    bound : tuple of str
        Variables by which another lane finds the edges of a row.
    """

    bound: ClassVar[tuple[str, ...]] = ("start",)

    ends: str
    place_type: str
    number_type: str

    @property
    @abstractmethod
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays of the adjacency, which are arguments of a kernel."""

    @property
    @abstractmethod
    def vertex_count(self) -> str:
        """Text of the number of rows."""

    @abstractmethod
    def row(self, vertex: str) -> Body:
        """Return statements that bind the row of a vertex."""

    @abstractmethod
    def edge_at(self, place: str) -> tuple[Body, str, str]:
        """Return statements that find an edge, its position in `ends`, and its id."""

    @abstractmethod
    def slot_at(self, slot: str) -> tuple[str, str, str]:
        """Return the test that a slot of `ends` has an edge, its end, and its id.

        The test is "" if every slot has one. In an empty slot the end and the id are
        valid, but of any edge.
        """

    def begin(self) -> Body:
        """Return the statements in front of the first edge of a walk."""
        return []

    @property
    def degree(self) -> str:
        """Text of the number of edges in the row that was bound last."""
        return "stop - start"

    def cut(self, first: str, last: str) -> Body:
        """Restrict the row that was bound last to places `first` to `last` of it."""
        ends = (self.place(f"start + {bound}") for bound in (first, last))
        return code(f"start, stop = ({', '.join(ends)})")

    def narrowed(self, test: str, part: str = "") -> Body:
        """Bind a part to the row, or to an empty one in lanes where `test` is False."""
        end = _BOUNDS[part][1]
        if test.startswith("not "):
            return code(f"{end} = start if {test.removeprefix('not ')} else stop")
        return code(f"{end} = stop if {test} else start")

    def edges(self, vertex: str, walk: Walk, part: str, body: Body) -> Body:
        """Return a walk over a part of the row of `vertex`, ``u`` or ``v``."""
        start, stop = _BOUNDS[part]
        out = self.begin()
        if walk.form == "rounds":
            return out + _rounds(self, vertex, walk, part, body)
        if walk.form == "apart":
            return out + _apart(self, vertex, walk, part, body)
        each = self.bind(vertex, walk, "position", body)
        if walk.form == "range":
            loop = f"for position in range({start}, {stop}):\n    BODY"
            return out + code(loop, BODY=each)
        first = self.place(f"{start} + {walk.own}") if walk.own else start
        out += code(f"position = {first}")
        if walk.ends_together:
            return out + _until_found(walk, stop, each, self._step(walk.lanes))
        # The plain loop stands last: it takes the edges that the others have left.
        each += self._step(walk.lanes)
        if walk.at_a_time > 1:
            out += _several(self, vertex, walk, stop, body, each)
        if walk.pairs is not None:
            out += self._in_pairs(vertex, walk, stop, walk.pairs)
        return out + code(f"while position < {stop}:\n    BODY", BODY=each)

    def blocks(self, part: str, places: int, each: Body, behind: Body) -> Body:
        """Return a loop over blocks of `places` edges of a part of a row.

        `each` walks the part "block"; `behind` follows on all blocks but the last.
        """
        start, stop = _BOUNDS[part]
        end = self.place(f"block_start + min(block_last - block_start, {places})")
        # An empty part is one empty block, so that there is always a last one.
        body = code(f"block_end = {end}") + each
        body += code(
            "block_start = block_end\nif block_start == block_last:\n    break"
        )
        out = code(f"block_start, block_last, block_count = {start}, {stop}, 0")
        return out + code("while True:\n    BODY", BODY=body + behind)

    def bind(self, vertex: str, walk: Walk, place: str, body: Body) -> Body:
        """Return `body`, with its edge and the other end bound for a place."""
        find, at, own = self.edge_at(place)
        end, number = code(
            f"{'u' if vertex == 'v' else 'v'} = {self.ends}[{at}]\ne = {own}"
        )
        if not walk.numbers_late:
            return [*find, end, number, *body]
        if body and isinstance(body[-1], ast.If):
            body[-1].body.insert(0, number)
        return [*find, end, *body]

    def _in_pairs(self, vertex: str, walk: Walk, stop: str, pairs: Pairs) -> Body:
        """Return a walk over pairs of edges; the plain loop behind it takes the rest.

        The loads of both edges are issued before the stores of either. The first edge
        of a pair is found first, since the cursor of a layout moves forward only. Pairs
        take 80 registers instead of 78 (`say_plainly`, K = 4, sm_90), which is no loss:
        registers are allocated in units of eight.
        """
        names = ", ".join(["u" if vertex == "v" else "v", "e", *pairs.names])
        second = f"position + {walk.lanes}"
        each = self.bind(vertex, walk, "position", _copies(pairs.first, 1))
        each += code(f"first_edge = ({names})")
        each += self.bind(vertex, walk, second, _copies(pairs.first, 1))
        each += code(f"second_edge = ({names})\n{names} = first_edge")
        each += _copies(pairs.behind, 1)
        each += [*code(f"{names} = second_edge"), *_copies(pairs.behind, 1)]
        each += self._step(2 * walk.lanes)
        whole = f"{self.place(f'{stop} - {walk.lanes}')} if {pairs.where} else position"
        loop = code("while position < whole:\n    BODY", BODY=each)
        return code(f"whole = {whole}") + loop

    def _step(self, places: int) -> Body:
        return code(f"position = {self.place(f'position + {places}')}")

    def all_edges(self, node: AllEdges, at_a_time: int) -> Body:
        """Return a walk of all lanes of a grid over all edges.

        Consecutive lanes take consecutive slots, each lane `at_a_time` of them;
        ``inside_edge`` is False for a slot without an edge.
        """
        names, places = ", ".join(["e", *node.names]), at_a_time * _WARP
        each = code("")
        for n in range(at_a_time):
            more = f" + {n * _WARP}" if n else ""
            each += code(f"slot = first_slot + cuda.laneid{more}")
            test, end, number = self.slot_at(self._number("min(slot, last_slot)"))
            inside = " and ".join(filter(None, ["slot <= last_slot", test]))
            each += code(f"inside_edge = {inside}\n{node.vertex} = {end}\ne = {number}")
            each += _copies(node.first, 1) + code(f"edge_{n} = ({names})")
        # The loads of all edges of a lane are issued before the first use of one.
        for n in range(at_a_time):
            each += code(f"{names} = edge_{n}") + _copies(node.behind, 1)
        each += code("first_slot += slot_stride")
        out = code(
            # In 64 bits: the first slots of the last warps may exceed int32.
            f"last_slot = int64({self.ends}.size - 1)\n"
            f"first_slot = int64(cuda.grid(1) >> 5) * {places}\n"
            f"slot_stride = int64(cuda.gridsize(1) >> 5) * {places}"
        )
        loop = code("while first_slot <= last_slot:\n    BODY", BODY=each)
        return out + agreed(loop, "warp")

    def together(self, vertex: str, walk: Walk, part: str, does: Together) -> Body:
        """Return a walk over a part of each row of the lanes of a warp.

        `walk.lanes` groups of lanes share the warp. A group shares the features of an
        edge; it has one row of its own, and takes one edge a round. A shared walk goes
        over the warp's share of the edges of a list of rows.
        """
        if walk.is_shared:
            return self._shared(vertex, walk, does)
        if walk.form == "batches":
            return _batches(self, vertex, walk, part, does)
        if walk.form == "rounds":
            return self.begin() + _rounds_together(self, vertex, walk, part, does)
        start, stop = _BOUNDS[part]
        width = _WARP // walk.lanes
        lent = {vertex: False, **dict.fromkeys(self.bound, False), **does.lent}
        own = ", ".join(f"own_{name}" for name in lent)
        out = code(
            f"row_begin, row_places = segments.places_before(int32({stop} - {start}), "
            f"{width})\n"
            f"row_end = int32(row_begin + ({stop} - {start}))\n"
            f"{own} = {', '.join(lent)}"
        )
        # Shuffles overwrite the variables of the lane's own row, which `own` saves.
        walked = self._side_by_side(vertex, walk, part, does, lent)
        if does.one_row is not None and walk.lanes > 1:
            out += code(
                f"row_bits = segments.rows_with_edges({stop} - {start}, {width})"
            )
            least = LONG_ROW * walk.lanes
            test = f"row_places >= {least} * warp.count_bits(row_bits)"
            rows = self._row_by_row(vertex, walk, part, does.one_row, lent)
            walked = agreed(when([test], rows, walked), "warp")
        return out + walked + code(f"{', '.join(lent)} = {own}")

    def _side_by_side(
        self, vertex: str, walk: Walk, part: str, does: Together, lent: Lent
    ) -> Body:
        """Return rounds through the concatenated rows of a warp."""
        width, start = _WARP // walk.lanes, _BOUNDS[part][0]
        count = walk.lanes * len(does.takes)
        out = code(f"rounds = row_places + {count - 1} >> {count.bit_length() - 1}")
        each = code(f"round_begin = int32(step * {count})")
        # Lanes past the last edge repeat it, with ``inside_edge`` False: all lanes must
        # take part in the shuffles.
        for n, body in enumerate(does.takes):
            more = f" + {n * walk.lanes}" if n else ""
            each += code(
                f"place = int32(round_begin + {walk.own}{more})\n"
                "inside_edge = place < row_places\n"
                "place = min(place, int32(row_places - 1))\n"
                f"row = segments.row_of(row_begin, place, {width})\n"
                f"place = int32(place - segments.of_row(row_begin, row, {width}))\n"
                f"run_{n} = min(place, int32({walk.own}))"
            )
            each += _borrow(lent, width)
            each += self.at_place(vertex, walk, start, body)
        loop = code("for step in range(rounds):\n    BODY", BODY=each + does.behind)
        return out + agreed(loop, "warp")

    def _row_by_row(
        self, vertex: str, walk: Walk, part: str, does: OneRow, lent: Lent
    ) -> Body:
        """Return a loop over the non-empty rows of a warp; all lanes share each row."""
        width, start = _WARP // walk.lanes, _BOUNDS[part][0]
        count = walk.lanes * len(does.takes)
        out = code(
            f"row = segments.first_row(row_bits, {width})\n"
            "row_bits = segments.without_first(row_bits)\n"
            f"row_length = segments.of_row(int32(row_end - row_begin), row, {width})"
        )
        out += _borrow(lent, width) + does.starts
        out += code(f"rounds = row_length + {count - 1} >> {count.bit_length() - 1}")
        each = code("")
        for n, body in enumerate(does.takes):
            more = f" + {n * walk.lanes}" if n else ""
            each += code(
                f"place = int32(step * {count} + {walk.own}{more})\n"
                "inside_edge = place < row_length\n"
                "place = min(place, int32(row_length - 1))"
            )
            each += self.at_place(vertex, walk, start, body)
        loop = code("for step in range(rounds):\n    BODY", BODY=each)
        out += agreed(loop, "warp") + does.behind
        return agreed(code("while row_bits != 0:\n    BODY", BODY=out), "warp")

    def at_place(self, vertex: str, walk: Walk, start: str, body: Body) -> Body:
        """Return `body` for the edge ``place`` places behind the place `start`."""
        out = code(f"position = {self.place(f'{start} + place')}") + self.begin()
        return out + self.bind(vertex, walk, "position", body)

    def _shared(self, vertex: str, walk: Walk, does: Together) -> Body:
        """Return a walk over a warp's share of the edges of all rows of a list."""
        [body] = does.takes
        shift = walk.lanes.bit_length() - 1
        first = "edge_share * (cuda.grid(1) >> 5)"
        # In 64 bits: the first edge of a share of the last warps may exceed int32.
        # A share is rounded up to whole rounds, so the last warps may have none.
        out = code(
            "share_edges = int64(share_begins[share_count[0]])\n"
            "edge_share = share_edges // (cuda.gridsize(1) >> 5)\n"
            f"edge_share = (edge_share >> {shift}) + 1 << {shift}\n"
            f"share_first = {self.place(f'min({first}, share_edges)')}\n"
            f"share_last = {self.place(f'min({first} + edge_share, share_edges)')}\n"
            f"rounds = int32(share_last - share_first + {walk.lanes - 1} >> {shift})\n"
            "row_last = share_count[0] - 1\n"
            "row = segments.row_at(share_begins, 0, row_last, share_first)\n"
            "row_last = segments.row_at(share_begins, row, row_last, share_last - 1)"
        )
        place = self.place(f"share_first + step * {walk.lanes} + {walk.own}")
        each = code(
            f"place = {place}\n"
            "inside_edge = place < share_last\n"
            f"place = min(place, {self.place('share_last - 1')})\n"
            "row = segments.row_at(share_begins, row, row_last, place)\n"
            f"{vertex} = share_rows[row]"
        )
        each += self.row(vertex)
        each += code(f"position = {self.place('start + (place - share_begins[row])')}")
        each += self.begin() + self.bind(vertex, walk, "position", body) + does.behind
        loop = code("for step in range(rounds):\n    BODY", BODY=each)
        return out + agreed(loop, "warp")

    def place(self, text: str) -> str:
        """Return the text of a place, converted to `place_type`."""
        return f"{self.place_type}({text})" if self.place_type else text

    def _number(self, text: str) -> str:
        return f"{self.number_type}({text})" if self.number_type else text


@dataclass(frozen=True)
class Csr(AdjacencyLayout):
    """Compressed rows, in order of vertices; a place is an index into `ends`.

    Attributes
    ----------
    offsets : str
        Name of the array with the first place of the row of each vertex (V + 1).
    numbers : str
        Name of the array with the id of each edge; "" if the id is the place.
    """

    offsets: str
    ends: str
    numbers: str
    place_type: str = ""
    number_type: str = ""

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays of the adjacency, which are arguments of a kernel."""
        return tuple(name for name in (self.offsets, self.ends, self.numbers) if name)

    @property
    def vertex_count(self) -> str:
        """Text of the number of rows."""
        return f"{self.offsets}.size - 1"

    def bounds(self, vertex: str) -> str:
        """Return the text of the first place of a row, and of the place behind it."""
        return f"{self.offsets}[{vertex}], {self.offsets}[{vertex} + 1]"

    def row(self, vertex: str) -> Body:
        """Return statements that bind the row of a vertex."""
        return code(f"start, stop = {self.bounds(vertex)}")

    def edge_at(self, place: str) -> tuple[Body, str, str]:
        """Return no statements, the position of an edge in `ends`, and its id."""
        at = self._number(place)
        return [], at, self._number(f"{self.numbers}[{at}]") if self.numbers else at

    def slot_at(self, slot: str) -> tuple[str, str, str]:
        """Return no test, since no slot is empty, and the end and id of an edge."""
        number = f"{self.numbers}[{slot}]" if self.numbers else slot
        return "", f"{self.ends}[{slot}]", number


#: Lanes of a warp.
_WARP = 32
#: Mean length of the non-empty rows of a warp, in rounds of all its lanes, from which
#: on the warp takes one row after the other: then no lane searches the row of its edge,
#: and lanes combine once a row, not once a round.
LONG_ROW = 2
#: Variable that lanes pass to each other by shuffles -> whether its value is a bool.
Lent = Mapping[str, bool]
#: Part of a row -> the variables of its first place, and of the place behind it.
_BOUNDS = {
    "": ("start", "stop"),
    "part": ("start", "part_stop"),
    "block": ("block_start", "block_end"),
}


def _borrow(lent: Lent, width: int) -> Body:
    """Return shuffles that bring variables of the lane of ``row`` to an edge's lane."""
    out = code("")
    for name, is_bool in lent.items():
        given = f"int32(own_{name})" if is_bool else f"own_{name}"
        test = " != 0" if is_bool else ""
        out += code(f"{name} = segments.of_row({given}, row, {width}){test}")
    return out


def _until_found(walk: Walk, stop: str, each: Body, step: Body) -> Body:
    """Return a loop that the lanes of a vertex leave once one has ``all_found``.

    If few edges contribute, lanes that ended on their own would walk on for long. Lanes
    whose vertex is done stay in the loop: all lanes of the warp or block vote in it.
    """
    goes_on = {
        "warp": f"warp.group_any(inside_edge, {_WARP})",
        "block": "cuda.syncthreads_or(int32(inside_edge)) != 0",
    }[walk.company]
    test = f"inside_edge = position < {stop}"
    turn = when(["inside_edge"], each)
    turn.append(Meet("any", "vertex", ("all_found", "all_found")))
    turn += step + code(f"{test} and not all_found")
    loop = code(f"while {goes_on}:\n    BODY", BODY=turn)
    return code(f"all_found = False\n{test}") + agreed(loop, walk.company)


def _rounds(
    rows: AdjacencyLayout,
    vertex: str,
    walk: Walk,
    part: str,
    body: Body,
    first: str = "",
) -> Body:
    """Return a walk in rounds, equally many for all lanes of the warp or block.

    `first` is the text of the first round; "" for 0.
    """
    start, stop = _BOUNDS[part]
    edges, own = f"{stop} - {start}", "step"
    if walk.lanes > 1:
        edges = f"({stop} - {start} + {walk.lanes - 1})"
        shift = walk.lanes.bit_length() - 1
        is_power = walk.lanes == 1 << shift
        edges += f" >> {shift}" if is_power else f" // {walk.lanes}"
        own = f"step * {walk.lanes} + {walk.own}"
    if walk.company == "warp":  # lanes of other vertices; a block has one vertex
        edges = f"warp.group_max(int32({edges}), 32)"
    # An empty row at the begin of the arrays would have the place -1.
    each = code(
        f"position = {rows.place(f'{start} + {own}')}\n"
        f"inside_edge = position < {stop}\n"
        f"position = max(min(position, {stop} - 1), 0)"
    )
    each += rows.bind(vertex, walk, "position", body)
    steps = f"range({first}, rounds)" if first else "range(rounds)"
    loop = code(f"for step in {steps}:\n    BODY", BODY=each)
    return code(f"rounds = {edges}") + agreed(loop, walk.company)


def _rounds_together(
    rows: AdjacencyLayout, vertex: str, walk: Walk, part: str, does: Together
) -> Body:
    """Return rounds through a row of a whole warp or block, several in flight.

    Every lane has an edge in each of these, so that the loads of a round need no mask
    and are issued before the shuffles of another. The remaining rounds follow one by
    one.
    """
    start, stop = _BOUNDS[part]
    times = len(does.takes)
    count = walk.lanes * times
    each = code(f"step = whole_round * {times}")
    for n, body in enumerate(does.takes):
        own = " + ".join([f"whole_round * {count}", *[walk.own] * bool(walk.own)])
        own += f" + {n * walk.lanes}" if n else ""
        # In each round anew: a source that is not active makes it False.
        each += code(f"inside_edge = True\nposition = {rows.place(f'{start} + {own}')}")
        each += rows.bind(vertex, walk, "position", body)
    loop = code("for whole_round in range(whole_rounds):\n    BODY", BODY=each)
    out = code(f"whole_rounds = int32(({stop} - {start}) // {count})")
    out += agreed(loop, walk.company)
    left = _copies(does.takes[0], 1)
    return out + _rounds(rows, vertex, walk, part, left, f"whole_rounds * {times}")


def _batches(
    rows: AdjacencyLayout, vertex: str, walk: Walk, part: str, does: Together
) -> Body:
    """Return rounds through one row, with several edges of each lane in flight."""
    start, stop = _BOUNDS[part]
    count = walk.lanes * len(does.takes)
    first = rows.place(f"{start} + step * {count}")
    each = code(
        f"batch_start = {first}\n"
        f"batch_count = int32(min({stop} - batch_start, {count}))"
    )
    for n, body in enumerate(does.takes):
        more = f" + {n * walk.lanes}" if n else ""
        own = f" + {walk.own}" if walk.own else ""
        each += code(
            f"position = {rows.place(f'batch_start{own}{more}')}\n"
            f"inside_edge = position < {stop}\n"
            f"position = {rows.place(f'min(position, {stop} - 1)')}"
        )
        each += rows.begin() + rows.bind(vertex, walk, "position", body)
    rounds = f"range(int32(({stop} - {start} + {count - 1}) // {count}))"
    loop = code(f"for step in {rounds}:\n    BODY", BODY=each + does.behind)
    return agreed(loop, walk.company)


def _several(
    rows: AdjacencyLayout, vertex: str, walk: Walk, stop: str, body: Body, once: Body
) -> Body:
    """Return a walk over `at_a_time` edges a turn; other loops take the rest."""
    times = walk.at_a_time
    # From this place on, some edge of a turn would be missing.
    whole = rows.place(f"{stop} - {(times - 1) * walk.lanes}")
    if walk.is_looped:
        each = rows.bind(vertex, walk, "position + step", _copies(body, 1))
        steps = code(f"for step in range({times}):\n    BODY", BODY=each)
        steps += rows._step(times * walk.lanes)
    else:
        steps = _copies(once, times)
    loop = code("while position < whole:\n    BODY", BODY=steps)
    return code(f"whole = {whole}") + loop


def _apart(
    rows: AdjacencyLayout, vertex: str, walk: Walk, part: str, body: Body
) -> Body:
    """Return a walk in which a lane takes its short row, and a warp each long one."""
    start, stop = _BOUNDS[part]
    lent = [*rows.bound, stop]
    named = {n.id for n in every(body) if isinstance(n, ast.Name)}
    lent += [vertex] if vertex in named else []  # each takes a shuffle
    # For a long row ``few`` is its start, so that its lane has nothing to do alone.
    out = code(f"few = {stop} if {stop} - {start} <= {walk.alone} else {start}")
    short = replace(walk, form="while", lanes=1)
    out += _while(rows, vertex, short, start, "few", _copies(body, 1))
    own = ", ".join(f"own_{name}" for name in lent)
    out += code(
        f"{own} = {', '.join(lent)}\nlong_rows = warp.group_bits({stop} > few, 32)"
    )
    each = code(
        "owner = warp.trailing_zeros(long_rows)\nlong_rows &= long_rows - uint32(1)"
    )
    for name in lent:
        each += code(f"{name} = warp.broadcast(own_{name}, owner, 32)")
    each += rows.begin()
    first = rows.place(f"{start} + cuda.laneid")
    each += _while(rows, vertex, replace(short, lanes=_WARP), first, stop, body)
    return out + agreed(code("while long_rows != 0:\n    BODY", BODY=each), "warp")


def _while(
    rows: AdjacencyLayout, vertex: str, walk: Walk, first: str, stop: str, body: Body
) -> Body:
    """Return a loop over places `first` to `stop`, by steps of `walk.lanes`."""
    each = rows.bind(vertex, walk, "position", body) + rows._step(walk.lanes)
    loop = code(f"while position < {stop}:\n    BODY", BODY=each)
    return code(f"position = {first}") + loop


def _copies(body: Body, times: int) -> Body:
    """Return `times` copies of statements: no node may stand twice in a tree."""
    return [copied(node) for _ in range(times) for node in body]
