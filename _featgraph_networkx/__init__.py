"""The part of the backend that NetworkX loads before featgraph computes a call.

``import networkx`` calls `get_info` of every installed backend. The first call with a
backend set loads `_featgraph_networkx.backend`, and asks it whether to serve the call.
Both stand in a package of their own because ``import featgraph`` takes longer than
networkx itself: a program pays for it with the first call that featgraph serves. The
functions are in `featgraph.networkx`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FUNCTIONS", "get_info"]

TRIANGLES = "Undirected graphs, all nodes, no weights."
DIJKSTRA = "`weight` is an attribute: all ints or all floats, finite, more than zero."

#: NetworkX function -> what its docstring says of it. `claims.CLAIMS` has these
#: and no others; a test holds the two lists against each other.
FUNCTIONS = {
    "average_clustering": TRIANGLES,
    "betweenness_centrality": "No repeated edges; lengths positive.",
    "bfs_layers": "",
    "closeness_centrality": "Lengths finite, not negative.",
    "clustering": TRIANGLES,
    "connected_components": "",
    "core_number": "",
    "descendants_at_distance": "",
    "eigenvector_centrality": "Float64; weights and `nstart` not negative.",
    "is_connected": "",
    "is_strongly_connected": "",
    "is_weakly_connected": "",
    "katz_centrality": "Float64; weights not negative, no `nstart`.",
    "multi_source_dijkstra_path_length": DIJKSTRA,
    "node_connected_component": "",
    "number_connected_components": "",
    "number_strongly_connected_components": "",
    "number_weakly_connected_components": "",
    "pagerank": "Float64; `alpha` in [0, 1], weights not negative.",
    "shortest_path": "Dijkstra's method; between two nodes, one path is shortest.",
    "shortest_path_length": "Dijkstra's method. " + DIJKSTRA,
    "single_source_dijkstra": DIJKSTRA + " No `target`.",
    "single_source_dijkstra_path": DIJKSTRA,
    "single_source_dijkstra_path_length": DIJKSTRA,
    "single_source_shortest_path_length": "",
    "transitivity": TRIANGLES,
    "triangles": TRIANGLES,
    "weakly_connected_components": "",
}


def get_info() -> dict[str, Any]:
    """Return what NetworkX wants to know of a backend before it is loaded."""
    return {
        "backend_name": "featgraph",
        "project": "featgraph",
        "package": "featgraph",
        "short_summary": "Kernels generated for the CPU or an NVIDIA GPU.",
        "functions": {
            name: {"additional_docs": text} if text else {}
            for name, text in FUNCTIONS.items()
        },
    }
