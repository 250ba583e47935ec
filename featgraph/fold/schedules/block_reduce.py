"""Schedules of matrix sums over all vertices: each block has a share of vertices."""

from __future__ import annotations

import ast

from featgraph.base.dataclass import replace
from featgraph.base.padding import row_stride
from featgraph.fold.schedules.base import (
    Binding,
    FeatureAxis,
    KernelShape,
    Schedule,
    Scope,
    in_strides,
)
from featgraph.fold.schedules.block_tiles import SHARED_BYTES, SIDE, padded_to_tiles
from featgraph.fold.schedules.lanes import shared
from featgraph.fold.schedules.mapping import (
    WARP,
    LaunchSizes,
    Mapping,
    Work,
    share_features,
)
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Areas, Stage, Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = ["BUFFERS", "ElementSchedule", "ShareTileSchedule", "map_matrices"]

#: Index of a block in the grid, and the number of blocks.
BLOCKS = ("cuda.blockIdx.x", "cuda.gridDim.x")
#: Threads of a block where all tiles have one: those that leave the fewest idle. With
#: float64, a thread takes twice the registers.
THREADS = {4: (128, 160), 8: (64, 96)}
#: Blocks of 128 threads that must fit a multiprocessor, which bounds the registers.
RESIDENT = {4: 4, 8: 2}
#: Vertices that a lane has on the way together, and those of a batch, at most.
MOST_ON_THE_WAY, MOST_WAITING = {4: 4, 8: 2}, 256
#: Multiprocessors that grids assume, on all devices, so that results are equal.
MULTIPROCESSORS = 132
#: Batches in shared memory: one is added while the next one is stored.
BUFFERS = 2


class ElementSchedule(Schedule):
    """A thread sums one element at a time over all vertices of the block."""

    name = "elements"
    is_selectable = False
    shares_features = False

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return (
            f"one thread an element of {width} x {width}, over a block's part of the "
            "vertices"
        )

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        axis = FeatureAxis(shape.width, is_element=True, are_values=True)
        alone = dict.fromkeys(("edge", "vertex", "partial"), Scope())
        block = mapping.block
        return Binding(False, axis, Walk("range"), alone, block=block, partial="row")

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        return [Areas(), *in_strides(node, binding.block, node.body, BLOCKS)]

    def around(self, body: Body, shape: KernelShape) -> Body:
        """Return the loop of a thread over its elements."""
        k = shape.width
        each = code(f"i = int32(element // {k})\nf = int32(element - i * {k})")
        elements = f"range(cuda.threadIdx.x, {k * k}, {shape.threads})"
        loop = code(f"for element in {elements}:\n    BODY", BODY=each + body)
        return code("row = uint32(cuda.blockIdx.x)") + loop


