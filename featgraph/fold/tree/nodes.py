"""Nodes of a loop nest: what a kernel does, and what a schedule has made of it.

Functions and what they fill stand there by name. A leaf is a Python statement for one
feature, ``aggr[f] += weigh(f, u, v, e, d)``: there ``x[f]`` is feature f of what a lane
has, and ``*x`` all that it has; j is the number of f among these. ``x[i, f]`` is an
element of a matrix. `Features` has the features for which it runs.
"""

from __future__ import annotations

import ast
from enum import Enum

from featgraph.base.dataclass import dataclass, field
from featgraph.fold.tree.statements import Body, Node


class Target(Enum):
    """Where a kernel runs."""

    CPU = "cpu"
    CUDA = "cuda"

    @property
    def intrinsics(self) -> str:
        """The module of `featgraph.device` with atomics, bits and shuffles."""
        return "warp" if self is Target.CUDA else "cpu"


# Nodes of a phase before it is mapped: no lane, no place in memory and no copy of a
# feature stands here.


@dataclass(eq=False)
class Sweep(Node):
    """`body` for each vertex of the set `words`, or for all where that is "".

    `wanted` is what the test is called, that a lane's vertex is one of them. `behind`
    follows on all of a reduce, or on each block of it where sums are cut into these;
    then `between` stands behind all blocks but the last, and in front of each block
    that leaves a row of its own. Each of `marks` is a flag and
    a set: where the flag holds behind the body, the vertex joins the set. `begins` is
    what such a set has before, and is passed over; "" where that stands in it. A sweep
    of edges in an order has `prefetches` of entries that are read soon, and properties
    whose `values` are taken from copies in that order.
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
    """A vertex or edge is swept, `entity` "v" or "e".

    Next entries of `names` are copied before any is written. Where `leaves` holds, it
    ends before anything is gathered.
    """

    names: tuple[str, ...]
    entity: str = "v"
    leaves: ast.expr | None = None


@dataclass(eq=False)
class Run(Node):
    """A vertex or edge function runs; ``alive`` is its verdict."""

    function: str


@dataclass(eq=False)
class Then(Node):
    """`body` for vertices, or edges, that are ``alive``."""

    body: Body


@dataclass(eq=False)
class Ordered(Node):
    """A barrier: writes become visible to all lanes that share the vertex or edge."""

    entity: str = "v"


@dataclass(eq=False)
class Mark(Node):
    """`passed` for an edge that ends ``alive``, `stopped` for one that does not."""

    passed: Body
    stopped: Body = field(default_factory=list)


@dataclass(eq=False)
class Restore(Node):
    """Next entries of `names` are put back where the last verdict is False."""

    names: tuple[str, ...]
    entity: str = "v"


@dataclass(eq=False)
class ForEdges(Node):
    """`body` for each edge of a vertex, or of the part of its row that `part` names.

    Sums of real numbers, `summed`, may be taken in blocks; `prefix` is that of their
    accumulators. `behind` follows on all edges, or on each block of them. `along`
    holds where the edges are not those of the rows that all else goes along.
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
    """`name` is how many edges a vertex has."""

    vertex: str
    name: str


@dataclass(eq=False)
class AllEdges(Node):
    """`first` for each edge of the graph, in any order, then `behind`.

    That is for several edges at a time; `first` leaves `names` for `behind`.
    """

    vertex: str
    first: Body
    behind: Body
    names: tuple[str, ...]


def is_seldom(node: ForEdges) -> bool:
    """Whether the body of a loop over edges ends with a branch that few edges take."""
    last = node.body[-1]
    return isinstance(last, Only) and last.seldom


@dataclass(eq=False)
class Pull(Node):
    """Edge functions run on an edge whose source is one of theirs.

    `is_read` holds where what follows on the same edge reads what they write.
    """

    functions: tuple[str, ...]
    is_read: bool = False


@dataclass(eq=False)
class Passed(Node):
    """Where an edge is ``alive``, ``edge_passed`` of its vertex holds; and `body`.

    `prefix` is that of the flag.
    """

    body: Body = field(default_factory=list)
    prefix: str = ""


