"""Runs on a graph of which each rank has a part."""

from featgraph.ranks.graph import DistributedGraph, distribute
from featgraph.ranks.loading import public as _made_here  # noqa: F401: it says so

__all__ = ["DistributedGraph", "distribute"]
