"""Runs of many supersteps."""
