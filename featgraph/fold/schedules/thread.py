"""One thread owns a vertex with all its features (NFA), or an edge of a set.

`ThreadSchedule` is the simplest schedule of a GPU; `map_threads` chooses its numbers.
"""

from __future__ import annotations

import math

from featgraph.base.padding import row_stride
from featgraph.fold.schedules.base import (
    Binding,
    BlockScope,
    FeatureAxis,
    KernelShape,
    Schedule,
    Scope,
    in_strides,
)
from featgraph.fold.schedules.lanes import each_listed, each_packed
from featgraph.fold.schedules.mapping import (
    MOST_COPIES,
    LaunchSizes,
    Mapping,
    Work,
    piece_of,
    vertices_together,
)
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = ["MOST_HELD", "EdgeWordSchedule", "ThreadSchedule", "map_threads"]

#: Largest K for which one thread sums the elements of a matrix in registers, and solves
#: a system there.
MOST_HELD = 6
#: Largest typical degree for which a thread sums and solves small matrices faster than
#: lanes that share them: 54 against 277 us on a Delaunay graph, 42 against 85 us on a
#: network of authors; on graphs of higher degree 692 against 303 us (K = 4, H200).
FEW_EDGES = 16
#: Time of a thread over that of lanes, in these cases.
COST = 1 / 4
#: Most bytes of features for which one thread pulls along two edges at a time; with
#: more, registers are spilled. Belief propagation on a Delaunay graph, links of the
#: web, a graph with hubs and a road-like one, K = 4: 0.153, 5.1, 34.8 and 0.194 ms
#: against 0.263, 6.1, 41.9 and 0.178; K = 8 on the first two: 0.30 and 6.7 against 0.37
#: and 9.9 (NVIDIA H200).
PAIRED_BYTES = 32
#: Edges that one thread gathers from at a time, and the largest K for that, on graphs
#: with hubs whose edges have rows: 12.4 against 17.4 ms on kron-19, 1.9 against 2.2 on
#: links of the web, but 0.149 against 0.123 on a road-like graph (multi-manifold
#: ranking, K = 4). If edges have a single weight, the code that the compiler makes of
#: the plain loop was faster on all graphs (NVIDIA H200).
ROWS_TOGETHER = 4
MOST_ROWS_TOGETHER = 4
#: Index of a thread in the grid, and the number of threads.
GRID = ("cuda.grid(1)", "cuda.gridsize(1)")


