"""Triangles of a graph in parts: rows of other ranks, fetched in batches (0058)."""
