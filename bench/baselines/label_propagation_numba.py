"""The superstep of `bench.programs` written by hand for Numba's CPU target.

Same arrays, same fusion (gather, normalise, update, restore, bitvector of those that
passed), same compiler flags, K a constant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, prange, uint32

FAST_MATH = {"reassoc", "contract", "nsz", "arcp", "afn"}


def edge_balanced_words(offsets: Any, chunk_count: int) -> npt.NDArray[np.int64]:
    """Return word numbers that cut the vertices into chunks of about equal work."""
    count = offsets.size - 1
    words = -(-count // 32)
    ends = np.minimum(np.arange(words + 1) * 32, count)
    work = offsets[ends].astype(np.int64) + ends
    cuts = np.searchsorted(work, np.linspace(0, work[-1], chunk_count + 1)[1:-1])
    return np.unique(np.concatenate([[0], cuts, [words]])).astype(np.int64)


def make_superstep(k: int) -> Any:
    """Compile for `k` classes: (chunks, offsets, sources, weight, clamped, ...)."""

    @njit(parallel=True, error_model="numpy", fastmath=FAST_MATH)
    def superstep(  # type: ignore[no-untyped-def]
        chunks,
        offsets,
        sources,
        weight,
        clamped,
        label,
        label_next,
        passed,
        alpha,
        epsilon,
    ):
        one = np.float32(1)
        for chunk in prange(chunks.size - 1):
            total = np.empty(k, np.float32)
            for word in range(chunks[chunk], chunks[chunk + 1]):
                bits = uint32(0)
                for v in range(32 * word, min(32 * word + 32, clamped.size)):
                    if clamped[v]:
                        for f in range(k):
                            label_next[v, f] = label[v, f]
                        continue
                    for f in range(k):
                        total[f] = np.float32(0)
                    for slot in range(offsets[v], offsets[v + 1]):
                        u, w = sources[slot], weight[slot]
                        for f in range(k):
                            total[f] += w * label[u, f]
                    mass = np.float32(0)
                    for f in range(k):
                        mass += total[f]
                    if mass == 0:
                        mass = one
                    again = np.float32(0)
                    for f in range(k):
                        total[f] = (
                            alpha * (total[f] / mass) + (one - alpha) * label[v, f]
                        )
                        again += total[f]
                    if again == 0:
                        again = one
                    moved = False
                    for f in range(k):
                        p = total[f] / again
                        moved |= abs(p - label[v, f]) > epsilon
                        label_next[v, f] = p
                    if moved:
                        bits |= uint32(1) << uint32(v % 32)
                    else:
                        for f in range(k):
                            label_next[v, f] = label[v, f]
                passed[word] = bits

    return superstep
