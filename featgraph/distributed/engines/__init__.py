"""Engines: how the ranks of a run hand each other bytes."""
