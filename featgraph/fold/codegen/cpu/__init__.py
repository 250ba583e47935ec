"""Kernels for the CPU."""
