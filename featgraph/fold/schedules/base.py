"""The interface of schedules: choice, mapping, loops over vertices, grids, arrays.

The planner compares `Schedule.cost`; `choose` and `tune` return the numbers of the
schedule, a `Mapping`. Passes read a `Binding`: the features and edges of a lane, the
lanes that share a vertex, and how they synchronize; no pass compares the name of a
schedule. `sweep` returns the loop over vertices. For a launch, `arrays` and `prepare`
make the arrays that assign vertices or edges to threads, and `grid` returns the number
of blocks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Mapping as Dict
from typing import Any, ClassVar

from featgraph.base.dataclass import dataclass
from featgraph.fold.schedules import mapping as mappings
from featgraph.fold.schedules.mapping import (
    LaunchSizes,
    Mapping,
    Work,
    bounded,
    last_feature,
    resident_blocks,
    stands_for,
)
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
    """Facts about a kernel that a schedule reads.

    Attributes
    ----------
    spreads : bool
        Whether neighbors of passed vertices run in the same superstep.
    width : int
        K of its functions.
    pulls : bool
        Whether the vertices of its phase are computed along their own rows.
    reduces : bool
        Whether its phase combines over all vertices.
    frontier_form : str
        How the vertices of a sparse set are found: "plain", "packed" or "listed". On
        the CPU, "listed" is a list of words, "blocks" are all words, in blocks of
        vertices, and "vertices" is a list of vertices.
    threads : int
        Threads of a block.
    covers : bool
        Whether the grid has a thread for each vertex, so that kernels need no loop.
    names_features : bool
        Whether some function is called once for each feature.
    vertex_count : str
        Text of the number of vertices.
    place_type, number_type : str
        Types of positions in rows, and of edge ids; "" for plain Python integers.
    """

    width: int
    pulls: bool = False
    reduces: bool = False
    spreads: bool = False
    frontier_form: str = "plain"
    threads: int = 0
    covers: bool = False
    names_features: bool = True
    vertex_count: str = "vertex_count"
    place_type: str = ""
    number_type: str = ""


@dataclass(frozen=True)
class FeatureAxis:
    """Features of a lane: variables for some of K, or loops over all.

    Attributes
    ----------
    width : int
        K.
    lanes : int
        Lanes that share the features of an edge.
    per_lane : int
        Features of a lane; lane l has ``l * per_lane`` and following.
    vector_width : int
        Features of a row in one load.
    stride : int
        Elements from one such row to the next.
    column_width : int
        Features in one load along a column of a matrix.
    is_looped : bool
        Whether features are loops over small arrays.
    is_element : bool
        Whether a lane has one element of a matrix at a time, in row ``i``.
    are_values : bool
        Whether the number of each feature is a variable, not a literal.
    are_passed_as_values : bool
        Whether it is a variable in calls of user functions only.
    any_width : str
        Text of K, if a kernel serves any K; else "".
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
        """Whether the last lanes have fewer features, or none."""
        return self.lanes > 1 and self.lanes * self.per_lane != self.width

    def feature(self, j: int) -> str:
        """Return the text of the number of feature j of a lane, in an index."""
        if not self.are_values:
            return str(j)
        return "f" if self.per_lane == 1 else f"f_{j}"

    def argument(self, j: int) -> str:
        """Return the text of the number of feature j of a lane, in a call."""
        return f"f_{j}" if self.are_passed_as_values else self.feature(j)

    def inside(self, j: int) -> str:
        """Return the test that a lane has a feature j; "" if all have."""
        if not self.is_padded:
            return ""
        return "inside" if self.per_lane == 1 else f"inside_{j}"

    def instead(self, j: int) -> int | None:
        """Return the number of the feature that replaces j past the end of a row.

        None for a feature that exists whenever others of the same load exist.
        """
        if not self.is_padded:
            return None
        return stands_for(self.width, self.vector_width, j)

    def name(self, base: str, j: int) -> str:
        """Return the variable of feature j of the value `base` of a lane."""
        return f"{base}_{j}" if self.per_lane > 1 else base

    def names(self, base: str) -> list[str]:
        """Return the variables of all features of the value `base` of a lane."""
        count = 1 if self.is_looped else self.per_lane
        return [self.name(base, j) for j in range(count)] if count > 1 else [base]

    @property
    def along_column(self) -> FeatureAxis:
        """Axis along a column of a matrix, of which a lane has all features."""
        width = self.width
        return FeatureAxis(
            width, per_lane=width, vector_width=self.column_width, stride=self.stride
        )

    def elements(self, is_lower: bool = False) -> list[tuple[int, int]]:
        """Return (row, number of the column in the lane) of elements in registers."""
        columns = range(self.per_lane)
        pairs = ((i, j) for i in range(self.width) for j in columns)
        return [(i, j) for i, j in pairs if j <= i or not is_lower]

    def element(self, base: str, i: int, j: int) -> str:
        """Return the name of a matrix element of a lane."""
        return self.name(f"{base}_{i}", j)

    def front(self) -> Body:
        """Return the statements that number the features of a lane."""
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
    """A group of lanes with a common vertex, edge or row, and its synchronization.

    Attributes
    ----------
    lanes : int
        Number of lanes.
    company : str
        Lanes that must execute its synchronizations together: "warp", since shuffles
        need the whole warp, or "block".
    """

    lanes: int = 1
    company: str = "warp"

    def sync(self) -> Body:
        """Return the barrier: it orders writes of all lanes before later reads."""
        return code("warp.sync()") if self.lanes > 1 else []

    def any(self, flag: str, into: str) -> Body:
        """Set `into` to the disjunction of `flag` over lanes."""
        shared = f"warp.group_any({flag}, {self.lanes})"
        return code(f"{into} = {shared if self.lanes > 1 else flag}")

    def all(self, flag: str) -> Body:
        """Set `flag` to its conjunction over lanes."""
        shared = f"{flag} = warp.group_all({flag}, {self.lanes})"
        return code(shared) if self.lanes > 1 else []

    def sum(self, *names: str) -> Body:
        """Set each name to the sum of its values over lanes."""
        out: Body = []
        for name in names if self.lanes > 1 else ():
            out += code(f"{name} = warp.group_sum({name}, {self.lanes})")
        return out


