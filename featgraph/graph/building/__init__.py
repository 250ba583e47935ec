"""Edge lists, and the rows (CSC, CSR) that are built from them on the host or a GPU.

Begin with `edges`: `edge_list` checks the arrays of a caller and makes an `EdgeList`.
`check` and `names` have its checks of ids and names. Rows of an edge list are built by
one of three modules with the same functions and results: `few` (NumPy), `build`
(compiled loops of `kernels`) or `fetch` (`gpu_edges`). `row_edges` has edge lists that
are stored as a CSC, `drawn` those of generators, `oriented` graphs for triangles, and
`gpu_parts` builds the part of a rank from a stream of edges.
"""
