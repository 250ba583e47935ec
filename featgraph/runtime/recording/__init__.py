"""CUDA calls of supersteps, recorded to be launched again."""
