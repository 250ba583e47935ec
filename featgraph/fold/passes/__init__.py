"""Passes from tree to tree: over `bodies` of functions, and over `nests` of loops."""
