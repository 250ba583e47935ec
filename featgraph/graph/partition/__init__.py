"""Partitions of vertices among ranks, and the shards of a graph that they define."""

from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard

__all__ = ["Partition", "Shard"]
