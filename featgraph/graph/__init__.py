"""Graphs: arrays of callers become rows of edges, on the host or on a GPU.

`inputs` checks and converts arrays of callers (begin with `inputs.take`). `building`
sorts edges into rows. `views` provides a graph's arrays to kernels, with stamps that
change with the graph. `partition` divides vertices among ranks. `formats` reads files,
and `slices` folders of raw arrays. `graph.Graph` is the public class.
"""

from featgraph.graph.building.edges import Adjacency
from featgraph.graph.factor_graph import Factor, FactorGraph
from featgraph.graph.formats.bif import read_bif
from featgraph.graph.formats.graph_like import GraphLike, as_graph
from featgraph.graph.formats.readers import (
    read_dimacs,
    read_edge_list,
    read_graph,
    read_labels,
    read_matrix_market,
    read_ratings,
)
from featgraph.graph.formats.uai import read_uai, read_uai_evidence, read_uai_marginals
from featgraph.graph.generators import (
    complete_graph,
    cycle_graph,
    erdos_renyi,
    grid,
    path_graph,
    ratings,
    rmat,
    star_graph,
    uniform,
)
from featgraph.graph.graph import Graph
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard

__all__ = [
    "Adjacency",
    "Factor",
    "FactorGraph",
    "Graph",
    "GraphLike",
    "Partition",
    "Shard",
    "as_graph",
    "complete_graph",
    "cycle_graph",
    "erdos_renyi",
    "grid",
    "path_graph",
    "ratings",
    "read_bif",
    "read_dimacs",
    "read_edge_list",
    "read_graph",
    "read_labels",
    "read_matrix_market",
    "read_ratings",
    "read_uai",
    "read_uai_evidence",
    "read_uai_marginals",
    "rmat",
    "star_graph",
    "uniform",
]
