"""Graphs distributed over ranks: partitions, loading, and exchanges between ranks."""

from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.public import set_up
from featgraph.ranks.moving.distribute import distribute
from featgraph.ranks.moving.moves import RankMoves
from featgraph.runtime.loops.moves import makers

__all__ = ["DistributedGraph", "distribute"]

set_up()
makers[:] = [RankMoves]
