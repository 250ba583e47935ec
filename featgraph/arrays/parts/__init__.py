"""Rows of some vertices, made on the GPU of edges that are never there all at once."""