class BlockScope(Scope):
    """All threads of a block, synchronized by its barrier."""

    def sync(self) -> Body:
        """Return the barrier: it orders writes of all threads before later reads."""
        return code("cuda.syncthreads()")

    def any(self, flag: str, into: str) -> Body:
        """Set `into` to the disjunction of `flag` over threads."""
        return code(f"{into} = cuda.syncthreads_or(int32({flag})) != 0")

    def all(self, flag: str) -> Body:
        """Set `flag` to its conjunction over threads."""
        return code(f"{flag} = cuda.syncthreads_or(int32(not {flag})) == 0")


@dataclass(frozen=True)
class Binding:
    """A kernel bound to a schedule: all facts about the schedule that passes read.

    Attributes
    ----------
    meets : bool
        Whether lanes share a vertex, so that no lane leaves early.
    features : FeatureAxis
        Features of a lane.
    walk : Walk
        Walk of a lane over the edges of its vertex, if lanes are independent.
    together : Walk or None
        Walk of the lanes of a warp over the edges of all their vertices; None if each
        lane walks its own.
    scopes : mapping
        "edge", "vertex", "partial" and, with `together`, "row" -> the lanes that share
        one.
    own : str
        Test that a vertex is not left to another kernel; "" if none is.
    has_idle_lanes : bool
        Whether some lanes execute the body for a vertex outside the swept set.
    block : int
        Terms that a lane adds sequentially before pairwise summation; 0 for all.
    leaves_early : bool
        Whether a lane may skip a vertex before its gathers.
    partial : str
        Index of the partial result of a reduce.
    leaves : str
        Test that the lane has a partial result of a reduce; "" if all have.
    batch : int
        Vertices that all lanes of a block stage together; 0 if each lane has its own
        vertex.
    row_shares : int
        Shares of the rows of a batch that different lanes add.
    in_rows : bool
        Whether accumulators are rows in memory during contributions.
    at_vertices : bool
        Whether accumulators are entries of all vertices in memory, which threads update
        by atomics.
    runs : str
        Test that a warp runs vertex functions; "" if all do.
    part : tuple of str
        Names of the bounds of the walked part of a row, relative to its begin; empty
        for whole rows.
    joins : bool
        Whether the last of the blocks of the parts of a row combines their results and
        continues.
    vertices : int
        Vertices of a reduce that a lane has in flight.
    turns : str
        For exclusive functions, the unit that threads share in a turn: "chunks" of the
        order (CPU), "edges", or "tasks" of several edges; "" elsewhere.
    holds : bool
        For exclusive functions, whether an edge runs only if ``held`` is True.
    """

    meets: bool
    features: FeatureAxis
    walk: Walk
    scopes: Dict[str, Scope]
    own: str = ""
    has_idle_lanes: bool = False
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
        """Return the tests that select one lane of an edge, of a vertex, or of both."""
        lanes, tests = self.features.lanes, []
        if "vertex" in shared and self.walk.own:
            tests.append(f"{self.walk.own} == 0")
        if "edge" in shared and lanes > 1:
            tests.append("lane == 0")
        return tests


