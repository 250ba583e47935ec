"""The CUDA dialect of Numba, the driver, memory, launches, arrays and sorts."""
