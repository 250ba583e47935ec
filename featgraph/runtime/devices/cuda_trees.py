"""Reductions in a fixed tree of 32 branches on a GPU.

`fixed_trees` describes the tree. Kernels of a reduce store one row of numbers per leaf
(a block of 32 vertices). `combine_level` combines one level on many blocks, `finish`
the remaining levels on one block, and `finish_joined` the top nodes of all ranks. Each
node combines its children in order, so that its bits do not depend on the number of
threads. `CudaTrees` launches the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from featgraph.cuda.dialect import cuda, device_function, int64, kernel
from featgraph.runtime.devices.cuda_arrays import BLOCK, CudaArrays, block_count
from featgraph.runtime.devices.fixed_trees import BRANCHES, Joined, Subtree

__all__ = [
    "THREADS",
    "CudaTrees",
    "JoinTables",
    "combine_level",
    "finish",
    "finish_joined",
]

#: Threads of the single block that combines the last levels.
THREADS = 512


@device_function
def _pair(a, b, is_product):  # type: ignore[no-untyped-def]
    """Combine two entries: a product or a sum."""
    return a * b if is_product else a + b


@device_function
def _node(rows, first, count, f, is_product):  # type: ignore[no-untyped-def]
    """Combine entry `f` of `count` rows from row `first` on."""
    total = rows[first, f]
    if count == 32:  # most nodes: all loads are issued together
        for child in range(1, 32):
            total = _pair(total, rows[first + child, f], is_product)
    else:
        for child in range(int64(1), count):
            total = _pair(total, rows[first + child, f], is_product)
    return total


@device_function
def _combine(rows, step, thread, threads, is_product):  # type: ignore[no-untyped-def]
    """Combine the rows of a step (first row, row count, first parent), 32 at a time."""
    first, count, above = step
    width = int64(rows.shape[1])
    for index in range(thread, (count + 31) // 32 * width, threads):
        node = index // width
        f, begin = index - node * width, node * 32
        own = rows, first + begin, min(count - begin, int64(32)), f, is_product
        rows[above + node, f] = _node(*own)


@kernel(cache=True)
def combine_level(rows, first, count, above, is_product):  # type: ignore[no-untyped-def]
    """Combine `count` rows, 32 at a time, into the rows from `above` on."""
    step = first, count, above
    _combine(rows, step, int64(cuda.grid(1)), int64(cuda.gridsize(1)), is_product)


@kernel(cache=True, launch_bounds=THREADS)
def finish(rows, steps, tops, first_slot, is_product, nodes):  # type: ignore[no-untyped-def]
    """Combine the remaining levels, and store the top nodes; one block.

    `steps` has a row for each level, `tops` the row of each top node. The top nodes go
    to `nodes` from `first_slot` on; all other slots become zeros.
    """
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    width = int64(rows.shape[1])
    for number in range(steps.shape[0]):
        step = steps[number, 0], steps[number, 1], steps[number, 2]
        _combine(rows, step, thread, threads, is_product)
        cuda.syncthreads()
    for index in range(thread, int64(nodes.size), threads):
        slot = index // width
        own, f = slot - first_slot, index - slot * width
        is_own = own >= 0 and own < tops.size
        row = tops[own] if is_own else int64(-1)
        if row >= 0:
            nodes[index] = rows[row, f]
        else:
            nodes[index] = 0


@kernel(cache=True, launch_bounds=THREADS)
def finish_joined(nodes, work, children, begins, root, is_product, result):  # type: ignore[no-untyped-def]
    """Combine the top nodes of all ranks, level by level; one block.

    Node n is row n of `nodes` (a top node) or, beyond these, a row of `work` (an inner
    node that is combined here): see `Joined`.
    """
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    width = int64(result.size)
    given = int64(nodes.size) // width
    for level in range(begins.size - 1):
        first, last = begins[level], begins[level + 1]
        for index in range(thread, (last - first) * width, threads):
            node = index // width
            f = index - node * width
            node += first
            total = _entry(nodes, work, children[node, 0], given, width, f)
            for branch in range(1, 32):
                child = children[node, branch]
                value = _entry(nodes, work, child, given, width, f)
                total = _pair(total, value, is_product) if child >= 0 else total
            work[node, f] = total
        cuda.syncthreads()
    for f in range(thread, width, threads):
        result[f] = _entry(nodes, work, root, given, width, f)


@device_function
def _entry(nodes, work, node, given, width, f):  # type: ignore[no-untyped-def]
    """Return an entry of a node; any number for node -1.

    Indices are clamped, so that both loads can be issued without a branch.
    """
    number = int64(node)
    known = nodes[max(min(number, given - 1), int64(0)) * width + f]
    made = work[max(number - given, int64(0)), f]
    return known if number < given else made


Array = Any
#: A level with up to this many entries is combined by one block, with all levels above
#: it: a launch per level would take longer.
_ONE_BLOCK = 1 << 10
#: Most blocks of a launch for one level; each thread takes more entries beyond that.
_MOST_BLOCKS = 1 << 12
#: Combine of two nodes -> argument `is_product` of the kernels.
_IS_PRODUCT: dict[np.ufunc, bool] = {np.add: False, np.multiply: True}


class _Steps(NamedTuple):
    """Arguments of the launches for a subtree.

    Attributes
    ----------
    grids : sequence of (int, int, int)
        Steps of lower levels, a launch of many blocks each: see `Subtree.steps`.
    rest : array of int64, shape (N, 3)
        Steps of the upper levels, which one block combines.
    tops : array of int64
        Rows of the top nodes; [-1] if there are none.
    """

    grids: Sequence[tuple[int, int, int]]
    rest: Array
    tops: Array


class JoinTables(NamedTuple):
    """The tables of a `Joined` tree, on the device.

    Attributes
    ----------
    children, begins : arrays
    root : int64
    """

    children: Array
    begins: Array
    root: Any

    @classmethod
    def of(cls, joined: Joined, arrays: CudaArrays) -> JoinTables:
        """Upload the tables to a device."""
        children = joined.children
        if not len(children):  # kernels take no array without entries
            children = np.full((1, BRANCHES), -1, np.int32)
        begins = np.array(joined.begins, np.int64)
        root = np.int64(joined.root)
        return cls(arrays.upload(children), arrays.upload(begins), root)


class CudaTrees:
    """Combines rows of vertex blocks in a fixed tree on a GPU: see `Trees`."""

    def __init__(self, arrays: CudaArrays) -> None:
        self._arrays = arrays
        self._known: dict[tuple[Subtree, int], _Steps] = {}

    def given(self, words: int) -> dict[str, int]:
        """Return the arguments that make a kernel store a row for each word."""
        return {"together": BRANCHES, "part_count": words}

    def combine(self, rows: Array, words: int, result: Array, pair: np.ufunc) -> None:
        """Combine the rows of all words, the first of `rows`, into `result`."""
        self.climb(rows, Subtree(0, words, words), 0, result, pair)

    def climb(
        self, rows: Array, subtree: Subtree, slot: int, nodes: Array, pair: np.ufunc
    ) -> None:
        """Combine the leaves of a subtree, and store its top nodes.

        They go to the slots of `nodes`, a flat array, from `slot` on; all other slots
        become zeros.
        """
        width, is_product = int(rows.shape[1]), _IS_PRODUCT[pair]
        steps = self._known.get((subtree, width))
        if steps is None:
            steps = self._known[subtree, width] = self._steps(subtree, width)
        launches = self._arrays.launches
        for step in steps.grids:
            entries = -(-step[1] // BRANCHES) * width
            blocks = min(block_count(entries), _MOST_BLOCKS)
            given = *map(np.int64, step), is_product
            launches(combine_level, blocks, BLOCK, (rows, *given))
        own = rows, steps.rest, steps.tops, np.int64(slot), is_product, nodes
        launches(finish, 1, THREADS, own)

    def join(
        self,
        nodes: Array,
        work: Array,
        tables: JoinTables,
        result: Array,
        pair: np.ufunc,
    ) -> None:
        """Combine the top nodes of all ranks into `result`; `work` is scratch."""
        given = nodes, work, *tables, _IS_PRODUCT[pair], result
        self._arrays.launches(finish_joined, 1, THREADS, given)

    def _steps(self, subtree: Subtree, width: int) -> _Steps:
        """Divide the levels of a subtree between launches; upload the tables."""
        steps = list(subtree.steps)
        # Levels shrink: all above the first small one are small.
        few = [-(-n // BRANCHES) * width <= _ONE_BLOCK for _, n, _ in steps]
        many = few.index(True) if True in few else len(few)
        rest = np.array(steps[many:] or [(0, 0, 0)], np.int64)
        tops = [row for _, _, row in subtree.tops]
        upload = self._arrays.upload
        found = upload(np.array(tops or [-1], np.int64))
        return _Steps(steps[:many], upload(rest), found)
