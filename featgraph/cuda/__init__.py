"""CUDA for all other rooms: dialect, driver, memory, launches, arrays and sorts.

`dialect` is the only module that imports numba-cuda, at the first use of a GPU; kernels
are written with the names that it exports, and with those of `tiles`. `intrinsics` has
the instructions that numba-cuda lacks.
`driver`, `memory`, `arguments` and `launch` call the CUDA driver where the dialect is
too slow. `arrays`, `values`, `foreign`, `download`, `elements` and `sorting` handle
arrays on the GPU, including those of other libraries; `code` links and disassembles
kernels without a GPU. Begin with `dialect`.
"""
