"""The module that NetworkX loads: two conversions, two questions, and the functions.

NetworkX asks for a function as an attribute of this module, under the name by which it
dispatches. The attributes are the entries of `featgraph.networkx.claims.CLAIMS`.
"""

from __future__ import annotations

from featgraph.networkx import (  # noqa: F401  their claims
    centrality,
    clustering,
    components,
    dijkstra,
    paths,
    shortest,
)
from featgraph.networkx.claims import CLAIMS, can_run, should_run
from featgraph.networkx.convert import convert_from_nx, convert_to_nx

__all__ = ["CLAIMS", "can_run", "convert_from_nx", "convert_to_nx", "should_run"]

globals().update({name: entry.function for name, entry in CLAIMS.items()})
