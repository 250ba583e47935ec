"""Checkpoints of runs: written in the background, and resumed from (0054)."""
