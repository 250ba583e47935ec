"""Targets: arrays, vertex sets and launches on the CPU and on GPUs.

`protocol` has the interface; `choose` (with the CPU device) and `cuda_device` implement
it. Begin with `protocol.Device`.
"""
