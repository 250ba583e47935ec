"""Graphs in folders of slices: raw arrays of which anyone reads a range."""
