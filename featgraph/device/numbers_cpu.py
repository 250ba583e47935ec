"""`featgraph.device.numbers` for generated CPU kernels."""

from numba import float32, float64, njit

from featgraph.device.numbers import for_target

# Not cached on disk: the kernels that inline these functions are cached.
globals().update(
    for_target(njit(error_model="numpy"), float32=float32, float64=float64)
)
