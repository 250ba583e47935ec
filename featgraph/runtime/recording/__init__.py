"""CUDA calls of supersteps, recorded to be launched again (0019, 0039).

`cuda_trace` traces calls, `cycles` finds supersteps that repeat, `cuda_record` launches
them again as CUDA graphs, and `control` is the log of a loop on the device.
`loops.replay` uses all of these. Begin with `cycles`.
"""
