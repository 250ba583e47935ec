"""Benches of folding and compiling."""
