"""Compiled loops over supersteps of few vertices (worklists).

`common` has the parts that both targets share, `cpu` and `cuda` the loops.
"""
