"""Functions that generated kernels call, for both targets.

Begin with `warp` for CUDA and with `cpu` for the CPU.

===================  ===============================================================
`warp`               CUDA: warp-wide collectives; exports `memory` and `ordering` too
`memory`             CUDA: bits, atomics, checked mode
`segments`           CUDA: rows of edges that a warp processes side by side
`queue_cuda`         CUDA: lists of vertices, barriers and locks of one-kernel loops
`block_tiles`        CUDA: matrices in tiles of the threads of a block
`cpu`                CPU: sweeps on threads, atomics, bits, checked mode
`queue_cpu`          CPU: lists of vertices in the loop over few vertices
`vectors_cpu`        CPU: vectors of features
`tiles_cpu`          CPU: sums of outer products in vector registers
`cholesky_cpu`       CPU: positive definite systems of many unknowns
`ordering`           both: argmin, argmax, packed keys; checks of patched aggregates
`numbers`            both: arithmetic with the rules of Python
`linalg`             both: solve and inverse of small systems
===================  ===============================================================

`ordering`, `numbers` and `linalg` are plain Python, so that both targets have the same
text. `warp` and `cpu` compile `ordering`; `numbers_cuda`, `numbers_cpu`, `linalg_cuda`
(the lanes of a warp), `linalg_thread` (one CUDA thread) and `linalg_cpu` compile the
others.

This module imports none of these: `warp` needs the CUDA dialect, and `cpu` must not
load it.
"""
