"""The State of a generated program: properties with bounds, and a graph.

A bound and a scale say which values a property ever has: multiples of ``2**-scale`` of
at most `bound`. So it is known of every expression whether float32 holds it exactly, in
whichever order its terms are added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import featgraph as fg
from tests.generated.draw import Draw

__all__ = ["DTYPES", "GraphSpec", "Property", "draw_graph", "fill"]

DTYPES = (
    "float32", "int32", "bool", "int64", "int8", "uint8", "int16", "uint16", "uint32",
    "float64",
)  # fmt: skip

#: Integers stay below: headroom for sums over a graph of these sizes.
WIDEST = 2**40


@dataclass
class Property:
    """One property of the state.

    Attributes
    ----------
    of : str
        "vertex", "edge", "vector", "matrix", "scalar".
    wide : int
        Feature axes: 0, 1 or 2.
    role : str
        "const", "next" (iterated), "place" (written in place), "atomic", "out"
        (written, never read).
    bound, scale : int
        Its values are multiples of ``2**-scale``, at most `bound`.
    """

    name: str
    of: str
    wide: int
    dtype: str
    role: str = "const"
    bound: int = 8
    scale: int = 0
    per_direction: bool = False
    index: int = 0  # > 0: it holds ids of so many vertices

    @property
    def type(self) -> str:
        """Return "bool", "int" or "real"."""
        if self.dtype == "bool":
            return "bool"
        return "real" if self.dtype.startswith("float") else "int"

    @property
    def lowest(self) -> int:
        """Return the least value."""
        return 0 if self.index or self.dtype[0] in "ub" else -self.bound


@dataclass(frozen=True)
class GraphSpec:
    """A graph, as given."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    vertex_count: int
    directed: bool
    shape: str = field(default="", compare=False)

    def make(self) -> fg.Graph:
        """Return the graph."""
        return fg.Graph.from_edges(
            np.array(self.source, np.int64),
            np.array(self.target, np.int64),
            vertex_count=self.vertex_count,
            directed=self.directed,
        )

    @property
    def terms(self) -> int:
        """Return the most contributions that a vertex can have."""
        return max(1, 2 * len(self.source))


#: Around one and two words of an active bitvector, and beyond whole blocks of a grid.
COUNTS = (3, 1, 2, 7, 16, 31, 32, 33, 40, 63, 64, 65, 97, 129)
WIDTHS = (1, 2, 3, 5, 8, 17, 33, 100)
SHAPES = (
    *("random", "path", "hubs", "loops", "parallel", "star in", "star out") * 3,
    "none",
)


def draw_width(draw: Draw) -> int:
    """Return K."""
    return draw.one((*WIDTHS, 1, 2, 3, 3, 5, 5, 8, 17))


def draw_graph(
    draw: Draw, k: int, work: int, directed: bool | None, simple: bool
) -> GraphSpec:
    """Return a graph on which a function does no more than `work` features."""
    counts = [c for c in COUNTS if c * k <= work] or [3]
    count = draw.one(counts[-7:] if draw.chance(60) else counts)
    if simple:
        count = min(count, 40)
    most = max(4, min(160, work // k - count))
    rng = np.random.default_rng(draw.number(0, 2**32 - 1))
    shape = draw.one(SHAPES)
    edges = draw.number(0 if draw.chance(20) else most // 2, most)
    source, target = _edges(shape, rng, count, edges)
    if simple:
        source, target = _simple(source, target)
    if directed is None:
        directed = draw.chance(60)
    draw.use(f"graph {shape}", "directed" if directed else "undirected", f"V={count}")
    return GraphSpec(
        tuple(source.tolist()), tuple(target.tolist()), count, directed, shape
    )


def _edges(shape: str, rng: Any, count: int, edges: int) -> tuple[Any, Any]:
    source, target = rng.integers(0, count, (2, edges))
    if shape == "path":
        source, target = np.arange(count - 1), np.arange(1, count)
    elif shape == "hubs":
        hubs = rng.integers(0, count, max(1, count // 16))
        target = rng.choice(hubs, edges)
    elif shape == "loops":
        target = np.where(rng.random(edges) < 0.4, source, target)
    elif shape == "parallel":
        few = max(1, edges // 6)
        chosen = rng.integers(0, few, edges)
        ends = rng.integers(0, count, (2, few))
        source, target = ends[0][chosen], ends[1][chosen]
    elif shape in {"star in", "star out"}:
        leaves = np.arange(1, count)[: max(1, edges)]
        source, target = leaves, np.zeros_like(leaves)
        if shape == "star out":
            source, target = target, source
    elif shape == "none":
        source, target = source[:0], target[:0]
    return source, target


def _simple(source: Any, target: Any) -> tuple[Any, Any]:
    """Return each edge once, and no loops: what triangles need."""
    low, high = np.minimum(source, target), np.maximum(source, target)
    ends = zip(low.tolist(), high.tolist(), strict=True)
    pairs = sorted({(a, b) for a, b in ends if a < b})
    if not pairs:
        return source[:0], target[:0]
    made = np.array(pairs)
    return made[:, 0], made[:, 1]


def fill(spec: Property, graph: GraphSpec, k: int, rng: Any) -> Any:
    """Return values for a property."""
    items = (k,) * spec.wide
    given = len(graph.source)
    rows = {
        "vertex": (graph.vertex_count,),
        "edge": (given * (2 if spec.per_direction else 1),),
    }.get(spec.of, ())
    shape = (*rows, *items)
    if spec.role == "out":  # seen where it is not written
        return np.full(shape, spec.type == "bool" or 77).astype(spec.dtype)
    if spec.type == "bool":
        values = rng.random(shape) < 0.5
    elif spec.index:
        values = rng.integers(0, spec.index, shape)
    elif spec.type == "int":
        values = rng.integers(spec.lowest, spec.bound + 1, shape)
        if spec.bound > 100 and values.ndim:  # both ends of the range, and small ones
            small = rng.integers(max(spec.lowest, -3), 4, shape)
            ends = rng.choice([spec.lowest, spec.bound], shape)
            values = np.where(rng.random(shape) < 0.5, small, values)
            values = np.where(rng.random(shape) < 0.2, ends, values)
    else:
        unit = 2**spec.scale
        values = rng.integers(-spec.bound * unit, spec.bound * unit + 1, shape) / unit
    if not shape:
        kinds = {"bool": bool, "int": int, "real": float}
        return kinds[spec.type](values)
    return np.asarray(values).astype(spec.dtype)
