"""The functions of the backend, under the names by which NetworkX dispatches them.

`_featgraph_networkx.backend`, which NetworkX loads, calls them and the conversions. The
table `CLAIMS` lists the functions, and the supported parameters of each. Functions take
a `NetworkXGraph` as the graph.
"""

from __future__ import annotations

from _featgraph_networkx.claims import CLAIMS, can_run, should_run
from featgraph.networkx import centrality, dijkstra, paths, shortest
from featgraph.networkx.convert import convert_from_nx, convert_to_nx

__all__ = ["CLAIMS", "can_run", "convert_from_nx", "convert_to_nx", "should_run"]

#: Modules whose public functions the backend has.
MODULES = centrality, dijkstra, paths, shortest

globals().update(
    {name: vars(of)[name] for of in MODULES for name in of.__all__ if name in CLAIMS}
)
