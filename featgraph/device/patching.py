"""When a patched aggregate is as good as a new one, as plain Python for both targets.

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
    """Tell whether ``stored + patch`` is rounded about as a new sum would be.

    `change` is the sum of the absolute differences that `patch` adds up. What has been
    added up may be 16 times what is left, so a patch loses four bits at most. Infinite
    sums, and those that are not numbers, do not hold.
    """
    left = abs(stored + patch)
    left = left + left
    left = left + left
    left = left + left
    left = left + left
    return abs(stored) + change <= left and math.isfinite(left)


def is_normal(x):
    """Tell whether a product can be divided again: not zero, and far from overflow."""
    return abs(x) >= _LEAST and abs(x) <= _MOST
