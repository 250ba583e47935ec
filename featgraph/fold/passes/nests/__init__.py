"""Passes from a phase of a plan to the statements of its kernel.

`facts` has the facts that passes read. `gathers` changes walks over edges; `diverge`
and `converge` lower tests, for independent lanes and for lanes that share a vertex;
`meets`, `blocks`, `homes` and `leaves` lower statements on values, and `features`
repeats them for the features of a lane. `due_sets` has kernels over sets of vertices,
which depend on no program.
"""