@dataclass(eq=False)
class FindDue(Node):
    """Behind pulled edges, a vertex is ``alive`` if it is due, by one of them or not.

    ``is_target`` holds for the vertices that edges have found.
    """


@dataclass(eq=False)
class Reached(Node):
    """The source of an edge is active: ``is_reached`` of its vertex holds."""


@dataclass(eq=False)
class Gathers(Node):
    """Gathers that share a pass over edges; `prefix` is that of what they fill."""

    functions: tuple[str, ...]
    edges: ForEdges
    prefix: str = ""


@dataclass(eq=False)
class Incremental(Node):
    """Aggregates stay in memory: `patch` goes over edges whose sources changed.

    Where that does not do, `anew` goes over all. Functions that `patched` leaves out
    read nothing that changes.
    """

    functions: tuple[str, ...]
    patched: tuple[str, ...]
    patch: ForEdges
    anew: Body


@dataclass(eq=False)
class Only(Node):
    """`body` for edges for which `test` holds, which are few where `seldom` is set."""

    test: ast.expr
    body: Body
    seldom: bool = False


@dataclass(eq=False)
class Ahead(Node):
    """Loads and functions of an edge, before what follows is done for an earlier one.

    The test of `pulled` is known to hold where `where` does. They leave `names`.
    """

    loads: Body
    pulled: Only
    where: str
    names: tuple[str, ...]


@dataclass(eq=False)
class Stop(Node):
    """No edge that follows changes what `functions` fill.

    A lane leaves its loop then; or ``all_found`` is set, and lanes leave it together.
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
    """A gather or reduce combines what is contributed into what a lane has."""

    function: str
    prefix: str = ""


@dataclass(eq=False)
class Stage(Node):
    """A lane brings the factors of what a product of an edge contributes.

    Attributes
    ----------
    number : int
        Which of the edges it is that the lane has on the way.
    mask : str
        Whether the edge contributes at all.
    """

    function: str
    number: int
    mask: str = ""


@dataclass(eq=False)
class AddStaged(Node):
    """The lanes of a vertex add the products of all edges that are on the way."""

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
    """A gather combines it into memory of the edge's end, with an atomic."""

    function: str


@dataclass(eq=False)
class Patch(Node):
    """A kept gather takes what an edge contributes, and takes out what it did."""

    function: str


@dataclass(eq=False)
class Intersect(Node):
    """`body` for each triangle: where the rows of two neighbors have one in common.

    By degree its corners are ``u``, ``v`` and ``w``, and its edges ``e_uv``, ``e_uw``
    and ``e_vw``. All of these have the property `within`; where `of_passed` is set, one
    has passed. What is added at corners and edges `may_wait` need not go to memory for
    each triangle.
    """

    body: Body
    may_wait: tuple[str, ...] = ()
    within: str = ""
    of_passed: bool = False


@dataclass(eq=False)
class Triangle(Node):
    """A triangle function runs; what it adds goes to memory, or to where it waits."""

    function: str


# Nodes behind a schedule: no test on a vertex or an edge but those of Python.


@dataclass(eq=False)
class Areas(Node):
    """Memory that lanes work in is declared, and matrices are brought to hand."""


@dataclass(eq=False)
class Waits(Node):
    """Accumulate additions at corners and edges `at` of triangles during `body`.

    The sums are in registers, and are added to memory behind the body, once for all
    lanes of a `scope`. With an `index` they are in `Places`, which `FromPlace` reads.
    """

    at: tuple[str, ...]
    body: Body
    scope: str = "edge"
    index: str = ""


@dataclass(eq=False)
class Places(Node):
    """Arrays for what is added at members of a row, which are corners and edges `at`.

    They have `size` places, or as many as fit `size_bytes` of shared memory together,
    ``place_count``.
    """

    at: tuple[str, ...]
    size: str = ""
    size_bytes: int = 0


@dataclass(eq=False)
class FromPlace(Node):
    """Add the sums at `index` of `Places` to memory, for the corner and edge there.

    `place` is that of the member in its row.
    """

    at: tuple[str, ...]
    index: str
    place: str


