"""Tests whether a patched aggregate is as accurate as a new one, for both targets.

`featgraph.device.warp` and `featgraph.device.cpu` compile these functions and offer
them under the same names.

====================================================  ================================
``sum_holds(stored, patch, change)``                  bool; floats of one type
``is_normal(x)``                                      bool; float32 or float64
====================================================  ================================
"""

import math

import numpy as np

#: Products outside of this range are not divided: they may have lost digits.
_LEAST, _MOST = np.float32(1e-30), np.float32(1e30)


def sum_holds(stored, patch, change):
    """Return whether ``stored + patch`` is rounded about as a new sum would be.

    `change` is the sum of the absolute differences that `patch` adds up. It may be 16
    times the result, so a patch loses four bits at most. The test fails for sums that
    are infinite or NaN.
    """
    left = abs(stored + patch)
    left = left + left
    left = left + left
    left = left + left
    left = left + left
    return abs(stored) + change <= left and math.isfinite(left)


def is_normal(x):
    """Return whether a product can be divided again: nonzero, and far from overflow."""
    return abs(x) >= _LEAST and abs(x) <= _MOST
