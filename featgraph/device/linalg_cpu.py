"""`featgraph.device.linalg` for one thread: call with ``lane=0, lanes=1``."""

from numba import njit

from featgraph.device import linalg


@njit(cache=True)
def _nothing_to_wait_for():
    pass


# No disk cache of their own: a closure over dispatchers never finds its entry again.
# The kernels that they are inlined into are cached.
_functions = linalg.make(
    njit(error_model="numpy", fastmath={"contract"}), _nothing_to_wait_for
)

solve_general = _functions.solve_general
solve_spd = _functions.solve_spd
inverse_general = _functions.inverse_general
inverse_spd = _functions.inverse_spd
