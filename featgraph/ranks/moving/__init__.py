"""Repartitioning during a run: when it pays, and what is moved (0062)."""
