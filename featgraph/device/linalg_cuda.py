"""`featgraph.device.linalg` for the lanes of a warp."""

from featgraph.cuda.dialect import device_function
from featgraph.device import linalg, warp

_functions = linalg.make(device_function, warp.sync)

solve_general = _functions.solve_general
solve_spd = _functions.solve_spd
inverse_general = _functions.inverse_general
inverse_spd = _functions.inverse_spd
