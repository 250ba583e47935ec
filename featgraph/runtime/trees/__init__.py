"""Sums in one order, whatever has been summed where: a tree of 32 branches."""
