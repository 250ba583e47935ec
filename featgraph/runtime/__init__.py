"""Runs of folded programs: devices, memory, supersteps and the loops over them.

A run takes foldmaps and a State, changes the values of the State in place, and returns
a `loops.run.Run`. Begin with `iterate.iterate`, then read `superstep.superstep` for one
superstep. `devices` has the arrays and launches of each target, `memory` the buffers of
properties, `recording` CUDA graphs, `streaming` edges that exceed the memory of a GPU,
and `checkpoints` saved runs.
"""
