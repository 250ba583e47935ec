"""Passes from a phase of a plan to the statements of its kernel."""
