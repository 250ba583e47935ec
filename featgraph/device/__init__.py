"""Functions that generated kernels call.

===================  ===============================================================
`warp`               CUDA: warp-wide collectives; offers `memory` and `ordering` too
`memory`             CUDA: bits, atomics, checked mode
`cpu`                CPU: sweeps on threads, atomics, bits, checked mode
`ordering`           plain text of argmin, argmax and packed keys, for both targets
`linalg`             plain text of solve and inverse, for both targets
`linalg_cuda`        `linalg` compiled for the lanes of a warp
`linalg_thread`      `linalg` compiled for one CUDA thread
`linalg_cpu`         `linalg` compiled for one thread of the CPU
===================  ===============================================================

Nothing is imported here: `warp` needs the CUDA dialect, `cpu` must not load it.
"""
