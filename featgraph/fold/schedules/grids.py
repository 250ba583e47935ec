"""Grids of launches, and the resident blocks that bound registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.schedules.mapping import (
    BLOCK_THREADS,
    HUB_THREADS,
    PIECE_BYTES,
    Mapping,
    Work,
)

__all__ = [
    "REDUCE_THREADS",
    "SHARING_BLOCKS",
    "LaunchSizes",
    "bounded",
    "resident_blocks",
]

#: Scratch areas in global memory are kept below this; fewer blocks run then.
SCRATCH_BYTES = 1 << 29
#: Most blocks of a reduce; as many on all devices, so that results do not depend on
#: them. Of 256, 512, 1024 and 2048, 1024 were fastest or within 0.03 ms: sums of 4.2M
#: rows of 1, 8, 32 and 128 floats took 0.022, 0.057, 0.18 and 0.67 ms, with 256 blocks
#: 0.045, 0.16, 0.60 and 2.2, cuBLAS 0.034, 0.048, 0.13 and 0.50 (NVIDIA H200,
#: bench/results/reduce-gpu.jsonl).
REDUCE_BLOCKS = 1024
#: Threads of a block of a reduce, for that number.
REDUCE_THREADS = 256
#: Blocks to launch, if they have work, before threads loop over further vertices.
LEAST_BLOCKS = 4096
#: Blocks of a kernel that packs due vertices, for each lane that a vertex takes: warps
#: of more would find less to pack.
PACKING_BLOCKS = 2112
#: Blocks that share out the edges of a list, or of a set, evenly: some more than run at
#: a time.
SHARING_BLOCKS = 2112


@dataclass(frozen=True)
class LaunchSizes:
    """The sizes that the grid of a launch depends on.

    Attributes
    ----------
    vertices, edges : int
        Sizes of the graph.
    block : int
        Threads of a block.
    argument : callable
        Maps an argument to its value in the launch.
    form : str
        Frontier form: see `KernelShape`.
    role : str
        "main", or "hubs" for a kernel with one block for each entry of a list.
    reduces : bool
        Whether the kernel combines over all vertices.
    strides : int
        Least number of vertices for each group of lanes.
    scratch : collection of (str, tuple of int)
        Dtypes and shapes of the scratch of each group of lanes in global memory.
    multiprocessors : int
        Multiprocessors of the GPU.
    """

    vertices: int
    edges: int
    block: int
    argument: Callable[[str], Any]
    form: str = "plain"
    role: str = "main"
    reduces: bool = False
    strides: int = 1
    scratch: Collection[tuple[str, tuple[int, ...]]] = ()
    multiprocessors: int = 0

    def blocks(self, threads: int) -> int:
        """Return the number of blocks for `threads`, at least one."""
        return max(1, -(-threads // self.block))

    def shared_out(self, threads: int) -> int:
        """Return the number of blocks that share the work of `threads` evenly."""
        return min(self.blocks(threads), SHARING_BLOCKS)

    def within(self, blocks: int, lanes: int) -> int:
        """Limit `blocks` so that the scratch of their groups fits memory.

        `lanes` is the size of a group.
        """
        if not (self.scratch and blocks):
            return blocks
        each = sum(math.prod(shape) for _, shape in self.scratch) * 8
        groups = max(self.block // lanes, 1)
        return max(1, min(blocks, SCRATCH_BYTES // max(each * groups, 1)))

    def bounded(self, blocks: int, lanes: int) -> int:
        """Limit `blocks` by scratch, and by the work that repays their prologue."""
        if self.strides > 1:
            blocks = min(blocks, max(-(-blocks // self.strides), LEAST_BLOCKS))
        return min(self.within(blocks, lanes), (1 << 31) - 1)


#: Bytes that a lane gathers into, of all blocks that the compiler must let fit a
#: multiprocessor together: at 16 bytes a lane 8 blocks, 64 registers. A superstep over
#: all vertices, K = 4, with and without: multi-manifold ranking 66 and 81 us (a thread
#: a vertex, Delaunay graph), 7.1 and 17.5 ms (kron-19), 105 and 171 us (lanes, links of
#: the web). A thread that multiplies holds more, and is bound to 4 blocks: belief
#: propagation 136 and 182 us (Delaunay); 148 with 8. Lanes that multiply took up to 1.1
#: times longer, as did all on a road-like graph, whose typical degree is 2 (NVIDIA
#: H200).
RESIDENT_BYTES = 128
#: The least typical degree for that.
LEAST_LOOPED = 4
#: The same where lanes share the features of an edge, too, and there are no hubs: 55
#: against 75 us on a network of authors (typical degree 16, label propagation, K = 16),
#: but 152 against 117 on a Delaunay graph (4).
LEAST_SHARED = 16
#: Where so many lanes share the features of an edge, few edges of a hub go side by
#: side, and threads of its block are to have the registers that those of other blocks
#: have. Without a bound the linker leaves them 32, with which each load of a row waits
#: for the one before: hubs of rmat-21-16 took 3.7 ms for 1.5 at K = 128, and all other
#: vertices 3.2 ms (NVIDIA H100, docs/design/0040).
FEW_HUB_EDGES_LANES = 16


def resident_blocks(mapping: Mapping, work: Work) -> int:
    """Return the number of blocks that must fit a multiprocessor; 0 for no bound.

    Without a bound, the linker aims at full occupancy with 32 registers a thread; with
    one, loops have more loads in flight. That pays for vertices with many edges.
    """
    if not (work.pulls and work.rows) or work.typical_degree < LEAST_LOOPED:
        return 0
    rows, is_alone = work.rows, mapping.lanes_per_vertex == 1
    if is_alone:
        loaded = mapping.features_per_lane * work.size
        is_wide = loaded >= PIECE_BYTES or work.multiplies
        pays = is_wide and (work.has_hubs or not work.matrices)
    else:
        several = work.typical_degree >= LEAST_SHARED and mapping.lanes_per_edge > 1
        is_wide = work.width * work.size >= PIECE_BYTES
        pays = is_wide and (work.has_hubs or several) and not work.multiplies
    if not pays:
        return 0
    if is_alone and work.multiplies:  # factors are in registers, too
        rows *= 2
    # A double takes two registers.
    taken = max(rows * mapping.features_per_lane * work.size, PIECE_BYTES)
    blocks = RESIDENT_BYTES * 4 // (taken * work.size)
    return max(blocks // 2 if mapping.column_width else blocks, 1)


def bounded(mapping: Mapping, resident: int) -> Mapping:
    """Return a mapping with `resident` blocks a multiprocessor, also for hubs.

    With many edges of a hub in flight, more of its blocks are worth as much as
    registers (docs/design/0021). And with so many features a lane that only one block
    would fit, the linker allows 64 registers by itself.
    """
    blocks, of_hubs = resident * BLOCK_THREADS // HUB_THREADS, mapping.hub_resident
    few = mapping.lanes_per_edge >= FEW_HUB_EDGES_LANES
    if mapping.hubs and not of_hubs:
        of_hubs = blocks if few and blocks > 1 else 0
    return replace(mapping, resident=resident, hub_resident=of_hubs)
