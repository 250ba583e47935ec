"""`featgraph.device.linalg` for the threads of a block that have one system."""

from featgraph._cuda import cuda, device_function
from featgraph.device import linalg


@device_function
def _sync():
    """Wait for the whole block."""
    cuda.syncthreads()


_functions = linalg.make(device_function, _sync)

solve_general = _functions.solve_general
inverse_general = _functions.inverse_general
inverse_spd = _functions.inverse_spd
