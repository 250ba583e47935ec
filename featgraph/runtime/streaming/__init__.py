"""Edges that exceed the memory limit of a GPU, streamed from host memory (0063).

`needs` counts the bytes of a kernel, `placement` moves arrays of edges to page-locked
host memory, `ring` copies slices of them to buffers on the GPU, and `slices` sweeps
these. Begin with `placement`.
"""
