"""Reduces in a fixed tree on a GPU: combines of the nodes stored by kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from featgraph.runtime.devices import tree_kernels
from featgraph.runtime.devices.cuda_arrays import BLOCK, CudaArrays, block_count
from featgraph.runtime.devices.fixed_trees import BRANCHES, Joined, Subtree

__all__ = ["CudaTrees", "JoinTables"]

Array = Any
#: Most entries of a level that one block combines with all levels above: a launch per
#: level would take longer.
_ONE_BLOCK = 1 << 10
_MOST_BLOCKS = 1 << 12
#: Combine of nodes -> argument of kernels.
_IS_PRODUCT: dict[np.ufunc, bool] = {np.add: False, np.multiply: True}
#: Threads of that block.
THREADS = tree_kernels.THREADS


class _Steps(NamedTuple):
    """The launches for a subtree.

    Attributes
    ----------
    grids : sequence of (int, int, int)
        Levels for many blocks: see `Subtree`.
    rest : array of int64, shape (N, 3)
        Upper levels, which one block combines.
    tops : array of int64
        Rows of the top nodes; [-1] if there are none.
    """

    grids: Sequence[tuple[int, int, int]]
    rest: Array
    tops: Array


class JoinTables(NamedTuple):
    """The tree over the top nodes of all ranks: see `Joined`.

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
    """Combines of blocks in a fixed tree on one device."""

    def __init__(self, arrays: CudaArrays) -> None:
        self._arrays = arrays
        self._known: dict[tuple[Subtree, int], _Steps] = {}

    def given(self, words: int) -> dict[str, int]:
        """Return further arguments of a kernel that stores a block for each word."""
        return {"together": BRANCHES, "part_count": words}

    def combine(self, rows: Array, words: int, result: Array, pair: np.ufunc) -> None:
        """Combine all blocks, the first rows of `rows`, into `result`."""
        self.climb(rows, Subtree(0, words, words), 0, result, pair)

    def climb(
        self, rows: Array, subtree: Subtree, slot: int, nodes: Array, pair: np.ufunc
    ) -> None:
        """Combine the blocks of a subtree, and store its top nodes from a slot on.

        `nodes` is one-dimensional; all other slots become zeros.
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
            launches(tree_kernels.combine_level, blocks, BLOCK, (rows, *given))
        own = rows, steps.rest, steps.tops, np.int64(slot), is_product, nodes
        launches(tree_kernels.finish, 1, THREADS, own)

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
        self._arrays.launches(tree_kernels.finish_joined, 1, THREADS, given)

    def _steps(self, subtree: Subtree, width: int) -> _Steps:
        steps = list(subtree.steps)
        few = [-(-n // BRANCHES) * width <= _ONE_BLOCK for _, n, _ in steps]
        many = few.index(True) if True in few else len(few)
        rest = np.array(steps[many:] or [(0, 0, 0)], np.int64)
        tops = [row for _, _, row in subtree.tops]
        upload = self._arrays.upload
        found = upload(np.array(tops or [-1], np.int64))
        return _Steps(steps[:many], upload(rest), found)
