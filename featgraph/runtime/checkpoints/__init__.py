"""Checkpoints of runs: taken, written beside them, and gone on from (0054)."""
