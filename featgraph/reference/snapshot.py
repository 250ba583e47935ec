"""Conversion of a State to the plain arrays of the interpreter."""

from __future__ import annotations

from typing import Any

from featgraph.graph import Graph
from featgraph.program.signature import Signature
from featgraph.program.state import State

__all__ = ["from_state"]


def from_state(state: State) -> tuple[Graph, dict[str, Any], Signature]:
    """Return graph, values and signature of a State, as `superstep` takes them.

    Examples
    --------
    >>> from featgraph.graph import Graph
    >>> from featgraph.program.state import State, vertex_property
    >>> graph = Graph.from_edges([0], [1])
    >>> state = State(graph, x=vertex_property([1.0, 2.0]), alpha=0.5)
    >>> graph, values, signature = from_state(state)
    >>> values["x"].tolist(), values["alpha"]
    ([1.0, 2.0], 0.5)
    """
    return state.graph, {name: state[name] for name in state}, state.signature
