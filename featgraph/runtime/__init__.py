"""Runs of folded programs: devices, memory, supersteps and the loops over them.

A program and a State enter, values are changed in place, and a `loops.run.Run` leaves.
Begin with `iterate.iterate`, then `superstep.superstep` for one superstep. `devices`
has arrays and launches of each target, `memory` the buffers of properties, `recording`
CUDA graphs, `streaming` edges that do not fit the GPU, and `checkpoints` saved runs.
"""
