"""featgraph as a backend of NetworkX: `nx.pagerank(G, backend="featgraph")`.

NetworkX loads `_featgraph_networkx.backend` when a backend is first asked for. That
module decides which calls are served, and imports this package for those.
docs/networkx.md says how to turn it on and what is served.
"""

from featgraph.networkx.convert import convert_from_nx, convert_to_nx
from featgraph.networkx.graph import NetworkXGraph

__all__ = ["NetworkXGraph", "convert_from_nx", "convert_to_nx"]
