"""Graphs that change: a store of edges, batches, temporal edges."""
