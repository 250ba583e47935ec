"""Lanes of a warp share a vertex: its features, and edges side by side (FA).

`LaneSchedule` is the default of a GPU; `map_lanes` chooses its numbers. In
`VirtualWarpSchedule` the user sets the number of lanes for each vertex. `ApartSchedule`
gives each lane its own vertex, and the warp shares long rows. `each_packed` and
`each_listed` find the vertices of a sparse set: packed from its words, or by a list.
Other schedules of lanes use `shared`, `lanes_of` and `marked`, too.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping as Dict
from typing import ClassVar

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.base.padding import row_stride
from featgraph.fold.schedules.base import (
    Binding,
    BlockScope,
    FeatureAxis,
    KernelShape,
    Schedule,
    Scope,
    in_blocks,
    strides_together,
)
from featgraph.fold.schedules.mapping import (
    BLOCK_THREADS,
    WARP,
    Mapping,
    Work,
    piece_of,
    share_features,
    vertices_together,
    whole_piece,
)
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = [
    "ALONE", "FEW_LONG_ROWS", "MOST_ROWS", "SHARED_BYTES", "ApartSchedule",
    "LaneSchedule", "VirtualWarpSchedule", "each_listed", "each_packed", "lanes_of",
    "leave_idle", "leaves_matrices", "map_lanes", "marked", "shared",
]  # fmt: skip


def each_packed(node: Sweep, lanes: int, body: Body) -> Body:
    """Return the loop of a warp over the vertices of a set, `lanes` lanes for each.

    A warp tests up to 32 words together and packs the vertices found into its lanes.
    Its words are strided over the set, so that warps find about equally many. All lanes
    stay in the loop (warp-uniform); idle ones, with ``node.wanted`` False, repeat the
    last vertex.
    """
    shift = lanes.bit_length() - 1
    own = {1: "cuda.laneid", WARP: "0"}.get(lanes, f"(cuda.laneid >> {shift})")
    each = code(
        f"nth = int32(done + {own})\n"
        f"{node.wanted} = nth < count\n"
        "bit = warp.nth_bit(word, bits_before, min(nth, int32(count - 1)))\n"
        f"{node.vertex} = warp.vertex_at(first_place, warp_count, bit)"
    )
    loop = code(
        f"for done in range(0, count, {WARP // lanes}):\n    BODY", BODY=each + body
    )
    turn = code(
        "place = int32(first_place + cuda.laneid * warp_count)\n"
        f"word = warp.word_of_lane({node.words}, place, turn)\n"
        "bits_before, count = warp.bits_before(word)"
    )
    turn += agreed(loop, "warp")
    turn += code("first_place = int32(first_place + turn * warp_count)")
    out = code(
        f"turn = warp.words_a_turn({node.words})\n"
        "warp_count = int32(cuda.gridsize(1) >> 5)\n"
        "first_place = int32(cuda.grid(1) >> 5)"
    )
    loop = code(f"while first_place < {node.words}.size:\n    BODY", BODY=turn)
    return out + agreed(loop, "warp")


def each_listed(node: Sweep, lanes: int, body: Body) -> Body:
    """Return the assignment of vertices of a list to lanes, `lanes` for each.

    The list holds each vertex of the set once, and the grid has `lanes` lanes for each
    entry. Lanes past its end repeat the last one, with ``node.wanted`` False.
    """
    shift = f" >> {lanes.bit_length() - 1}" if lanes > 1 else ""
    test = f"warp.test_bit({node.words}, {node.vertex})"
    found = code(
        f"nth = int32(cuda.grid(1){shift})\n"
        f"{node.vertex} = listed[min(nth, int32(listed.size - 1))]\n"
        f"{node.wanted} = nth < listed.size and {test}"
    )
    return found + body


#: Lanes that share a vertex, unless its features alone take more. Of 8, 16 and 32, 8
#: were fastest on kron21 and rmat-21-16 for K = 4 to 32, by up to 1.7 times over 32
#: (NVIDIA H200, bench/results/mapping-gpu.jsonl).
VERTEX_LANES = 8
#: If all edges make fewer than so many rows like the longest that is no hub, other rows
#: do not hide the time of that one: the lanes of a vertex are doubled, which halves the
#: time, until they do. An edge of a gather with keys and sources takes about twice
#: as long, so the limit is twice as many rows. On soc-Epinions1 (335 rows of 1521
#: edges), 16 lanes took 0.70 to 0.86 of the time of 8, and 32 lanes 0.58 for paths,
#: whose keys have sources; on web-NotreDame (759 rows) 8 were fastest. With edges in
#: both directions soc-Epinions1 has 509 rows of 1999 edges, and "warp_segmentation"
#: took 0.84 of the time of 16 lanes (NVIDIA H200,
#: bench/results/schedules-gpu-supersteps.jsonl).
FEW_LONG_ROWS = 512
#: Lanes that share a vertex, as a share of the typical degree. One lane was fastest on
#: a grid, a Delaunay and a road-like graph (typical degrees 4, 4 and 2), by up to 1.5
#: times over two; four on a network of authors (16), eight on links of the web and on
#: graphs with hubs (64): label propagation, K = 4, NVIDIA H200. If gathers end early,
#: the share and `VERTEX_LANES` are halved: in searches, 4 lanes took 0.85 and 0.92 of
#: the time of 8 on R-MAT graphs, and 2 lanes 0.90 of the time of 4 on a uniform one
#: (NVIDIA H200, bench/results/schedules-gpu-supersteps.jsonl).
LANES_A_DEGREE = 1 / 4
#: The same where each edge takes a product by a matrix (belief propagation, likewise).
MULTIPLYING_LANES_A_DEGREE = 1 / 2
#: Shared memory of a block in bytes for matrices; larger ones are in scratch areas in
#: global memory.
SHARED_BYTES = 40_000
#: Largest K for which lanes sum the columns of a matrix in registers, K for a column.
MOST_ROWS = 16
#: Largest K for which a lane that multiplies a row of an edge by a matrix has all
#: features: each result needs all features, and a shuffle brings one at a time.
MOST_MULTIPLIED = 8
#: Where functions of edges have shuffles: rounds of a warp in flight, threads of the
#: block of a long row, and resident ones of these blocks. A round waits for a row from
#: the L2 cache, and for ten shuffles and sums that depend on each other. ALS by
#: conjugate gradients on ml-1m, ms an iteration: 2.9, 2.3 and 2.2 with 2, 4 and 8
#: rounds in flight (K = 128); 2.3 and 1.8 without and with the bound on blocks; 1.2 and
#: 0.8 with a block for rows from 2048 and from 512 edges on (K = 32, NVIDIA H100, bench
#: als-gpu).
ROUNDS_TOGETHER, ROUND_THREADS, ROUND_BLOCKS = 4, 256, 2


class LaneSchedule(Schedule):
    """Lanes share each vertex; shuffles need the whole warp, so none leaves early.

    Idle lanes execute the same statements on a valid vertex and edge.
    """

    name = "lanes"
    finds_due = True

    def cost(self, work: Work) -> float:
        """Return 1, the unit of costs; infinite for subclasses without their own."""
        return 1.0 if type(self) is LaneSchedule else math.inf

    def tune(self, mapping: Mapping, work: Work) -> Mapping:
        """Return a mapping with bounds on registers, or for long rows in rounds.

        A warp that has one vertex, and synchronizes lanes at each edge, takes few edges
        in a round, so long rows that are no hubs go to blocks, too. Blocks of a single
        warp let the next one start when its own row has ended.
        """
        meets = work.pulls and work.meets_at_edges and not work.writes_edges
        is_whole = mapping.lanes_per_vertex == WARP and mapping.lanes_per_edge > 1
        if meets and is_whole and not leaves_matrices(mapping, work):
            mapping = replace(
                mapping, unroll=ROUNDS_TOGETHER, threads=WARP,
                hub_threads=ROUND_THREADS, hub_resident=ROUND_BLOCKS,
            )  # fmt: skip
            if work.long_row:
                mapping = replace(mapping, hubs=True, hub_degree=work.long_row)
        return super().tune(mapping, work)

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        columns = ", columns in registers" if mapping.column_width else ""
        more = f" x {mapping.unroll}" if mapping.unroll > 1 else ""
        at_a_time = f"{mapping.edges_at_a_time}{more} edges"
        if mapping.vertices > 1:
            at_a_time = f"{mapping.vertices} vertices"
        return (
            f"{mapping.lanes_per_vertex} lanes a vertex: {at_a_time} at a time, "
            f"{mapping.shares}{columns}{mapping.of_hubs} (FA)"
        )

    def threads(self, mapping: Mapping) -> int:
        """Return the threads of a block."""
        return mapping.threads

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        binding = shared(mapping, shape, Scope(mapping.lanes_per_vertex))
        if mapping.hubs:  # other rows are short enough for sequential sums
            return replace(binding, own="{} < hub_degree")
        return replace(binding, block=mapping.block, vertices=mapping.vertices)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body."""
        lanes = binding.scopes["vertex"].lanes
        place = "cuda.laneid" if lanes == WARP else f"(cuda.laneid & {lanes - 1})"
        front = code("thread = uint32(cuda.threadIdx.x)") if shape.reduces else []
        return front + lanes_of(binding, place) + self._each(node, binding, shape)

    def _each(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of a warp; it is warp-uniform."""
        lanes = binding.scopes["vertex"].lanes
        body, vertex = node.body, node.vertex
        body = body + marked(node, binding, shape)
        if node.words and shape.frontier_form == "packed":
            return each_packed(node, lanes, body) + node.behind
        if node.words and shape.frontier_form == "listed":
            return each_listed(node, lanes, leave_idle(node, "return") + body)
        shift = lanes.bit_length() - 1
        if shape.covers:
            # Also without a set: warps at the end of the grid have no vertex.
            own = f" >> {shift}" if shift else ""
            name = vertex if lanes == WARP else "index"
            out = code(f"{name} = int32(cuda.grid(1){own})")
            out += _want(node, name) + leave_idle(node, "return")
            if name == "index":
                out += code(f"{vertex} = min(index, int32(vertex_count - 1))")
            return out + body
        count = WARP // lanes
        times = f" * {count}" if count > 1 else ""
        # In 32 bits: a 64-bit loop takes eight registers more.
        out = code(
            f"first_vertex = int32((cuda.grid(1) >> 5){times})\n"
            f"stride = int32((cuda.gridsize(1) >> 5){times})"
        )
        # Without a set, the first lanes of a warp have a vertex in each iteration.
        leave = leave_idle(node, "continue") if node.words else []
        if count > 1:
            own = f"(cuda.laneid >> {shift})" if shift else "cuda.laneid"
            each = code(f"index = base + {own}") + _want(node, "index") + leave
            each += code(f"{vertex} = int32(min(index, vertex_count - 1))")
        else:
            each = _want(node, vertex) + leave
        name = "base" if count > 1 else vertex

        def strides(first: str, last: str) -> Body:
            if binding.vertices > 1:
                place = f"base + {own}" if count > 1 else "base"
                given = node, (first, last), place, binding.vertices
                return strides_together(*given, _wanted_only(node))
            loop = f"for {name} in range({first}, {last}, stride):\n    BODY"
            return agreed(code(loop, BODY=each + body), "warp")

        bounds = "first_vertex", "int32(vertex_count)"
        end = f"int32(block_start + min({{}}, {binding.block} * stride))"
        return out + in_blocks(node, bounds, end, strides)


def map_lanes(work: Work) -> Mapping:
    """Return the mapping of lanes to a vertex: features, and edges side by side."""
    width, size = work.width, work.size
    whole = piece_of(width, size)
    # Lanes with one feature each read neighboring elements of a matrix; lanes with
    # several features would not.
    is_narrow = bool(work.matrices) or work.reads_matrices
    piece = 1 if is_narrow else whole
    if work.multiplies and width > MOST_MULTIPLIED:
        piece = whole_piece(width, piece)
    lanes, copies = share_features(width, piece)
    if work.multiplies and width <= MOST_MULTIPLIED and not is_narrow:
        lanes, copies = 1, width
    # A matrix, and the area in which its system is solved, with a right side.
    areas = BLOCK_THREADS // lanes * work.matrices
    fits = 0 < areas * width * (2 * width + 1) * size <= SHARED_BYTES
    mapping = Mapping(
        lanes, copies, lanes, False, LaneSchedule.name, shared_matrices=fits,
        vector_width=piece, stride=row_stride(width), vertices=vertices_together(work),
    )  # fmt: skip
    in_memory = leaves_matrices(mapping, work)
    hubs = work.has_hubs and not in_memory and work.sweeps_edges
    parts = hubs and work.joins and work.has_giant
    mapping = replace(mapping, hubs=hubs, in_parts=parts)
    if not (in_memory or work.reduces or work.gather_without_shuffle):
        together = lanes * _edges_at_a_time(lanes, work)
        mapping = replace(mapping, lanes_per_vertex=together)
    if work.pulls and work.sums_matrices and not in_memory:
        mapping = replace(mapping, column_width=whole, hub_resident=2)
    return mapping


def leaves_matrices(mapping: Mapping, work: Work) -> bool:
    """Whether matrices are areas in memory, one for each group of lanes of an edge."""
    columns = work.pulls and mapping.shared_matrices and work.width <= MOST_ROWS
    return work.matrices > 0 and not columns


def _edges_at_a_time(lanes: int, work: Work) -> int:
    """Return the number of edges at a time that a typical degree keeps busy."""
    if not work.sweeps_edges:
        return 1
    # With shuffles at edges, a warp waits for the vertex with most edges.
    if work.meets_at_edges and lanes > 1:
        at_a_time = max(1, int(work.typical_degree * LANES_A_DEGREE))
        return min(WARP // lanes, at_a_time)
    share = MULTIPLYING_LANES_A_DEGREE if work.multiplies else LANES_A_DEGREE
    most = VERTEX_LANES
    if work.pulls and work.ends_early:
        share, most = share / 2, most // 2
    together = min(most, max(1, int(work.typical_degree * share)))
    rows = work.rows_of_longest // (2 if work.has_keys else 1)
    while 0 < rows < FEW_LONG_ROWS and together < WARP:
        rows, together = 2 * rows, 2 * together
    return max(1, together // lanes)


def shared(mapping: Mapping, shape: KernelShape, vertex: Scope) -> Binding:
    """Return the binding of a schedule in which the lanes of a scope share a vertex."""
    axis = FeatureAxis(
        shape.width,
        lanes=mapping.lanes_per_edge,
        per_lane=mapping.features_per_lane,
        vector_width=mapping.vector_width,
        stride=mapping.stride,
        column_width=mapping.column_width or 1,
        are_values=mapping.lanes_per_edge > 1,
    )
    edges = vertex.lanes // mapping.lanes_per_edge
    # A weighted sum over K = 8 took 48 registers with ``range``, 36 with a while loop
    # whose counter is as narrow as the offsets (sm_90).
    own = "edge_lane" if edges > 1 else ""
    at_a_time = mapping.unroll if shape.pulls else 1
    walk = Walk("while", edges, own, vertex.company, at_a_time)
    partial = BlockScope(shape.threads, "block")
    scopes = {
        "edge": Scope(mapping.lanes_per_edge),
        "vertex": vertex,
        "partial": partial,
    }
    return Binding(True, axis, walk, scopes, has_idle_lanes=vertex.company == "warp")


def marked(node: Sweep, binding: Binding, shape: KernelShape) -> Body:
    """Return statements that set the bits of a vertex in its result sets."""
    out: Body = []
    for flag, words in node.marks:
        if binding.scopes["vertex"].lanes == 1 and shape.frontier_form == "plain":
            # A warp has the 32 vertices of a word of a set, a lane each.
            before = f", {node.begins}" if node.begins else ""
            put = "put_bits" if node.begins else "set_bits"
            out += code(f"warp.{put}({words}, v, {flag}{before})")
        else:
            tests = [flag, *binding.one("vertex", "edge")]
            out += when(tests, code(f"warp.set_bit({words}, v)"))
    return out


def lanes_of(binding: Binding, place: str) -> Body:
    """Return statements that number the lane and its features, and declare areas.

    `place` is the text of the number of the lane among those of its vertex.
    """
    lanes, out = binding.features.lanes, code("")
    if lanes > 1:
        out += code(f"lane = cuda.laneid & {lanes - 1}")
    if binding.walk.own or binding.together:
        shift = lanes.bit_length() - 1
        out += code(f"edge_lane = {place}{f' >> {shift}' if shift else ''}")
    return [*out, *binding.features.front(), Areas()]


def _want(node: Sweep, name: str) -> Body:
    """Return the test that the vertex of a lane is in the set."""
    test = f"warp.test_bit({node.words}, {name})" if node.words else None
    return code(f"{node.wanted} = {test or f'{name} < vertex_count'}")


def _wanted_only(node: Sweep) -> Body:
    """Return the body of the test that the vertex is in the set, its only statement."""
    match node.body:
        case [ast.If(test=ast.Name(id=node.wanted), body=body, orelse=[])]:
            return body
    raise ValueError(f"a sweep has statements outside the test of {node.wanted}")


def leave_idle(node: Sweep, end: str) -> Body:
    """Return the warp-uniform exit of a warp without wanted vertices.

    It is empty if the body begins with a branch anyway.
    """
    if len(node.body) == 1 and isinstance(node.body[0], ast.If):
        return []
    out: Body = [ast.Return()] if end == "return" else [ast.Continue()]
    noted(out, "the whole warp")
    test = f"not warp.group_any({node.wanted}, {WARP})"
    return agreed(when([test], out), "warp")


#: Longest row that one lane walks alone.
ALONE = 8


class ApartSchedule(LaneSchedule):
    """Each lane has its own vertex; the whole warp shares long rows.

    It is for set kernels, whose only effect is to set bits.
    """

    name = "apart"
    is_selectable = False

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        walk = Walk("apart", WARP, alone=ALONE)
        return replace(super().bind(mapping, shape), walk=walk)


#: Option of "virtual_warp", and its values.
LANES_OPTION = "lanes_per_vertex"
LANES = (2, 4, 8, 16, 32)
#: Most features of a lane in schedule "virtual_warp".
MOST_FEATURES = 16


class VirtualWarpSchedule(LaneSchedule):
    """Schedule "lanes" with a given number of lanes for each vertex.

    Lanes first share the features of an edge; the rest take edges side by side. If the
    features need more lanes than given, each lane takes more of them.
    """

    name = "virtual_warp"
    finds_due = False
    options: ClassVar[Dict[str, tuple[int, ...]]] = {LANES_OPTION: LANES}

    def check(self, options: Dict[str, int]) -> None:
        """Raise if the number of lanes is missing."""
        if LANES_OPTION not in options:
            raise PlanError(
                "virtual_warp needs the number of lanes for each vertex; the "
                "default, once called so, is now called 'lanes'",
                where="schedule=",
                got="schedule='virtual_warp' without lanes_per_vertex",
                expected=f"{LANES_OPTION}={', '.join(map(str, LANES))}",
                fix=f"use schedule='lanes', or set {LANES_OPTION}=8",
            )

    def choose(self, mapping: Mapping, work: Work, options: Dict[str, int]) -> Mapping:
        """Return the mapping with the given lanes, if the phase sweeps edges."""
        if not work.sweeps_edges:
            return mapping
        count = options[LANES_OPTION]
        mapping = replace(_narrowed(mapping, work.width, count), schedule=self.name)
        return replace(mapping, lanes_per_vertex=count)


def _narrowed(mapping: Mapping, width: int, most: int) -> Mapping:
    """Return a mapping in which no more than `most` lanes share an edge."""
    if mapping.lanes_per_edge <= most:
        return mapping
    pieces = -(-width // mapping.vector_width)
    features = mapping.vector_width * -(-pieces // most)
    if features > MOST_FEATURES:
        least = next(n for n in LANES if n * MOST_FEATURES >= width or n == LANES[-1])
        raise PlanError(
            "too few lanes for so many features",
            where=f"{LANES_OPTION}=",
            got=f"{most} lanes for K = {width}, {features} features each",
            expected=f"at most {MOST_FEATURES} features a lane",
            fix=f"set {LANES_OPTION}={least}, or use schedule='lanes'",
        )
    return replace(mapping, lanes_per_edge=most, features_per_lane=features)