class ThreadSchedule(Schedule):
    """A thread takes a vertex; threads are independent, features variables or loops."""

    name = "thread"
    shares_features = False
    most_held = MOST_HELD
    finds_due = True

    def cost(self, work: Work) -> float:
        """Return its cost, finite where vertices with matrices have few edges."""
        is_few = work.typical_degree <= FEW_EDGES and not work.has_hubs
        fits = work.matrices > 0 and work.width <= MOST_HELD
        is_free = not work.forced - {"resident", "unroll"}
        return COST if is_few and fits and is_free else math.inf

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        loads = (
            f" in loads of {mapping.vector_width}" if mapping.vector_width > 1 else ""
        )
        form = "loops over" if mapping.is_looped else "named copies of"
        several = f", {mapping.unroll} edges at a time" if mapping.unroll > 1 else ""
        if mapping.vertices > 1:
            several = f", {mapping.vertices} vertices at a time"
        return f"one thread a vertex (NFA), {form} {width} features{loads}{several}"

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        axis = FeatureAxis(
            shape.width,
            per_lane=shape.width,
            vector_width=mapping.vector_width,
            stride=mapping.stride,
            is_looped=mapping.is_looped,
        )
        # With ``range``, each iteration tests for a next one in front of its loads. But
        # for a ``while`` with 64-bit positions, the compiler keeps an address for each
        # array: 36 registers in place of 32 (`twins`, K = 8, sm_90). Pushes and edge
        # functions do enough work for an edge to hide the test.
        form = "while" if shape.pulls or shape.place_type != "int64" else "range"
        at_a_time = mapping.unroll if shape.pulls else 1
        walk = Walk(form, at_a_time=at_a_time, is_looped=True)
        partial = BlockScope(shape.threads, "block")
        scopes = {"edge": Scope(), "vertex": Scope(), "partial": partial}
        return Binding(
            False, axis, walk, scopes, block=mapping.block, leaves_early=True,
            vertices=mapping.vertices,
        )  # fmt: skip

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body."""
        if shape.reduces:
            front = code("thread = uint32(cuda.threadIdx.x)")
            given = binding.block, node.body, GRID, binding.vertices
            return [*front, Areas(), *in_strides(node, *given)]
        if not node.marks or shape.frontier_form != "plain":
            body = list(node.body)
            for flag, words in node.marks:
                body += when([flag], code(f"warp.set_bit({words}, v)"))
            return [Areas(), *self._each(node, shape, body)]
        # `warp.set_bits` votes, so all lanes of a warp reach it: only the body is under
        # the test.
        flags = dict.fromkeys(flag for flag, _ in node.marks)
        body = [s for flag in flags for s in code(f"{flag} = False")]
        body += when([f"warp.test_bit({node.words}, v)"], node.body)
        for flag, words in node.marks:
            body += code(f"warp.set_bits({words}, v, {flag})")
        return [Areas(), *self._each_of_all(shape, body)]

    def _each_of_all(self, shape: KernelShape, body: Body) -> Body:
        """Return the warp-uniform loop over all vertices."""
        if shape.covers:
            return code("v = int32(cuda.grid(1))") + body
        out = code(
            "first_vertex = int32((cuda.grid(1) >> 5) << 5)\n"
            "stride = int32(cuda.gridsize(1))"
        )
        return out + code(
            "for base in range(first_vertex, int32(vertex_count), stride):\n    BODY",
            BODY=code("v = int32(base + cuda.laneid)") + body,
        )

    def _each(self, node: Sweep, shape: KernelShape, body: Body) -> Body:
        if node.words and shape.frontier_form != "plain":
            each = each_packed if shape.frontier_form == "packed" else each_listed
            return each(node, 1, when([node.wanted], body))
        vertex, words = node.vertex, node.words
        test = f"warp.test_bit({words}, {vertex})"
        if shape.covers:
            test = test if words else f"{vertex} < vertex_count"
            return code(f"{vertex} = int32(cuda.grid(1))") + when([test], body)
        return in_strides(node, 0, body, GRID)


class EdgeWordSchedule(ThreadSchedule):
    """A warp takes the edges of one word of a set of edges; most words are empty."""

    name = "edge_words"
    is_selectable = False

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return "one thread an edge, a warp 32 of a set"

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of blocks that share the edges of a set."""
        return sizes.bounded(sizes.shared_out(sizes.edges), mapping.lanes_per_vertex)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over edges, which lists passed ones."""
        [(flag, words)] = node.marks
        number = shape.number_type
        leave = noted(code("continue"), "the whole warp")
        each = code(f"pending = {node.words}[uint32(word)]")
        each += agreed(when(["pending == 0"], leave), "warp")
        each += code(
            f"{node.vertex} = {number}({number}(32 * word) + {number}(lane))\n"
            f"{flag} = False\n"
            "alive = False"
        )
        test = "pending >> uint32(lane) & uint32(1) != 0"
        each += when([test], node.body)
        each += code(
            f"pending = warp.group_bits({flag}, 32)\n"
            "if lane == 0:\n"
            f"    {words}[uint32(word)] = pending\n"
            f"warp.append(alive, {node.vertex}, passed_edges, passed_count)"
        )
        front = code(
            "lane = int32(cuda.laneid)\n"
            "first_word = int32(cuda.grid(1) >> 5)\n"
            "stride = int32(cuda.gridsize(1) >> 5)"
        )
        loop = code(
            f"for word in range(first_word, int32({node.words}.shape[0]), stride):\n"
            "    BODY",
            BODY=each,
        )
        return [*front, Areas(), *agreed(loop, "warp")]


def map_threads(work: Work) -> Mapping:
    """Return the mapping of a thread to a vertex, with several edges in flight."""
    if work.width > MOST_COPIES:
        return Mapping(1, 1, 1, True, ThreadSchedule.name)
    together = 1
    if work.pulls and work.writes_edges:
        together = 2 if work.width * work.size <= PAIRED_BYTES else 1
    elif work.pulls and work.reads_edge_rows and work.has_hubs:
        together = ROWS_TOGETHER if 1 < work.width <= MOST_ROWS_TOGETHER else 1
    return Mapping(
        1, work.width, 1, False, ThreadSchedule.name, unroll=together,
        vector_width=piece_of(work.width, work.size), stride=row_stride(work.width),
        vertices=vertices_together(work),
    )  # fmt: skip
