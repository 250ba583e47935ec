"""Reduces of all ranks in one tree: see `featgraph.runtime.trees`."""
