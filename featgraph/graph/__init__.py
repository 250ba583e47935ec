"""Graphs in host memory: building, adjacencies, readers, generators."""

from featgraph.graph._accept import GraphLike, as_graph
from featgraph.graph.adjacency import Adjacency
from featgraph.graph.factor_graph import Factor, FactorGraph
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
from featgraph.graph.model_readers import (
    read_bif,
    read_uai,
    read_uai_evidence,
    read_uai_marginals,
)
from featgraph.graph.readers import (
    read_dimacs,
    read_edge_list,
    read_graph,
    read_labels,
    read_matrix_market,
)

__all__ = [
    "Adjacency",
    "Factor",
    "FactorGraph",
    "Graph",
    "GraphLike",
    "as_graph",
    "complete_graph",
    "cycle_graph",
    "erdos_renyi",
    "grid",
    "path_graph",
    "read_bif",
    "read_dimacs",
    "read_edge_list",
    "read_graph",
    "read_labels",
    "read_matrix_market",
    "read_uai",
    "read_uai_evidence",
    "read_uai_marginals",
    "rmat",
    "star_graph",
]
