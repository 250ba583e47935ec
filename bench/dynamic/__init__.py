"""Graphs that change in batches: batches, streams, and results that follow."""
