"""Rows of some vertices, built on the GPU from edges that are streamed in pieces."""
