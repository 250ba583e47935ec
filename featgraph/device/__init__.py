"""Functions that generated kernels call, for both targets.

===================  ===============================================================
`warp`               CUDA: warp-wide collectives; exports `memory` and `ordering` too
`memory`             CUDA: bits, atomics, checked mode
`segments`           CUDA: rows of edges that a warp processes side by side
`queue_cuda`         CUDA: lists of vertices of loops over few vertices
`block_tiles`        CUDA: matrices in tiles of the threads of a block
`cpu`                CPU: sweeps on threads, atomics, bits, checked mode
`queue_cpu`          CPU: lists of vertices of loops over few vertices
`vectors_cpu`        CPU: vectors of features
`tiles_cpu`          CPU: sums of outer products in vector registers
`cholesky_cpu`       CPU: systems of many unknowns, by `tiles_cpu`
`ordering`           both: argmin, argmax, packed keys, and patched aggregates
`numbers`            both: arithmetic with the rules of Python
`linalg`             both: solve and inverse of small systems
===================  ===============================================================

`ordering`, `numbers` and `linalg` are plain Python. `numbers_cuda` and `numbers_cpu`,
`linalg_cuda` (the lanes of a warp), `linalg_thread` (one CUDA thread) and `linalg_cpu`
compile them.

This module imports none of them: `warp` needs the CUDA dialect, and `cpu` must not load
it.
"""
