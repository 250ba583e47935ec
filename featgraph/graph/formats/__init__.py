"""Readers of graphs and models from files.

`readers` has the public functions for graphs, labels and ratings, `bif` and `uai` those
for models. `text` and `scan` read tables of numbers, `ranges` reads parts of a file,
and `convert` makes folders of slices. `graph_like` converts all kinds of graphs for
algorithms.
"""
