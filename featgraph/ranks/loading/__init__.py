"""Graphs that are made in parts: no rank ever has the whole."""
