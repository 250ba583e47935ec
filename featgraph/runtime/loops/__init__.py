"""Runs of many supersteps: pending vertices, and the loops, a file each."""
