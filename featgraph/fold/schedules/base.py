"""What a schedule is: data that passes ask for, and the loop over vertices.

No pass knows a schedule's name. What lanes share, which features and edges a lane has,
and how lanes meet, stands in the `Binding`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Mapping as Dict
from typing import Any, ClassVar

from featgraph.base.dataclass import dataclass
from featgraph.fold.schedules import grids
from featgraph.fold.schedules.grids import LaunchSizes, bounded, resident_blocks
from featgraph.fold.schedules.mapping import Mapping, Work, last_feature, stands_for
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, code, copied, when

__all__ = [
    "AnyInteger",
    "Binding",
    "BlockScope",
    "FeatureAxis",
    "GraphArray",
    "KernelShape",
    "Schedule",
    "Scope",
    "in_blocks",
    "in_strides",
    "strides_together",
]


@dataclass(frozen=True)
class KernelShape:
    """What a schedule is told of a kernel.

    Attributes
    ----------
    spreads : bool
        Whether vertices that pass have their neighbors run in the same superstep.
    width : int
        K of its functions.
    pulls : bool
        Whether the vertices of its phase are computed along their own rows.
    reduces : bool
        Whether its phase combines over all vertices.
    form : str
        How few vertices are found: "plain", "packed" or "listed"; on the CPU, the words
        of a set may be listed.
    threads : int
        Of a block.
    covers : bool
        Whether the grid has a place for each vertex, so that none goes round.
    names_features : bool
        Whether some function is called once for each feature.
    vertex_count : str
        Text of the number of vertices.
    place_type, number_type : str
        Types of places in rows, and of numbers of edges; "" where Python's will do.
    """

    width: int
    pulls: bool = False
    reduces: bool = False
    spreads: bool = False
    form: str = "plain"
    threads: int = 0
    covers: bool = False
    names_features: bool = True
    vertex_count: str = "vertex_count"
    place_type: str = ""
    number_type: str = ""


@dataclass(frozen=True)
class FeatureAxis:
    """Which features a lane has: some of K as named copies, or all in loops.

    Attributes
    ----------
    width : int
        K.
    lanes : int
        Lanes that share the features of an edge.
    per_lane : int
        Features that a lane has; lane l has ``l * per_lane`` and following.
    vector_width : int
        Features of a row that are loaded at once.
    stride : int
        Elements from one such row to the next.
    column_width : int
        The same, where a lane goes along a column of a matrix.
    is_looped : bool
        Whether features are loops over small arrays.
    is_element : bool
        Whether a lane has one element of a matrix at a time: that in row ``i``.
    are_values : bool
        Whether a feature is a value with a name of its own, not a number.
    are_passed_as_values : bool
        The same, but in calls alone.
    any_width : str
        Text that K is read from, where a kernel serves any.
    """

    width: int
    lanes: int = 1
    per_lane: int = 1
    vector_width: int = 1
    stride: int = 1
    column_width: int = 1
    is_looped: bool = False
    is_element: bool = False
    are_values: bool = False
    are_passed_as_values: bool = False
    any_width: str = ""

    @property
    def count(self) -> str:
        """Text of K."""
        return self.any_width or str(self.width)

    @property
    def is_padded(self) -> bool:
        """Whether some lanes have no feature of their own."""
        return self.lanes > 1 and self.lanes * self.per_lane != self.width

    def feature(self, j: int) -> str:
        """Return what feature j of a lane is called in an index."""
        if not self.are_values:
            return str(j)
        return "f" if self.per_lane == 1 else f"f_{j}"

    def argument(self, j: int) -> str:
        """Return what feature j of a lane is called in a call."""
        return f"f_{j}" if self.are_passed_as_values else self.feature(j)

    def inside(self, j: int) -> str:
        """Return the test that a lane has a feature j; "" where all do."""
        if not self.is_padded:
            return ""
        return "inside" if self.per_lane == 1 else f"inside_{j}"

    def instead(self, j: int) -> int | None:
        """Return which feature of a lane it takes for j where the row has ended.

        None for a feature that is there wherever what is loaded with it is.
        """
        if not self.is_padded:
            return None
        return stands_for(self.width, self.vector_width, j)

    def name(self, base: str, j: int) -> str:
        """Return what feature j is called of what a lane has."""
        return f"{base}_{j}" if self.per_lane > 1 else base

    def names(self, base: str) -> list[str]:
        """Return all names of what a lane has."""
        count = 1 if self.is_looped else self.per_lane
        return [self.name(base, j) for j in range(count)] if count > 1 else [base]

    @property
    def along_column(self) -> FeatureAxis:
        """The features that a lane goes through along a column of a matrix: all."""
        width = self.width
        return FeatureAxis(
            width, per_lane=width, vector_width=self.column_width, stride=self.stride
        )

    def elements(self, is_lower: bool = False) -> list[tuple[int, int]]:
        """Return row, and number of the lane's column, of elements in registers."""
        columns = range(self.per_lane)
        pairs = ((i, j) for i in range(self.width) for j in columns)
        return [(i, j) for i, j in pairs if j <= i or not is_lower]

    def element(self, base: str, i: int, j: int) -> str:
        """Return what an element of a matrix is called that a lane has."""
        return self.name(f"{base}_{i}", j)

    def front(self) -> Body:
        """Return what names the features of a lane."""
        out: Body = []
        count = self.per_lane
        for j in range(count if self.are_values else 0):
            more = f" + {j}" if j else ""
            own = "lane" if count == 1 else f"lane * {count}{more}"
            if self.is_padded:
                out += code(f"{self.inside(j)} = {own} < {self.width}")
                # Lanes beyond the row repeat its last load.
                last = last_feature(self.width, self.vector_width, j)
                own = f"min({own}, {last})"
            out += code(f"{self.feature(j)} = {own}")
        return out


