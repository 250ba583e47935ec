"""Reduces over all ranks in one fixed tree: see `featgraph.runtime.trees`."""
