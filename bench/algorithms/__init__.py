"""Benches of whole algorithms' supersteps."""
