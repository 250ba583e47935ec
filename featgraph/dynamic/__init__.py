"""Graphs that change in batches of edges and vertices, on the host or on a GPU.

`graph.DynamicGraph` is a `featgraph.Graph`: all programs and algorithms run on it. From
a call to the rows, a batch goes through these modules:

`graph`     the public class, which starts a new version after each batch
`inputs`    arguments, names of vertices, and the lock between batches and supersteps
`batches`   the checked batch, its result, and the log of changes
`store`     all edges and vertices; applies a batch as a whole or not at all
`pools`     rows with spare slots, of one direction; `gpu_pools` has them on a GPU
`rows`      memory, queues and threads of pools; the plan of a batch
`kernels_cpu`, `kernels_cuda`, `rows_cuda`, `sorts_cuda`   the loops over rows

`views` gives rows to generated kernels and lists of edges to the host; `events` has
windows over temporal edges; `trim` and `triangles` update results from the log; `audit`
checks all invariants. Begin with `graph`, then `pools`, then `store`.
"""
