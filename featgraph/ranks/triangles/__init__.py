"""Triangles of distributed graphs: rows of other ranks, fetched in batches (0058)."""