class ShareTileSchedule(Schedule):
    """Stage rows of due vertices in shared memory; threads add products to tiles.

    Lanes share the features of a vertex, and the block the vertices of a batch. Those
    that are due stand one behind the other, so that no others cost products.
    """

    name = "share_tiles"
    is_selectable = False
    modules = ("block_tiles",)

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        count = -(-width // mapping.tile)
        return (
            f"a block of {mapping.lanes_per_vertex} threads a share of the vertices, "
            f"{mapping.batch} at a time, {mapping.shares}; {count} x {count} tiles of "
            f"{mapping.tile} x {mapping.tile} in registers"
        )

    def threads(self, mapping: Mapping) -> int:
        """Return the threads of a block."""
        return mapping.lanes_per_vertex

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of blocks: one a batch, at most all resident ones."""
        resident = mapping.resident * sizes.block // mapping.lanes_per_vertex
        most = max(resident, 1) * MULTIPROCESSORS
        return max(min(-(-sizes.vertices // mapping.batch), most), 1)

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        binding = shared(mapping, shape, Scope(mapping.lanes_per_vertex, "block"))
        walk = replace(binding.walk, at_a_time=mapping.unroll)
        scopes = {**binding.scopes, "partial": Scope()}
        return replace(
            binding, walk=walk, scopes=scopes, block=mapping.block,
            batch=mapping.batch, row_shares=mapping.row_shares,
        )  # fmt: skip

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over batches of vertices, around the body of `node`."""
        lanes, batch = binding.features.lanes, binding.batch
        each = code(
            "batch_start = int32(batch_first)\n"
            f"batch_end = int32(min(batch_first + {batch}, vertex_end))\n"
            f"batch_count = block_tiles.members({node.words}, batch_start, batch_end)"
        )
        leave = noted([ast.Continue()], "the whole block")
        each += agreed(when(["batch_count == 0"], leave), "block")
        if node.between:
            each += _in_blocks(node, binding)
        for part in node.body:
            if not isinstance(part, Stage):
                each.append(part)
                continue
            for n in range(binding.walk.at_a_time):
                each += _slot(node, n, n * binding.walk.lanes)
                each.append(Stage(part.function, n, f"waits_{n}"))
        each += code(f"batch_row = int32({batch} - batch_row)")
        # As 64 bits, for the last step may lead beyond what 32 hold.
        loop = code(
            f"for batch_first in range(int64(cuda.blockIdx.x) * {batch}, vertex_end, "
            f"int64(cuda.gridDim.x) * {batch}):\n    BODY",
            BODY=each,
        )
        front = code(
            "thread = uint32(cuda.threadIdx.x)\n"
            f"lane = cuda.laneid & {lanes - 1}\n"
            f"vertex_lane = int32(thread >> {lanes.bit_length() - 1})"
        )
        begin = code("vertex_end, batch_row = int64(vertex_count), int32(0)")
        if node.between:
            begin += code("block_count, block_rows = 0, int32(0)")
        front += [*binding.features.front(), Areas()]
        return [*front, *begin, *agreed(loop, "block"), *node.behind]


def map_matrices(work: Work) -> Mapping:
    """Return the mapping of a sum of matrices, as far as shared memory allows."""
    width, size, products = work.width, work.size, work.products
    elements = Mapping(1, 1, 1, False, ElementSchedule.name)
    if products is None:
        return elements
    stride, count = row_stride(width), -(-width // SIDE)
    tiles = count * (count + 1) // 2 if products.symmetric else count * count
    threads = _threads(tiles, size)
    if products.refused or threads > 2 * WARP * 32 // size:
        return elements
    piece = products.piece
    while piece > 1 and width <= piece:
        piece //= 2  # lanes share features: what one has are values
    lanes, features = share_features(width, piece)
    at_a_time, batch = threads // lanes, MOST_WAITING
    while batch > at_a_time * MOST_ON_THE_WAY[size]:
        batch //= 2
    box = threads // tiles // 2 * tiles * SIDE * SIDE
    arrays = BUFFERS * products.arrays * padded_to_tiles(width)
    while batch > 1 and (box + batch * arrays) * size > SHARED_BYTES:
        batch //= 2
    return Mapping(
        lanes, features, threads, False, ShareTileSchedule.name, tile=SIDE,
        vector_width=piece, stride=stride, unroll=-(-batch // at_a_time), batch=batch,
        row_shares=threads // tiles, part_size=tiles * SIDE * SIDE,
        resident=RESIDENT[size],
    )  # fmt: skip


def _in_blocks(node: Sweep, binding: Binding) -> Body:
    """Return statements that store a block of terms before a batch exceeds it.

    A small batch goes to the first shares, so a batch counts as their rows.
    """
    rows, shares = "batch_count", binding.row_shares
    if shares > 1:
        rows = f"(batch_count + {shares - 1}) // {shares}"
    full = [*node.between, *code("block_rows = int32(0)")]
    out = code(f"share_rows = int32({rows})")
    test = f"block_rows + share_rows > {binding.block}"
    return out + agreed(when([test], full), "block") + code("block_rows += share_rows")


def _slot(node: Sweep, n: int, more: int) -> Body:
    """Return the n-th vertex of a lane in a batch, and the slot of its row.

    Lanes past the last vertex repeat it, with empty contributions.
    """
    own = f"vertex_lane + {more}" if more else "vertex_lane"
    vertex = node.vertex
    return code(
        f"{vertex} = int32(batch_start + {own})\n"
        f"waits_{n} = {vertex} < batch_end\n"
        f"{vertex} = min({vertex}, int32(batch_end - 1))\n"
        f"waits_{n} = waits_{n} and warp.test_bit({node.words}, {vertex})\n"
        f"place_{n} = block_tiles.members({node.words}, batch_start, {vertex})"
    )


def _threads(tiles: int, size: int) -> int:
    """Return the threads of a block: at least one for each tile, few idle."""
    fitting = [count for count in THREADS[size] if count >= tiles]
    if not fitting:
        return -(-tiles // WARP) * WARP
    return max(fitting, key=lambda count: (count // tiles * tiles / count, -count))
