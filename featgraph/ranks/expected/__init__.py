"""Choices by the cost model: the number of ranks, and cuts for unequal machines."""
