"""Graphs in folders of slices: raw arrays that can be read by ranges."""
