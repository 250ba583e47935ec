"""Engines: exchanges of bytes and arrays between the ranks of a run."""
