"""Runs on a graph of which each rank has a part."""

from featgraph.ranks.graph import DistributedGraph, distribute

__all__ = ["DistributedGraph", "distribute"]
