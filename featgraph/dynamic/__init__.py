"""Graphs that change in batches."""
