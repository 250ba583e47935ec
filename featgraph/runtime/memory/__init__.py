"""Buffers of properties, and scalars."""