@dataclass(frozen=True)
class Scope:
    """Lanes that share something, and how they meet; one lane is alone.

    Attributes
    ----------
    lanes : int
        How many they are.
    company : str
        Which lanes have to come along where they meet: shuffles take a whole warp.
    """

    lanes: int = 1
    company: str = "warp"

    def sync(self) -> Body:
        """Let each lane see what the others have written."""
        return code("warp.sync()") if self.lanes > 1 else []

    def any(self, flag: str, into: str) -> Body:
        """Set `into` to whether some lane has `flag`."""
        shared = f"warp.group_any({flag}, {self.lanes})"
        return code(f"{into} = {shared if self.lanes > 1 else flag}")

    def all(self, flag: str) -> Body:
        """Set `flag` to whether all lanes have it."""
        shared = f"{flag} = warp.group_all({flag}, {self.lanes})"
        return code(shared) if self.lanes > 1 else []

    def sum(self, names: tuple[str, ...]) -> Body:
        """Set each of some names to the sum of what all lanes have by it."""
        out: Body = []
        for name in names if self.lanes > 1 else ():
            out += code(f"{name} = warp.group_sum({name}, {self.lanes})")
        return out


class BlockScope(Scope):
    """The threads of a block, which meet at its barrier."""

    def sync(self) -> Body:
        """Let each thread see what the others have written."""
        return code("cuda.syncthreads()")

    def any(self, flag: str, into: str) -> Body:
        """Set `into` to whether some thread has `flag`."""
        return code(f"{into} = cuda.syncthreads_or(int32({flag})) != 0")

    def all(self, flag: str) -> Body:
        """Set `flag` to whether all threads have it."""
        return code(f"{flag} = cuda.syncthreads_or(int32(not {flag})) == 0")


