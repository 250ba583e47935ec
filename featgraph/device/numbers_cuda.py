"""`featgraph.device.numbers` for generated CUDA kernels."""

from featgraph.cuda.dialect import device_function, float32, float64
from featgraph.device.numbers import for_target

globals().update(for_target(device_function, float32=float32, float64=float64))
