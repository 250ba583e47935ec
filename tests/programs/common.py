"""Types and helpers that the programs of the bank share.

Each `BankProgram` says how to make a state for any graph and width. States hold
integers and dyadic fractions where results agree bitwise, so that nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WIDTHS = (1, 2, 3, 4, 7, 8, 10, 32, 33, 64)
#: Up to here the interpreter inverts matrices in a moment.
SMALL = (1, 2, 3, 4, 7, 8, 10)

Rng = np.random.Generator


@dataclass(frozen=True)
class BankProgram:
    """One program.

    Attributes
    ----------
    name : str
    foldmaps : tuple
        What `fg.iterate` takes in turn; tests of one superstep take each by itself.
    make_state : callable
        ``(graph, k, rng) -> dict`` for `fg.State`.
    widths : tuple of int
        The K it is meant for.
    exact : bool
        Bitwise equal on every target; else within the tolerance of S9.
    exact_at_hubs : bool
        Whether that holds with thousands of edges into a vertex, too. Products of sums
        leave what float32 holds.
    undirected : bool
        Whether it needs twins.
    thresholds : tuple of (str, str)
        (iterated property, scalar): commits depend on whether the change of the
        property exceeds the scalar, so they may differ where the two are close.
    slack : float
        Factor on the tolerance, for systems of equations and long chains.
    iterable : bool
        Whether `fg.iterate` ends by itself from these states.
    effort : int
        How long it takes to compile and to interpret, next to the others. More than 1:
        without the deep profile that many times fewer examples and edges.
    """

    name: str
    foldmaps: tuple[Any, ...]
    make_state: Callable[[Any, int, Rng], dict[str, Any]]
    widths: tuple[int, ...] = WIDTHS
    exact: bool = False
    exact_at_hubs: bool = True
    undirected: bool = False
    thresholds: tuple[tuple[str, str], ...] = ()
    slack: float = 1.0
    iterable: bool = field(default=True)
    effort: int = 1

    def __repr__(self) -> str:
        return self.name


def floats(rng: Rng, *shape: int, dtype: Any = np.float32) -> Any:
    return rng.uniform(0.125, 1.0, shape).astype(dtype)


def eighths(rng: Rng, *shape: int, high: int = 64) -> Any:
    """Multiples of 1/8: sums of a few thousand of them are exact in float32."""
    return (rng.integers(1, high, shape) / 8).astype(np.float32)


def signed(rng: Rng, *shape: int, dtype: Any = np.int32) -> Any:
    return rng.integers(-20, 21, shape).astype(dtype)


def edge_count(graph: Any) -> int:
    return int(graph.given_edge_count)
