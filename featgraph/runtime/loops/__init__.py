"""Runs of many supersteps: the state of a run, and the loops that run its supersteps.

`run_state` has the pending vertices of each foldmap, `foldmap_run` chooses how a
superstep runs, and `run` is the record. The loops are `host`, `replay` and `worklist`.
Begin with `host`.
"""
