"""`featgraph.device.linalg` for the lanes of a warp."""

from featgraph.cuda.dialect import device_function
from featgraph.device import linalg, warp

globals().update(linalg.make(device_function, warp.sync))
