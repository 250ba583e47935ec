"""Graphs in parts, one a rank, and the exchange of values between ranks.

`engines` move bytes between ranks, and `launching` starts the processes; both know no
graph. `exchange` sends entries of vertices and edges to the ranks that read them: begin
with `exchange.exchange`; `exchange.ghosts` receives the values of remote vertices.
`loading` builds parts from edges of all ranks, `moving` divides a graph anew during a
run, `cost` predicts times. `graph.DistributedGraph` is the class that users see.
"""

from featgraph.ranks.graph import DistributedGraph
from featgraph.ranks.loading.public import set_up
from featgraph.ranks.moving.distribute import distribute
from featgraph.ranks.moving.moves import RankMoves
from featgraph.runtime.loops.moves import makers

__all__ = ["DistributedGraph", "distribute"]

set_up()
makers[:] = [RankMoves]
