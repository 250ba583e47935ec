"""Readers of graphs and models from files.

`readers` and `model_readers` have the public functions, a module per format the
parsers. `text` and `scan` read tables of numbers, `ranges` reads parts of a file, and
`convert` makes folders of slices. `graph_like` converts all kinds of graphs for
algorithms.
"""
