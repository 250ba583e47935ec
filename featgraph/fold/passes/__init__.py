"""Passes from tree to tree: over `bodies` of functions, and over `nests` of loops.

Begin with `passes.passes`, the two lists. `worklists` has the nests of loops over
supersteps of few vertices.
"""
