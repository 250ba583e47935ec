"""Benches of how supersteps are mapped and launched."""
