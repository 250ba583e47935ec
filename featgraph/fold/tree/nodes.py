"""Nodes of a loop nest: the work of a kernel, before and after lanes are assigned.

Nodes up to `Triangle` describe a phase without lanes: `kinds` builds them. The others
describe lanes, registers and memory: passes and schedules replace the former by them.
Functions and accumulators are given by name.

A leaf of the nest is a Python statement for one feature, such as
``aggr[f] += weigh(f, u, v, e, d)``. In a leaf ``x[f]`` is feature f of the lane's value
x, ``*x`` all features that the lane has, ``j`` the position of f among these, and
``x[i, f]`` a matrix element. `Features` repeats leaves for the features of a lane.
"""

from __future__ import annotations

import ast
from enum import Enum

from featgraph.base.dataclass import dataclass, field
from featgraph.fold.tree.statements import Body, Node


class Target(Enum):
    """Target of a kernel."""

    CPU = "cpu"
    CUDA = "cuda"

    @property
    def intrinsics(self) -> str:
        """The module of `featgraph.device` with atomics, bits and shuffles."""
        return "warp" if self is Target.CUDA else "cpu"


# Nodes of a phase before it is mapped to threads: they name no lane, no address and no
# copy of a feature.


@dataclass(eq=False)
class Sweep(Node):
    """Run `body` for each vertex (or edge) of a set.

    Attributes
    ----------
    vertex : str
        Loop variable.
    words : str
        Name of the set, an array of uint32 words; "" for all vertices.
    wanted : str
        Name of the flag that the vertex of a lane belongs to the set.
    behind : body
        Statements behind the loop, or behind each block of vertices if sums are cut
        into blocks.
    between : body
        Statements behind each block of a sum but the last. Where each block of vertices
        has its own row of partial results: statements in front of each block.
    marks : tuple of (str, str)
        (flag, set): a vertex whose flag holds behind the body joins the set.
    begins : str
        Set whose vertices are skipped, and are in the marked set from the beginning; ""
        for none.
    prefetches : body
        Prefetches for the next edges of a sweep of edges in an order.
    values : tuple of str
        Edge properties that such a sweep reads from copies in that order.
    """

    vertex: str
    words: str
    wanted: str
    body: Body
    behind: Body = field(default_factory=list)
    between: Body = field(default_factory=list)
    marks: tuple[tuple[str, str], ...] = ()
    begins: str = ""
    prefetches: Body = field(default_factory=list)
    values: tuple[str, ...] = ()


@dataclass(eq=False)
class Begin(Node):
    """Begin the work on a vertex or edge, `entity` "v" or "e": it is ``alive``.

    Current entries of the properties `names` are first copied to their next ones. A
    vertex for which the test `leaves` holds is not alive, and so gathers nothing.
    """

    names: tuple[str, ...]
    entity: str = "v"
    leaves: ast.expr | None = None


@dataclass(eq=False)
class Run(Node):
    """Call a vertex or edge function; its verdict, a bool, becomes ``alive``."""

    function: str


@dataclass(eq=False)
class Then(Node):
    """Run `body` for vertices, or edges, that are ``alive``."""

    body: Body


@dataclass(eq=False)
class Ordered(Node):
    """Make writes visible to all lanes that share the vertex or edge: a barrier."""

    entity: str = "v"


@dataclass(eq=False)
class Mark(Node):
    """Run `passed` for an edge that ends ``alive``, and `stopped` for any other."""

    passed: Body
    stopped: Body = field(default_factory=list)


@dataclass(eq=False)
class Restore(Node):
    """Reset next entries of `names` to current ones where the last verdict is False."""

    names: tuple[str, ...]
    entity: str = "v"


@dataclass(eq=False)
class ForEdges(Node):
    """Run `body` for each edge of a vertex.

    Attributes
    ----------
    vertex : str
        Variable of the vertex, "u" or "v".
    part : str
        Part of its row: see `AdjacencyLayout`.
    summed : tuple of str
        Accumulators that are summed in blocks of edges, which bounds rounding errors.
    prefix : str
        Prefix of the names of these accumulators.
    behind : body
        Statements behind all edges, or behind each block of edges.
    along : str
        Direction of the edges, where it is not that of the phase.
    """

    vertex: str
    body: Body
    part: str = ""
    summed: tuple[str, ...] = ()
    prefix: str = ""
    behind: Body = field(default_factory=list)
    along: str = ""