@dataclass(frozen=True)
class Binding:
    """All that passes may ask of a schedule.

    Attributes
    ----------
    meets : bool
        Whether lanes share a vertex, so that none leaves early.
    features : FeatureAxis
        Which features a lane has.
    walk : Walk
        How it goes through the edges of its vertex, where its way is its own.
    together : Walk or None
        How lanes of a warp go through the edges of all their vertices, side by side;
        None where each keeps to its own.
    scopes : mapping
        "edge", "vertex", "partial" and, where lanes go together, "row" -> the lanes
        that share one.
    own : str
        Test that a vertex is not left to another kernel; "" where none is.
    uninvited : bool
        Whether lanes come along whose vertex is not of the set that is swept.
    block : int
        Terms of a sum that a lane adds up one after the other; 0 for all.
    leaves_early : bool
        Whether a lane may end a vertex before it gathers anything.
    partial : str
        Number of the part of all vertices that a reduce comes to here.
    leaves : str
        Test that a lane has such a part; "" where all have.
    batch : int
        Vertices that all lanes of a block take together, one after the other; 0 where
        each lane has its own.
    row_shares : int
        Of a batch, the lanes that add up a share of its rows each.
    in_rows : bool
        Whether what gathers fill is in rows of memory until all have contributed.
    at_vertices : bool
        Whether it is in memory of all vertices until then, which threads share.
    runs : str
        Test that a warp runs vertex functions; "" where all do.
    part : tuple of str
        Names of the bounds of the part of a row that is gone through, counted from
        where the row begins; none where all of it is.
    joins : bool
        Whether the last of the blocks that have gone through the parts of a row goes
        on with what all have come to.
    vertices : int
        Vertices of a reduce that a lane has on the way at a time.
    turns : str
        Of exclusive functions, what threads share in a turn: "chunks" of the order
        (CPU), "edges", or "tasks" of several; "" elsewhere.
    holds : bool
        Of exclusive functions, whether an edge runs where ``held`` says so.
    """

    meets: bool
    features: FeatureAxis
    walk: Walk
    scopes: Dict[str, Scope]
    own: str = ""
    uninvited: bool = False
    block: int = 0
    leaves_early: bool = False
    partial: str = "cuda.blockIdx.x"
    leaves: str = ""
    together: Walk | None = None
    in_rows: bool = False
    batch: int = 0
    row_shares: int = 1
    at_vertices: bool = False
    runs: str = ""
    part: tuple[str, ...] = ()
    joins: bool = False
    vertices: int = 1
    turns: str = ""
    holds: bool = False

    def one(self, *shared: str) -> list[str]:
        """Return the tests that let one lane through, of those that share a thing."""
        lanes, tests = self.features.lanes, []
        if "vertex" in shared and self.walk.own:
            tests.append(f"{self.walk.own} == 0")
        if "edge" in shared and lanes > 1:
            tests.append("lane == 0")
        return tests


@dataclass(frozen=True)
class GraphArray:
    """An array of the graph by which threads come to what they sweep.

    Attributes
    ----------
    name : str
        The argument of the kernel.
    array : str
        The name of the array in the graph; in braces, a list of `Rows` that the rows of
        the phase have. "" for an array that is made at the launch, or prepared.
    each : int
        Its entries for each thing that it lists.
    dtype : str
        Of an array that `Schedule.prepare` makes, "offset" for numbers of edges; "" for
        every other one.
    """

    name: str
    array: str = ""
    each: int = 1
    dtype: str = ""


@dataclass(frozen=True)
class AnyInteger:
    """The values of an option of which another one compiles nothing.

    Attributes
    ----------
    default, least : int
        What stands for none, and the smallest that may be given.
    is_launched : bool
        Whether kernels take it as an argument.
    is_prepared : bool
        Whether prepared arrays depend on it.
    """

    default: int = 0
    least: int = 0
    is_launched: bool = True
    is_prepared: bool = False

    def __contains__(self, value: object) -> bool:
        return type(value) is int and self.least <= value < 1 << 63

    def __str__(self) -> str:
        return f"an integer, {self.least} or more"


