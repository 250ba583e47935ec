"""Lengths of edges, as far as their sums are those of NetworkX."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._paths import first_lost_length
from featgraph.networkx.graph import NetworkXGraph

__all__ = ["MAX_EXACT", "lengths_of"]

#: Sums of integers below are exact in float64.
MAX_EXACT = 2**53


def lengths_of(graph: NetworkXGraph, attribute: str | None) -> npt.NDArray[Any] | None:
    """Return finite, not negative lengths in float64, or None where all are one.

    Raises
    ------
    NotImplementedError
        If a path could be so long that integers are rounded, or that adding a positive
        length to it is lost in rounding: NetworkX adds up integers exactly, and its
        answer then depends on the order of its search.
    """
    weights = graph.weights_of(attribute)
    if weights is None:
        return None
    given = weights.values
    values = given.astype(np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise NotImplementedError(f"values of {attribute!r} that are infinite or < 0")
    longest = len(graph) * values.max(initial=0)
    if (given.dtype.kind == "i" or weights.is_mixed) and longest >= MAX_EXACT:
        raise NotImplementedError("sums of lengths of more than 53 bits")
    if first_lost_length(fg.given_array(values), len(graph)) is not None:
        raise NotImplementedError(f"values of {attribute!r} lost in rounding")
    return values
