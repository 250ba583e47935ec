"""The GPU below everything else: dialect, driver, memory, launches, arrays and sorts.

`dialect` alone imports numba-cuda, when a GPU is first used, and offers what kernels
are written in. `driver`, `memory` and `launch` call the CUDA driver where the dialect
is too slow. `arrays`, `values`, `foreign` and `sorting` are for arrays on the GPU, also
those of other libraries. Begin with `dialect`.
"""
