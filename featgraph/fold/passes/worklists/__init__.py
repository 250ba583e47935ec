"""Loops over supersteps of few vertices."""
