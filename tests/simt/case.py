"""A program for the tests of generated CUDA kernels, and how its state is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from featgraph.program.program import Program
from featgraph.program.signature import PropertyKind, PropertyType, Signature

Rng = np.random.Generator
Values = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A program and how to make its state.

    Attributes
    ----------
    name : str
    functions : tuple
        The declared functions.
    state : callable
        ``(graph, k, rng) -> {name: (kind, array or number, iterated)}``.
    undirected : bool
        Whether it needs twins.
    pushes : bool
        Whether its gathers can be pushed.
    widest : int
        The largest K that runs in a moment.
    """

    name: str
    functions: tuple[Any, ...]
    state: Callable[[Any, int, Rng], Values]
    undirected: bool = False
    pushes: bool = False
    widest: int = 100

    def __repr__(self) -> str:
        return self.name

    def program(self) -> Program:
        return Program.declare(self.functions)

    def values(
        self, graph: Any, k: int, rng: Rng, dtype: str = "float32"
    ) -> tuple[Values, Signature]:
        """Return the values as given, and their types."""
        values: Values = {}
        signature: Signature = {}
        for name, (kind, value, iterated) in self.state(graph, k, rng).items():
            if kind == "scalar":
                values[name] = value
                type_ = "real" if isinstance(value, float) else "int64"
                signature[name] = PropertyType(PropertyKind.SCALAR, type_)
                continue
            if value.dtype == np.float64:
                value = value.astype(dtype)
            values[name] = value
            item = value.shape if kind == "vector" else value.shape[1:]
            # An undirected edge's properties are given once, or once a direction.
            shared = (
                kind == "edge"
                and self.undirected
                and len(value) == graph.given_edge_count
            )
            of = PropertyKind(kind)
            signature[name] = PropertyType(of, value.dtype.name, item, iterated, shared)
        return values, signature


def vertex(value: Any, iterated: bool = False) -> Any:
    return "vertex", value, iterated


def edge(value: Any, iterated: bool = False) -> Any:
    return "edge", value, iterated


def loose(value: Any) -> Any:
    return "vector", value, False


def scalar(value: Any) -> Any:
    return "scalar", value, False


def floats(rng: Rng, *shape: int) -> Any:
    return rng.uniform(0.125, 1.0, shape)


def signed(rng: Rng, *shape: int) -> Any:
    return rng.integers(-9, 10, shape).astype(np.int32)
