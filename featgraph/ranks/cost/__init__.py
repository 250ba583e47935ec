"""The cost model: predicted times of supersteps on P ranks (0059)."""
