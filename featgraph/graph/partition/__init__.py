"""Partitions: which rank owns which vertices, and the part of a graph that it has."""

from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard

__all__ = ["Partition", "Shard"]
