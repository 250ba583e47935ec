"""Edges that do not fit the GPU: where they are, and how sweeps get at them (0063)."""
