"""Runs on a graph of which each rank has a part."""

from featgraph.ranks.graph import DistributedGraph, distribute
from featgraph.ranks.loading.public import set_up

__all__ = ["DistributedGraph", "distribute"]

set_up()