@dataclass(eq=False)
class Degree(Node):
    """Bind `name` to the degree of a vertex."""

    vertex: str
    name: str


@dataclass(eq=False)
class AllEdges(Node):
    """Run `first`, then `behind`, for each edge of the graph, in any order.

    A lane has several edges in flight: it runs `first` for all of them, then `behind`
    for all of them. `first` binds the variables `names`, which `behind` reads.
    """

    vertex: str
    first: Body
    behind: Body
    names: tuple[str, ...]


def is_seldom(node: ForEdges) -> bool:
    """Return whether the loop body ends with a branch that few edges take."""
    last = node.body[-1]
    return isinstance(last, Only) and last.seldom


@dataclass(eq=False)
class Pull(Node):
    """Run edge functions on an in-edge whose source is in their active set.

    `is_read` is set if the gathers of the same edge read entries that they write.
    """

    functions: tuple[str, ...]
    is_read: bool = False


@dataclass(eq=False)
class Passed(Node):
    """For an edge that is ``alive``, set ``edge_passed`` of its vertex and run `body`.

    `prefix` is the prefix of the flag's name.
    """

    body: Body = field(default_factory=list)
    prefix: str = ""


@dataclass(eq=False)
class FindDue(Node):
    """Set ``alive``: whether a vertex is due already, or by a pulled edge that passed.

    ``is_target`` is set for vertices with an edge that passed.
    """


@dataclass(eq=False)
class Reached(Node):
    """Set ``is_reached`` of a vertex: the source of one of its edges is active."""


@dataclass(eq=False)
class Gathers(Node):
    """Run gathers in one walk over edges; accumulators have names with `prefix`."""

    functions: tuple[str, ...]
    edges: ForEdges
    prefix: str = ""


@dataclass(eq=False)
class Incremental(Node):
    """Patch aggregates that stay in memory, or recompute them.

    `patch` walks over the edges from changed sources. Where a patch would be less exact
    than recomputing, `anew` walks over all edges. Functions that are not in `patched`
    read nothing that changes, so that their aggregates need no patch.
    """

    functions: tuple[str, ...]
    patched: tuple[str, ...]
    patch: ForEdges
    anew: Body


@dataclass(eq=False)
class Only(Node):
    """Run `body` for edges for which `test` holds; `seldom`: these are few."""

    test: ast.expr
    body: Body
    seldom: bool = False


@dataclass(eq=False)
class Ahead(Node):
    """Issue `loads` of an edge and run `pulled`, before the stores of earlier edges.

    The test of `pulled` always holds if the test `where` does. `names` are the
    variables that later statements of the edge read.
    """

    loads: Body
    pulled: Only
    where: str
    names: tuple[str, ...]


@dataclass(eq=False)
class Stop(Node):
    """End a walk over edges once the accumulators of `functions` are final.

    A lane leaves its loop (`leaves`), or sets ``all_found`` only, so that all lanes of
    the vertex leave the loop together.
    """

    functions: tuple[str, ...]
    leaves: bool = True


@dataclass(eq=False)
class FromMemory(Node):
    """Load the value that an earlier phase gathered for a vertex."""

    of: str


@dataclass(eq=False)
class ToMemory(Node):
    """Store a gathered value, for all lanes that share the vertex."""

    of: str


@dataclass(eq=False)
class Start(Node):
    """Set an accumulator, perhaps with a `prefix`, to the identity of its combine."""

    of: str
    prefix: str = ""


@dataclass(eq=False)
class Contribute(Node):
    """Call a gather or reduce, and combine its value into the lane's accumulator."""

    function: str
    prefix: str = ""


