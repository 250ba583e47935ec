"""Runs on a graph of which each rank has a part."""

from featgraph.ranks.graph import DistributedGraph, distribute
from featgraph.ranks.loading import public

__all__ = ["DistributedGraph", "distribute", "public"]
