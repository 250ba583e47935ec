"""`featgraph.device.linalg` for one CUDA thread per system."""

from featgraph.cuda.dialect import device_function
from featgraph.device import linalg


@device_function
def _nothing():
    """Do nothing: a thread needs no barrier for its own writes."""


_functions = linalg.make(device_function, _nothing)

solve_general = _functions.solve_general
solve_spd = _functions.solve_spd
inverse_general = _functions.inverse_general
inverse_spd = _functions.inverse_spd
