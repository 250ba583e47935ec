"""featgraph as a backend of NetworkX: `nx.pagerank(G, backend="featgraph")`.

NetworkX loads `featgraph.networkx.backend` when it is first used. What is installed
beside it, for ``import networkx`` to read, is the package `_featgraph_networkx`.
docs/networkx.md says how to turn it on and what is served.
"""

from featgraph.networkx.convert import convert_from_nx, convert_to_nx
from featgraph.networkx.graph import NetworkXGraph

__all__ = ["NetworkXGraph", "convert_from_nx", "convert_to_nx"]