@dataclass(eq=False)
class Stage(Node):
    """Copy the factors of an edge's product to shared memory, by the lane of the edge.

    Attributes
    ----------
    number : int
        Number of the edge among those that the lane has in flight.
    mask : str
        Flag that the edge contributes.
    """

    function: str
    number: int
    mask: str = ""


@dataclass(eq=False)
class AddStaged(Node):
    """Add the products of all staged edges, distributed over the lanes of a vertex."""

    function: str


@dataclass(eq=False)
class Settle(Node):
    """Move the combined contributions of an edge loop to their accumulator."""

    of: str
    prefix: str = ""


@dataclass(eq=False)
class Finish(Node):
    """Convert a complete accumulator to the form in which functions read it."""

    of: str


@dataclass(eq=False)
class Push(Node):
    """Call a gather, and combine its value in memory at the target by an atomic."""

    function: str


@dataclass(eq=False)
class Patch(Node):
    """Add the new contribution of an edge to an aggregate, and remove the old one."""

    function: str


@dataclass(eq=False)
class Intersect(Node):
    """Run `body` for each triangle: the rows of two neighbors have a common member.

    Its corners are ``u``, ``v`` and ``w`` in degree order, and its edges ``e_uv``,
    ``e_uw`` and ``e_vw``.

    Attributes
    ----------
    may_wait : tuple of str
        Corners and edges whose sums may be accumulated over several triangles before
        they are added to memory.
    within : str
        Boolean edge property that must hold for all three edges; "" for none.
    of_passed : bool
        Whether one of the three edges must have passed.
    """

    body: Body
    may_wait: tuple[str, ...] = ()
    within: str = ""
    of_passed: bool = False


@dataclass(eq=False)
class Triangle(Node):
    """Call a triangle function, and add its results to memory or to sums of `Waits`."""

    function: str


# Nodes that passes and schedules add: lanes, registers and memory. Tests on vertices
# and edges are statements of Python by then.


@dataclass(eq=False)
class Areas(Node):
    """Declare the arrays that lanes work in, and load matrices that vertices share."""


@dataclass(eq=False)
class Waits(Node):
    """Accumulate additions at corners and edges `at` of triangles during `body`.

    The sums are in registers, and are added to memory behind the body, once for all
    lanes of a `scope`. With an `index` they are entries of the arrays of `Places`, and
    `FromPlace` adds them to memory.
    """

    at: tuple[str, ...]
    body: Body
    scope: str = "edge"
    index: str = ""


@dataclass(eq=False)
class Places(Node):
    """Declare arrays of sums, one entry for each member of a row (`at`: its roles).

    They have `size` entries (CPU), or ``place_count``: as many as fit `size_bytes` of
    shared memory together (GPU).
    """

    at: tuple[str, ...]
    size: str = ""
    size_bytes: int = 0


@dataclass(eq=False)
class FromPlace(Node):
    """Add entry `index` of the arrays of `Places` to memory, at its corner and edge.

    `place` is the position in the adjacency of the member that the entry belongs to.
    """

    at: tuple[str, ...]
    index: str
    place: str


@dataclass(eq=False)
class Meet(Node):
    """Synchronize the lanes of a scope, "edge", "vertex", "partial" or "row".

    Attributes
    ----------
    what : str
        - "sync": a barrier; each lane sees the writes of the others.
        - "any", "all": a vote on a flag.
        - "sum": sums of numbers over the lanes.
        - "combine": the combined accumulators of the lanes, in each of them.
        - "collect": the same, stored as a row of partial results of a reduce.
        - "rows": the edges of a round combined row by row (segmented scan).
        - "row": the values of all lanes combined in the lanes of one row.
    names : tuple of str
        - "any", "all": the flag, and for "any" the variable of the result.
        - "sum": the numbers.
        - "combine": accumulator, and its prefix; "collect": accumulator.
        - "rows": accumulator, its prefix, the prefix of the round's value, and the
          number of the edge among those in flight.
        - "row": accumulator, its prefix, and the prefix of each edge in flight.
    """

    what: str
    scope: str
    names: tuple[str, ...] = ()


