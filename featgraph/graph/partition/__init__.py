"""Partitions of vertices among ranks, and the shards of a graph that they define.

`choose` checks a caller's request and chooses order and ranges of the vertices, with
the cuts of `cuts`. `partition.Partition` has the result. `shard` cuts a graph that one
process has into the parts of all ranks; ranks that load a graph together build their
parts in `featgraph.ranks`.
"""

from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard

__all__ = ["Partition", "Shard"]