class Schedule(ABC):
    """How vertices, edges and features go to threads.

    Attributes
    ----------
    name : str
        As it is asked for.
    is_asked_for : bool
        Whether it may be; that of the CPU has no other beside it.
    targets : tuple of str
        Where it can run.
    runs : str
        The attribute of a `FunctionKind` without which it runs nothing; "" for none.
    shares_features : bool or None
        Whether lanes share the features of an edge (FA); None where there are none.
    options : mapping
        Options of its own -> the values that they take.
    seed : str
        That of its options from which an order is drawn, if any.
    needs_sides : bool
        Whether each edge has to lead from the first of two sides to the second.
    fitting : int
        Blocks that must fit a multiprocessor, however few of them a grid has: what
        bounds registers.
    holds : bool
        Whether locks keep edges of exclusive functions apart.
    copies_columns : bool
        Whether it makes copies of properties of edges.
    forms : tuple of str
        Forms beside the plain one in which its kernels come to the vertices of a set.
    modules : tuple of str
        Modules of `featgraph.device` that its kernels call, beside ``warp``.
    hubs : str
        The schedule to which it leaves vertices of high degree, or long rows.
    joins, parts : str
        The same where several blocks take a row, and the last one goes on; and where
        they need not meet.
    most_held : int
        K of the largest matrices whose elements one thread holds in registers, and in
        which it solves systems there.
    finds_due : bool
        Whether its kernels can find which of the vertices that they sweep are due: a
        lane goes through edges of its own vertex alone.
    """

    name: ClassVar[str]
    is_asked_for: ClassVar[bool] = True
    targets: ClassVar[tuple[str, ...]] = ("cuda",)
    runs: ClassVar[str] = ""
    shares_features: ClassVar[bool | None] = True
    options: ClassVar[Dict[str, tuple[int, ...] | AnyInteger]] = {}
    seed: ClassVar[str] = ""
    needs_sides: ClassVar[bool] = False
    fitting: ClassVar[int] = 0
    holds: ClassVar[bool] = False
    copies_columns: ClassVar[bool] = False
    forms: ClassVar[tuple[str, ...]] = ("packed", "listed")
    modules: ClassVar[tuple[str, ...]] = ()
    hubs: ClassVar[str] = "block"
    joins: ClassVar[str] = "block_joins"
    parts: ClassVar[str] = "block_parts"
    most_held: ClassVar[int] = 0
    finds_due: ClassVar[bool] = False

    def check(self, given: Dict[str, int]) -> None:
        """Refuse options of its own without which, or with which, it cannot do."""
        return  # most do with any

    def cost(self, work: Work) -> float:
        """Return the time that a phase takes in it, as a share of that of lanes.

        Of exclusive functions it is in ms (`exclusive_costs`).
        It is infinite where the schedule cannot run the phase, does not pay, or is for
        those who ask for it.
        """
        return math.inf

    def choose(self, mapping: Mapping, work: Work, given: Dict[str, int]) -> Mapping:
        """Return how it maps a phase that lanes map so; `given` are its own options.

        Raises
        ------
        PlanError
            If it cannot run the phase.
        """
        return mapping

    def tune(self, mapping: Mapping, work: Work) -> Mapping:
        """Return its mapping of a phase, with what suits the registers (CUDA)."""
        return bounded(mapping, resident_blocks(mapping, work))

    def around(self, body: Body, shape: KernelShape) -> Body:
        """Return the body of a kernel, as all of it is gone through."""
        return body

    def threads(self, mapping: Mapping) -> int:
        """Return the threads of a block; 0 for as many as others have."""
        return 0

    def arrays(self, mapping: Mapping, form: str = "plain") -> tuple[GraphArray, ...]:
        """Return the arrays by which threads come to what they sweep.

        Without any, they come to vertices by their numbers (CPU: by chunks of words).
        """
        return ()

    def prepare(
        self,
        mapping: Mapping,
        view: Any,
        seed: int | None,
        conflicts: str,
        options: Dict[str, int],
    ) -> Dict[str, Any]:
        """Make those of its arrays that have a dtype: on the host, or on the device.

        The view keeps them until its edges or its shape changes. A "summary" among them
        is a text for `explain`.

        Parameters
        ----------
        mapping : Mapping
        view : GraphView
        seed : int or None
            The value of the option `seed`; None for a schedule without one.
        conflicts : str
            The ends at which edges of the phase conflict.
        options : mapping of str to int
            Those of its options on which this depends.
        """
        return {}

    def copied(
        self, columns: Dict[str, Any], prepared: Callable[[str], Any]
    ) -> Dict[str, Any]:
        """Copy properties of edges, whenever one of them has changed.

        Parameters
        ----------
        columns : mapping of str to Column
            Those that the phase only reads, with `copies_columns`.
        prepared : callable
            Name of an array that `prepare` made -> that array, on the host.
        """
        return {}

    def no_room(self, mapping: Mapping, edges: int, error: MemoryError) -> MemoryError:
        """Return the error for prepared arrays that memory has no room for."""
        return error

    @property
    def integers(self) -> dict[str, AnyInteger]:
        """Its options that take any integer."""
        values = self.options.items()
        return {n: v for n, v in values if isinstance(v, AnyInteger)}

    @property
    def launched(self) -> list[str]:
        """Those of them that its kernels take."""
        return [name for name, values in self.integers.items() if values.is_launched]

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return how many blocks a launch has; 0 for none (CUDA)."""
        lanes = mapping.lanes_per_vertex
        if sizes.role == "hubs":
            [array] = self.arrays(mapping)
            return sizes.within(sizes.given(array.name).size // array.each, lanes)
        if sizes.reduces:
            # As many on every GPU, for they say how a sum is rounded.
            return min(sizes.blocks(sizes.vertices), grids.REDUCE_BLOCKS)
        if sizes.form == "listed":
            return sizes.blocks(int(sizes.given("listed").size) * lanes)
        if sizes.form == "packed":
            blocks = min(sizes.blocks(sizes.vertices), grids.PACKING_BLOCKS * lanes)
        else:
            blocks = sizes.blocks(self.places(mapping, sizes))
        return sizes.bounded(blocks, lanes)

    def places(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return how many threads have something to do (CUDA)."""
        return sizes.vertices * mapping.lanes_per_vertex

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words; of some, no mapping is named."""
        return self.name

    @abstractmethod
    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""

    @abstractmethod
    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""


def in_blocks(
    node: Sweep, bounds: tuple[str, str], end: str, each: Callable[[str, str], Body]
) -> Body:
    """Return a walk `each` between bounds, cut into blocks where sums are.

    `end` is the text of the end of a block, where ``{}`` is all that is left.
    """
    if not node.between:
        return each(*bounds) + node.behind
    first, last = bounds
    body = code(f"block_end = {end.format('block_last - block_start')}")
    body += each("block_start", "block_end") + node.behind
    body += code("block_start = block_end\nif block_start == block_last:\n    break")
    out = code(f"block_start, block_last, block_count = {first}, {last}, 0")
    return out + code("while True:\n    BODY", BODY=body + node.between)


def in_strides(
    node: Sweep, block: int, body: Body, grid: tuple[str, str], times: int = 1
) -> Body:
    """Return a loop over vertices of which every n-th one is for this place of a grid.

    `grid` is the place, and how many there are. Sums have `block` vertices at a time,
    or all for 0. So many `times` of them go together.
    """
    vertex, words = node.vertex, node.words
    test = f"warp.test_bit({words}, {vertex})"
    skip = code(f"if not {test}:\n    continue") if words else []

    def strides(first: str, last: str) -> Body:
        if times > 1:
            return strides_together(node, (first, last), "base", times, body)
        loop = f"for {vertex} in range({first}, {last}, stride):\n    BODY"
        return code(loop, BODY=skip + body)

    bounds = "first_vertex", "int32(vertex_count)"
    end = f"int32(block_start + min({{}}, {block} * stride))"
    out = code(f"first_vertex, stride = int32({grid[0]}), int32({grid[1]})")
    return out + in_blocks(node, bounds, end, strides)


def strides_together(
    node: Sweep, bounds: tuple[str, str], own: str, times: int, body: Body
) -> Body:
    """Return a loop over the vertices of a lane, of which so many `times` go together.

    No branch stands between these, so that the loads of all are on their way at a time.
    They are added in the same order as one by one. Each lane goes its own way; from
    ``base`` on, its vertex is `own`.
    """
    first, last = bounds
    place = "base" if own == "base" else "index"
    turns = [place, f"{place} + stride"]
    turns += [f"{place} + {n} * stride" for n in range(2, times)]
    test = f"warp.test_bit({node.words}, {{}})" if node.words else "{} < vertex_count"
    tests = [test.format(turn) for turn in turns]
    several: Body = []
    for turn in turns:
        several += code(f"{node.vertex} = int32({turn})") + list(map(copied, body))
    several += code(f"base = int32(base + {times} * stride)")
    one = when(tests[:1], code(f"{node.vertex} = int32({place})") + body)
    one += code("base = int32(base + stride)")
    left = "stride" if times == 2 else f"{times - 1} * stride"
    # Not ``and``: each bit would be loaded behind the one before.
    are_wanted = " & ".join(tests)
    each = code(f"index = {own}") if place == "index" else []
    each += code(
        f"if base < {last} - {left} and {are_wanted}:\n    SEVERAL\nelse:\n    ONE",
        SEVERAL=several,
        ONE=one,
    )
    return code(f"base = {first}\nwhile base < {last}:\n    EACH", EACH=each)
