"""Passes from tree to tree: `bodies` of functions, and `nests` of loops."""