@dataclass(eq=False)
class Meet(Node):
    """Lanes of a scope, "edge", "vertex", "partial" or "row", meet.

    Attributes
    ----------
    what : str
        "sync", so that each sees what others have written; "any" or "all" of a flag;
        "sum" of numbers; "combine" of what each has accumulated; "collect", where that
        is stored as a part of a reduce; "rows", of what lanes that go together have of
        each row in a round; "row", of what all have of one row.
    names : tuple of str
        The flag and the name of the result, or what is combined and its prefix; for
        rows also the prefix of what the round has, and which of its edges that is; for
        a row those of what each of a lane's edges on the way has filled.
    """

    what: str
    scope: str
    names: tuple[str, ...] = ()


@dataclass(eq=False)
class Called(Node):
    """All lanes call a function that makes shuffles; the calls under `mask` count.

    Where `was_seen` is set, a kept gather is called as it was.
    """

    function: str
    mask: str
    into: str
    was_seen: bool = False


@dataclass(eq=False)
class Verdict(Node):
    """`target` is the verdict of a function, by a lane for which `mask` holds."""

    target: str
    function: str
    mask: str = ""


@dataclass(eq=False)
class Copy(Node):
    """Entries of `entity` go from one buffer to the other; a commit goes back."""

    names: tuple[str, ...]
    entity: str
    commits: bool = False


@dataclass(eq=False)
class Share(Node):
    """All lanes get the single entries of what `functions` have filled."""

    functions: tuple[str, ...]


@dataclass(eq=False)
class BeginPatch(Node):
    """A kept aggregate is at hand, or what will be added to it."""

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
    """The sums of a block join those of the blocks before it."""

    names: tuple[str, ...]
    prefix: str = ""


@dataclass(eq=False)
class AddUp(Node):
    """The sums of all earlier blocks are added to those of the last."""

    names: tuple[str, ...]
    prefix: str = ""


@dataclass(eq=False)
class FromRow(Node):
    """All that a lane has of a row is loaded as `name`, `at_once` features at a time.

    The row stands at `index` of `array`.
    """

    name: str
    array: str
    index: str
    at_once: int = 1


@dataclass(eq=False)
class ToRow(Node):
    """All that a lane has of a row, as `name`, is stored; as for `FromRow`."""

    name: str
    array: str
    index: str
    at_once: int = 1


@dataclass(eq=False)
class Returned(Node):
    """A function has returned all that a lane has of a row, as `name`.

    It is the row `number`, from 0, behind the verdict in ``result``.
    """

    name: str
    number: int


@dataclass(frozen=True)
class RowLoad:
    """A row of an array of which a lane loads several features at once.

    Attributes
    ----------
    name : str
        What its features are called in a leaf, ``name[f]``.
    array, index : str
        Where it stands; "" where it is in registers already.
    """

    name: str
    array: str = ""
    index: str = ""


@dataclass(eq=False)
class Features(Node):
    """`body` for each feature that a lane has.

    Attributes
    ----------
    shape : str
        "one": there are no features; "wide": each of K; "matrix": each of K x K in
        memory; "elements": each that a lane has in registers; "lower": those of them
        that are not above the diagonal; "element": the one that it has come to.
    rows : tuple of RowLoad
        Loaded in front, for as many features as a load takes; of a matrix along i.
    guarded : bool
        Whether lanes without a feature of their own must be kept out.
    drops : bool
        Whether what is loaded behind a row does no harm, and need not be replaced.
    """

    shape: str
    body: Body
    rows: tuple[RowLoad, ...] = ()
    guarded: bool = False
    drops: bool = False


@dataclass(eq=False)
class AnyFeature(Node):
    """`target` is whether `value` holds for a feature, of lanes for which `mask` does.

    `rows` are loaded as for `Features`.
    """

    target: str
    value: ast.expr
    mask: str = ""
    rows: tuple[RowLoad, ...] = ()


@dataclass(eq=False)
class AllFound(Node):
    """``all_found`` is whether all `tests` hold, for all features."""

    tests: list[ast.expr]


@dataclass(eq=False)
class Comment(Node):
    """A line of its own."""

    text: str
