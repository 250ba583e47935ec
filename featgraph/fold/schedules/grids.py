"""Grids of launches: how many blocks kernels have, and the bounds of these numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from featgraph.base.dataclass import dataclass

__all__ = ["REDUCE_THREADS", "SHARING_BLOCKS", "LaunchSizes"]

#: Scratch areas in global memory are kept below this; fewer blocks run then.
SCRATCH_BYTES = 1 << 29
#: Most blocks of a reduce; as many on all devices, so that results do not depend on
#: them. Of 256, 512, 1024 and 2048, 1024 were fastest or within 0.03 ms: sums of 4.2M
#: rows of 1, 8, 32 and 128 floats took 0.022, 0.057, 0.18 and 0.67 ms, with 256 blocks
#: 0.045, 0.16, 0.60 and 2.2, cuBLAS 0.034, 0.048, 0.13 and 0.50 (NVIDIA H200,
#: bench/results/reduce-gpu.jsonl). Benches set others, before anything is prepared.
REDUCE_BLOCKS = 1024
#: Threads of a block of a reduce, for that number.
REDUCE_THREADS = 256
#: Blocks that are launched, if there is work for them, before any goes round again.
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
        Of the graph.
    block : int
        Threads of a block.
    given : callable
        Name of an argument -> what the launch has for it.
    form : str
        As `KernelShape` has it.
    role : str
        "main", or "hubs" for a kernel whose blocks go by a list of the graph.
    reduces : bool
        Whether the kernel combines over all vertices.
    strides : int
        Vertices that a group of lanes takes in turn, at least.
    scratch : collection of (str, tuple of int)
        Dtypes and shapes of what each group of lanes has in global memory.
    multiprocessors : int
        Of the GPU.
    """

    vertices: int
    edges: int
    block: int
    given: Callable[[str], Any]
    form: str = "plain"
    role: str = "main"
    reduces: bool = False
    strides: int = 1
    scratch: Collection[tuple[str, tuple[int, ...]]] = ()
    multiprocessors: int = 0

    def blocks(self, threads: int) -> int:
        """Return how many blocks have that many threads, at least one."""
        return max(1, -(-threads // self.block))

    def shared_out(self, threads: int) -> int:
        """Return how many blocks share out evenly what so many threads could take."""
        return min(self.blocks(threads), SHARING_BLOCKS)

    def within(self, blocks: int, lanes: int) -> int:
        """Return as many of some blocks as have room for the scratch of their groups.

        `lanes` are those of a group.
        """
        if not (self.scratch and blocks):
            return blocks
        each = sum(math.prod(shape) for _, shape in self.scratch) * 8
        groups = max(self.block // lanes, 1)
        return max(1, min(blocks, SCRATCH_BYTES // max(each * groups, 1)))

    def bounded(self, blocks: int, lanes: int) -> int:
        """Return the same, and no more blocks than pay what each does first."""
        if self.strides > 1:
            blocks = min(blocks, max(-(-blocks // self.strides), LEAST_BLOCKS))
        return min(self.within(blocks, lanes), (1 << 31) - 1)
