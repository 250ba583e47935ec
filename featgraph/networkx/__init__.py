"""featgraph as a backend of NetworkX: `nx.pagerank(G, backend="featgraph")`.

NetworkX loads `_featgraph_networkx.backend` at the first use of a backend. That module
decides which calls run here, and imports this package for them. docs/networkx.md lists
the supported functions, and shows how to enable the backend.
"""

from featgraph.networkx.convert import convert_from_nx, convert_to_nx
from featgraph.networkx.graph import NetworkXGraph

__all__ = ["NetworkXGraph", "convert_from_nx", "convert_to_nx"]
