"""Graphs in parts, one a rank, and the exchange of values between ranks.

`engines` move bytes between ranks, and `launching` starts the processes; neither
depends on graphs. `exchange` sends entries of vertices and edges to the ranks that read
them: begin with `exchange.exchange`; `exchange.ghosts` decides which values of remote
vertices and edges are sent, and when. `loading` builds parts from edges of all ranks,
`moving` repartitions a graph during a run, `cost` predicts times.
`graph.DistributedGraph` is the public class.
"""

from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.public import set_up
from featgraph.ranks.moving.distribute import distribute
from featgraph.ranks.moving.moves import RankMoves
from featgraph.runtime.loops.run import makers

__all__ = ["DistributedGraph", "distribute"]

set_up()
makers[:] = [RankMoves]
