"""Building of distributed graphs from edges of all ranks; no rank ever has them all.

Begin with `public`, which has an entry for each source of edges. `build` sends edges
given in any order to the owners of their ends; `rows` takes edges that are sorted by
target. Both end in `parts.made_graph`; `on_gpu` has the same steps on GPUs.
"""
