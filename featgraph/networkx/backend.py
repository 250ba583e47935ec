"""The functions that are served, each under the name by which NetworkX dispatches it.

`_featgraph_networkx.backend`, which NetworkX loads, calls them and the conversions. Its
table `CLAIMS` lists them, and which parameters of NetworkX's function each takes. A
function takes a `NetworkXGraph` for the graph.
"""

from __future__ import annotations

from _featgraph_networkx.claims import CLAIMS, can_run, should_run
from featgraph.networkx import (
    centrality,
    components,
    dijkstra,
    paths,
    shortest,
)
from featgraph.networkx.convert import convert_from_nx, convert_to_nx

__all__ = ["CLAIMS", "can_run", "convert_from_nx", "convert_to_nx", "should_run"]

MODULES = centrality, components, dijkstra, paths, shortest

globals().update(
    {name: vars(of)[name] for of in MODULES for name in of.__all__ if name in CLAIMS}
)