@dataclass(eq=False)
class Called(Node):
    """Call a function that contains shuffles, in all lanes of the warp.

    Only results of lanes for which `mask` holds are used. With `was_seen` an
    incremental gather is called on the values of its last update.
    """

    function: str
    mask: str
    into: str
    was_seen: bool = False


@dataclass(eq=False)
class Verdict(Node):
    """Call a function in lanes for which `mask` holds; `target` is its verdict.

    In other lanes `target` is False.
    """

    target: str
    function: str
    mask: str = ""


@dataclass(eq=False)
class Copy(Node):
    """Copy current entries of `entity` to next ones, or back if it `commits`."""

    names: tuple[str, ...]
    entity: str
    commits: bool = False


@dataclass(eq=False)
class Share(Node):
    """Broadcast single entries of gathered rows from the lanes that have them."""

    functions: tuple[str, ...]


@dataclass(eq=False)
class BeginPatch(Node):
    """Load an aggregate that needs no patch, or initialize the change to add to it."""

    function: str


@dataclass(eq=False)
class FinishPatch(Node):
    """Add the combined patches to the aggregate, if that is as exact as recomputing."""

    function: str


@dataclass(eq=False)
class Select(Node):
    """Select the accumulator with `prefix` where the aggregate cannot be patched."""

    of: str
    prefix: str


@dataclass(eq=False)
class PutBy(Node):
    """Add the sums of a block to the partial sums of earlier blocks."""

    names: tuple[str, ...]
    prefix: str = ""


@dataclass(eq=False)
class AddUp(Node):
    """Add the partial sums of all earlier blocks to the sums of the last block."""

    names: tuple[str, ...]
    prefix: str = ""


@dataclass(eq=False)
class FromRow(Node):
    """Load the lane's features of row `index` of `array` into variables `name`.

    A load takes `at_once` features.
    """

    name: str
    array: str
    index: str
    at_once: int = 1


@dataclass(eq=False)
class ToRow(Node):
    """Store variables `name`, the lane's features of a row: parameters of `FromRow`."""

    name: str
    array: str
    index: str
    at_once: int = 1


@dataclass(eq=False)
class Returned(Node):
    """Bind variables `name` to the lane's features of a row that a function returned.

    ``result`` has the verdict, then the rows; `number` counts these from 0.
    """

    name: str
    number: int


@dataclass(frozen=True)
class RowLoad:
    """A row of an array of which a lane loads several features at once.

    Attributes
    ----------
    name : str
        Name in a leaf: ``name[f]`` is feature f.
    array, index : str
        Array and index of the row; "" if it is in registers already.
    """

    name: str
    array: str = ""
    index: str = ""


@dataclass(eq=False)
class Features(Node):
    """Run `body` for each feature of a lane.

    Attributes
    ----------
    shape : str
        - "one": once, there are no features.
        - "wide": for each of K features.
        - "matrix": for each of K x K elements of a matrix in memory.
        - "elements": for each element of a matrix in registers of the lane.
        - "lower": for those of them that are not above the diagonal.
        - "element": for the element that the loops around have reached.
    rows : tuple of RowLoad
        Vector loads in front of the body; for a matrix, along i.
    guarded : bool
        Whether lanes without a feature of their own must not run the body.
    drops : bool
        Whether values loaded from the padding of a row are harmless, and so are not
        replaced by the lane's valid ones.
    """

    shape: str
    body: Body
    rows: tuple[RowLoad, ...] = ()
    guarded: bool = False
    drops: bool = False


@dataclass(eq=False)
class AnyFeature(Node):
    """Bind `target` to whether `value` holds for any feature of the lane, under `mask`.

    `rows` are vector loads, as of `Features`.
    """

    target: str
    value: ast.expr
    mask: str = ""
    rows: tuple[RowLoad, ...] = ()


@dataclass(eq=False)
class AllFound(Node):
    """Bind ``all_found`` to whether all `tests` hold for all features of the lane."""

    tests: list[ast.expr]


@dataclass(eq=False)
class Comment(Node):
    """Print `text` as a comment on a line of its own."""

    text: str
