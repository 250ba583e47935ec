"""Graphs in host memory: building, adjacencies, readers, generators."""

from featgraph.graph.adjacency import Adjacency
from featgraph.graph.generators import (
    complete_graph,
    cycle_graph,
    erdos_renyi,
    grid,
    path_graph,
    rmat,
    star_graph,
)
from featgraph.graph.graph import Graph
from featgraph.graph.readers import (
    read_dimacs,
    read_edge_list,
    read_graph,
    read_labels,
    read_matrix_market,
)

__all__ = [
    "Adjacency",
    "Graph",
    "complete_graph",
    "cycle_graph",
    "erdos_renyi",
    "grid",
    "path_graph",
    "read_dimacs",
    "read_edge_list",
    "read_graph",
    "read_labels",
    "read_matrix_market",
    "rmat",
    "star_graph",
]
