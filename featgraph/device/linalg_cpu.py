"""`featgraph.device.linalg` for one thread: call with ``lane=0, lanes=1``."""

from numba import njit

from featgraph.device import linalg


@njit(cache=True)
def _nothing_to_wait_for():
    pass


# Not cached on disk: the key of a closure over dispatchers changes with each process.
# The kernels that inline these functions are cached.
_jit = njit(error_model="numpy", fastmath={"contract"})
globals().update(linalg.make(_jit, _nothing_to_wait_for))
