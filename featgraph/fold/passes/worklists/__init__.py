"""Compiled loops over supersteps of few vertices (worklists)."""