@dataclass(frozen=True)
class GraphArray:
    """An array that assigns vertices or edges to threads.

    Attributes
    ----------
    name : str
        The argument of the kernel.
    array : str
        Name of the array in the graph, where braces stand for a list of the `Rows` of
        the phase; "" for an array that is made at the launch, or prepared.
    each : int
        Entries for each listed item.
    dtype : str
        Dtype of an array that `Schedule.prepare` makes, "offset" for edge ids; "" for
        other arrays.
    """

    name: str
    array: str = ""
    each: int = 1
    dtype: str = ""


@dataclass(frozen=True)
class AnyInteger:
    """Values of an integer option that does not change generated code.

    Attributes
    ----------
    default, least : int
        Value if the option is not given, and the least valid one.
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
        # Kernels take an int64.
        return type(value) is int and self.least <= value < 1 << 63

    def __str__(self) -> str:
        return f"an integer, {self.least} or more"


class Schedule(ABC):
    """A mapping of vertices, edges and features to threads.

    Attributes
    ----------
    name : str
        Name in options.
    is_selectable : bool
        Whether users may name it in options.
    targets : tuple of str
        Targets that it runs on.
    runs : str
        Attribute of `FunctionKind` that it requires; "" for none.
    shares_features : bool or None
        Whether lanes share the features of an edge (FA); None without features.
    options : mapping
        Own options -> valid values.
    seed : str
        Name of the option that seeds an order; "" for none.
    needs_sides : bool
        Whether the graph must be bipartite, with edges from the first side.
    fitting : int
        Least number of resident blocks on a multiprocessor, which bounds registers.
    holds : bool
        Whether locks exclude conflicting edges of exclusive functions.
    copies_columns : bool
        Whether it copies edge properties into its order.
    frontier_forms : tuple of str
        Frontier forms of its kernels beside "plain".
    lists : tuple of GraphArray
        Its `arrays`, where these do not depend on the mapping.
    modules : tuple of str
        Modules of `featgraph.device` that its kernels call, beside ``warp``.
    hub_schedule : str
        Name of the schedule for vertices of high degree, with a block for each.
    joined_parts_schedule, parts_schedule : str
        Names of the schedules with several blocks for each such vertex: the last block
        combines their results, or atomics do in memory (pushes).
    most_held : int
        Largest K for which one thread holds the elements of a matrix in registers, and
        solves systems there.
    finds_due : bool
        Whether its kernels can determine which swept vertices are due: a lane must walk
        only edges of its own vertex.
    """

    name: ClassVar[str]
    is_selectable: ClassVar[bool] = True
    targets: ClassVar[tuple[str, ...]] = ("cuda",)
    runs: ClassVar[str] = ""
    shares_features: ClassVar[bool | None] = True
    options: ClassVar[Dict[str, tuple[int, ...] | AnyInteger]] = {}
    seed: ClassVar[str] = ""
    needs_sides: ClassVar[bool] = False
    fitting: ClassVar[int] = 0
    holds: ClassVar[bool] = False
    copies_columns: ClassVar[bool] = False
    frontier_forms: ClassVar[tuple[str, ...]] = ("packed", "listed")
    lists: ClassVar[tuple[GraphArray, ...]] = ()
    modules: ClassVar[tuple[str, ...]] = ()
    hub_schedule: ClassVar[str] = "block"
    joined_parts_schedule: ClassVar[str] = "block_joins"
    parts_schedule: ClassVar[str] = "block_parts"
    most_held: ClassVar[int] = 0
    finds_due: ClassVar[bool] = False

    def check(self, options: Dict[str, int]) -> None:
        """Raise if options of the schedule are missing or invalid."""
        return  # most schedules have no option that must be given

    def cost(self, work: Work) -> float:
        """Return the estimated time of a phase, relative to schedule "lanes".

        For exclusive functions, it is in ms (`exclusive_costs`). It is infinite if the
        schedule cannot run the phase, never pays, or must be requested by name.
        """
        return math.inf

    def choose(self, mapping: Mapping, work: Work, options: Dict[str, int]) -> Mapping:
        """Return the mapping of a phase in this schedule.

        Parameters
        ----------
        mapping : Mapping
            The mapping of the phase in schedule "lanes".
        work : Work
        options : mapping of str to int
            The options of this schedule.

        Raises
        ------
        PlanError
            If the schedule cannot run the phase.
        """
        return mapping

    def tune(self, mapping: Mapping, work: Work) -> Mapping:
        """Return the mapping of a phase with bounds on registers (CUDA)."""
        return bounded(mapping, resident_blocks(mapping, work))

    def around(self, body: Body, shape: KernelShape) -> Body:
        """Return the body of a kernel with outer loops around it."""
        return body

    def threads(self, mapping: Mapping) -> int:
        """Return the threads of a block; 0 for the default."""
        return 0

    def arrays(
        self, mapping: Mapping, frontier_form: str = "plain"
    ) -> tuple[GraphArray, ...]:
        """Return the arrays that assign vertices or edges to threads.

        If there are none, threads take vertices by id (CPU: by chunks of words).
        """
        return self.lists

    def prepare(
        self,
        mapping: Mapping,
        view: Any,
        seed: int | None,
        conflicts: str,
        options: Dict[str, int],
    ) -> Dict[str, Any]:
        """Make those of `arrays` that have a dtype, on the host or on the device.

        The view caches them until its edges or its shape changes. A "summary" among
        them is a text for `explain`.

        Parameters
        ----------
        mapping : Mapping
        view : GraphView
        seed : int or None
            The value of the option `seed`; None for a schedule without one.
        conflicts : str
            The ends at which edges of the phase conflict.
        options : mapping of str to int
            Options of the schedule that the arrays depend on.
        """
        return {}

    def copied(
        self, columns: Dict[str, Any], prepared: Callable[[str], Any]
    ) -> Dict[str, Any]:
        """Copy edge properties into the order in which threads take edges.

        It is called when one of them has changed.

        Parameters
        ----------
        columns : mapping of str to Column
            Edge properties that the phase only reads, with `copies_columns`.
        prepared : callable
            Maps the name of a prepared array to the array on the host.
        """
        return {}

    def no_room(self, mapping: Mapping, edges: int, error: MemoryError) -> MemoryError:
        """Return the error for prepared arrays that exceed memory."""
        return error

    @property
    def integers(self) -> dict[str, AnyInteger]:
        """Options of the schedule that take any integer."""
        values = self.options.items()
        return {n: v for n, v in values if isinstance(v, AnyInteger)}

    @property
    def launched(self) -> list[str]:
        """Integer options that its kernels take as arguments."""
        return [name for name, values in self.integers.items() if values.is_launched]

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of blocks of a launch; 0 for none (CUDA)."""
        lanes = mapping.lanes_per_vertex
        if sizes.role == "hubs":
            [array] = self.arrays(mapping)
            return sizes.within(sizes.argument(array.name).size // array.each, lanes)
        if sizes.reduces:
            # The same number on every GPU, since it determines the rounding of sums.
            return min(sizes.blocks(sizes.vertices), mappings.REDUCE_BLOCKS)
        if sizes.frontier_form == "listed":
            return sizes.blocks(int(sizes.argument("listed").size) * lanes)
        if sizes.frontier_form == "packed":
            blocks = min(sizes.blocks(sizes.vertices), mappings.PACKING_BLOCKS * lanes)
        else:
            blocks = sizes.blocks(self.places(mapping, sizes))
        return sizes.bounded(blocks, lanes)

    def places(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of threads with work (CUDA)."""
        return sizes.vertices * mapping.lanes_per_vertex

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a description of a mapping, for `explain`."""
        return self.name

    @abstractmethod
    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""

    @abstractmethod
    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body.

        The loop begins with declarations, among them one `Areas` node.
        """


def in_blocks(
    node: Sweep, bounds: tuple[str, str], end: str, each: Callable[[str, str], Body]
) -> Body:
    """Return a walk `each` between bounds, cut into blocks if sums need it.

    `end` is the text of the end of a block; ``{}`` stands for the remaining terms.
    """
    if not node.between:
        return each(*bounds) + node.behind
    first, last = bounds
    body = code(f"block_end = {end.format('block_last - block_start')}")
    body += each("block_start", "block_end") + node.behind
    body += code("block_start = block_end\nif block_start == block_last:\n    break")
    # No terms are one empty block, so that `behind` has a last block.
    out = code(f"block_start, block_last, block_count = {first}, {last}, 0")
    return out + code("while True:\n    BODY", BODY=body + node.between)


def in_strides(
    node: Sweep, block: int, body: Body, grid: tuple[str, str], times: int = 1
) -> Body:
    """Return a grid-stride loop over vertices.

    `grid` is the first vertex and the stride. Sums take `block` vertices at a time, or
    all for 0. A lane has `times` vertices in flight.
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
    """Return a loop over the vertices of a lane, with `times` of them in flight.

    There is no branch between the loads of these vertices, so the loads overlap. The
    order of additions is that of a plain loop. Lanes are independent; `own` is the text
    of the vertex of a lane, computed from ``base``.
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
    # With ``and``, the load of each bit would wait for the bit before.
    are_wanted = " & ".join(tests)
    each = code(f"index = {own}") if place == "index" else []
    each += code(
        f"if base < {last} - {left} and {are_wanted}:\n    SEVERAL\nelse:\n    ONE",
        SEVERAL=several,
        ONE=one,
    )
    return code(f"base = {first}\nwhile base < {last}:\n    EACH", EACH=each)
