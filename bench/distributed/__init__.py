"""Benches of several ranks."""
