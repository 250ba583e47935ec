"""CUDA for all other rooms: dialect, driver, memory, launches, arrays and sorts.

`dialect` is the only module that imports numba-cuda, at the first use of a GPU; kernels
are written in the names that it exports. `driver`, `memory` and `launch` call the CUDA
driver where the dialect is too slow. `arrays`, `values`, `foreign` and `sorting` handle
arrays on the GPU, including those of other libraries. Begin with `dialect`.
"""
