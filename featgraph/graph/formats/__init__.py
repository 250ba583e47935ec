"""Readers of graphs and models from files.

`readers` has the public functions for graphs, labels and ratings, and the table of
formats; `bif` and `uai` read models. A text format defines the `Layout` of a file from
its first lines (`edge_list`, `dimacs`, `matrix_market`); `layout` then reads the edges
of all lines, or of a range of bytes, with the parsers in `text` and `scan`. `convert`
makes folders of slices. `graph_like` converts all kinds of graphs for algorithms.
"""
