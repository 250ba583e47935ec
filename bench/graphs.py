"""Named graphs: the generator, its parameters and seed, and the digest of the result.

================= ====================================================================
``rmat-S-F``      ``fg`` R-MAT, 2**S vertices, F * 2**S directed edges, repeats kept
``rmat45-S-F``    the same with quadrants .45, .25, .15 (as Khorasani et al. have them)
``uniform-S-F``   2**S vertices, F * 2**S directed edges, ends drawn uniformly
``rmat-1m``       ``rmat-20-16``: 1M vertices, 16M edges
``kron21``        2.1M vertices, 85M directed edges: symmetric, simple, hubs of low id
``kron21-mixed``  the same with its vertices shuffled
``kron-S``        as ``kron21``, with 2**S vertices
``graph500-S``    likewise with 16 draws a vertex, as Graph500 has them; ``...-mixed``
``mild22``        likewise, 4.2M vertices, 106M directed edges, quadrants less unequal
``gridN``         an N x N lattice, such as ``grid4096``
``pathN``         N vertices in a row
``delaunayS``     Delaunay triangulation of 2**S random points, numbered along a curve
``rgg-S-D``       2**S points, numbered likewise; D near ones a vertex are neighbors
``roadN``         N x N crossings, 72% of the streets, each of 0 to 8 further vertices
``bricksN``       N x N vertices of hexagons: a planar mesh of three edges a vertex
``mesh-N-D``      N ** 3 points of a cubic lattice; the D nearest are neighbors
``chains-S``      directed: ``rmat-S-22`` and as many vertices again in long chains
a name of `REAL`  a real network below ``$FEATGRAPH_DATA``, made simple and symmetric
... ``-directed`` the same as it stands in its file
================= ====================================================================

Graphs that take long to make, and real networks, are kept as edges in the folder
``$FEATGRAPH_BENCH_CACHE``, where that is set: such a folder can go to a machine without
the data.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numba import njit, prange, uint64

import featgraph as fg
from bench.record import ROOT
from featgraph.graph import generators

SEED = 20261121
#: Graph500's quadrants.
A, B, C = 0.57, 0.19, 0.19
#: Draws a vertex: 85.0M directed edges of 21 levels are left by expectation.
KRON_DRAWS_A_VERTEX = 21.65
#: Those of ``graph500-S``.
GRAPH500 = (A, B, C, 16.0)
#: Quadrants and draws a vertex of ``mild22``.
MILD = (0.45, 0.22, 0.22, 12.65)
RMAT45 = (0.45, 0.25, 0.15)
#: Of the streets between neighboring crossings, those that exist.
STREETS = 0.72
#: A street has 0 to so many vertices between its ends, uniformly.
LONGEST_STREET = 8
#: Real networks: name -> file below ``$FEATGRAPH_DATA``.
REAL = {
    "web-NotreDame": "medium/web-NotreDame.txt.gz",
    "coAuthorsDBLP": "medium/coAuthorsDBLP.mtx.gz",
    "soc-Epinions1": "medium/soc-Epinions1.txt.gz",
    "luxembourg_osm": "small/luxembourg_osm.mtx.gz",
    "facebook_large": "small/facebook_large/facebook_edges.csv.gz",
    "facebook_combined": "small/facebook_combined.txt.gz",
}
#: Ratings: name -> file there, delimiter, and lines of header.
RATINGS: dict[str, tuple[str, str, int]] = {
    "ml-latest-small": ("small/ml-latest-small/ratings.csv.gz", ",", 1),
    "ml-100k": ("restricted/ml-100k/u.data.gz", "\t", 0),
    "ml-1m": ("restricted/ml-1m/ratings.csv.gz", ",", 1),
}
#: Above so many edges, a kept graph is not compressed: that takes longer than drawing.
COMPRESSED = 10_000_000


@dataclass(frozen=True)
class NamedGraph:
    """A graph and where it comes from."""

    name: str
    graph: fg.Graph
    generator: str
    seconds: float

    def describe(self) -> dict[str, Any]:
        """Return the `graph` field of a result."""
        graph = self.graph
        return {
            "name": self.name,
            "generator": self.generator,
            "digest": graph.digest,
            "vertices": graph.vertex_count,
            "edges": graph.edge_count,
            "max_in_degree": int(graph.in_degree.max(initial=0)),
            "build_s": round(self.seconds, 2),
        }


def make_graph(name: str) -> NamedGraph:
    """Generate a named graph and build its CSC.

    Raises
    ------
    SystemExit
        If there is no such name.
    """
    begun = time.perf_counter()
    for pattern, make, is_kept in MAKERS:
        if found := re.fullmatch(pattern, name):
            given = [int(g) if g.isdigit() else g for g in found.groups(default="")]
            made = partial(make, *given)
            graph, generator = _kept(name, made) if is_kept else made()
            break
    else:
        raise SystemExit(f"no graph is named {name!r}; see bench/graphs.py")
    assert graph.in_edges.column_indices.size == graph.edge_count
    return NamedGraph(name, graph, generator, time.perf_counter() - begun)


#: Names of graphs of which each rank can draw its part.
DRAWN = re.compile(r"(rmat|rmat45|uniform)-(\d+)-(\d+)(-undirected)?")


def distribute_graph(name: str, target: str, weighted: bool = False) -> fg.Graph:
    """Make a named graph of which each rank has its part; all ranks call it.

    Where edges are drawn one by one, a rank draws its own, on the GPU with target
    "cuda": of 2**22 vertices that takes a second, and the whole on the host takes most
    of a minute. Any other graph is made whole by each rank, and cut; it has no weights.
    """
    if not (found := DRAWN.fullmatch(name)):
        return fg.distribute(make_graph(name).graph)
    draw = {"rmat": _rmat, "rmat45": _rmat45, "uniform": _uniform}[found[1]]
    how = {"partition": "edges", "target": target, "weighted": weighted}
    return draw(int(found[2]), int(found[3]), directed=found[4] is None, **how)[0]


def _rmat(scale: int, factor: int, **how: Any) -> tuple[fg.Graph, str]:
    graph = generators.rmat(scale, factor, seed=SEED, **how)
    return graph, f"rmat({scale}, {factor}, seed={SEED})"


def _rmat45(scale: int, factor: int, **how: Any) -> tuple[fg.Graph, str]:
    a, b, c = RMAT45
    graph = generators.rmat(scale, factor, a=a, b=b, c=c, seed=SEED, **how)
    return graph, f"rmat({scale}, {factor}, {a=}, {b=}, {c=}, seed={SEED})"


def _uniform(scale: int, factor: int, **how: Any) -> tuple[fg.Graph, str]:
    graph = generators.uniform(1 << scale, factor << scale, seed=SEED, **how)
    return graph, f"uniform(2**{scale}, {factor} * 2**{scale}, seed={SEED})"


#: Ends of undirected edges, the number of vertices, and how they came about.
Edges = tuple[Any, Any, int, str]


def _kept(name: str, make: Callable[[], Edges]) -> tuple[fg.Graph, str]:
    """Return an undirected graph from the folder of kept ones, or make and keep it."""
    folder = os.environ.get("FEATGRAPH_BENCH_CACHE")
    file = Path(folder) / f"{name}.npz" if folder else None
    if file is not None and file.exists():
        with np.load(file) as held:
            low, high = held["low"], held["high"]
            count, text = int(held["count"]), str(held["text"])
    else:
        low, high, count, text = make()
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            save = np.savez_compressed if low.size <= COMPRESSED else np.savez
            part = file.with_name(f"{os.getpid()}-{file.name}")
            save(part, low=low, high=high, count=count, text=text)
            part.replace(file)
    graph = fg.Graph.from_edges(low, high, vertex_count=count, directed=False)
    return graph, text


def distinct(keys: Any) -> Any:
    """Return keys in ascending order, each once: `numpy.unique` hashes, and is slow."""
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])[: keys.size]]


def _simple(u: Any, v: Any, count: int) -> tuple[Any, Any]:
    """Return ends low < high of the edges without loops and repeats, sorted."""
    low, high = np.minimum(u, v).astype(np.int64), np.maximum(u, v)
    keys = distinct((low * count + high)[low != high])
    return (keys // count).astype(np.int32), (keys % count).astype(np.int32)


def _points(scale: int) -> Any:
    """Draw points in a square, along a Z-order curve: near ones have near numbers."""
    points = np.random.default_rng(SEED).random((1 << scale, 2))
    places = (points * (1 << 16)).astype(np.uint64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333)):
        places = (places | places << np.uint64(shift)) & np.uint64(mask)
    places = (places | places << np.uint64(1)) & np.uint64(0x55555555)
    return points[np.argsort(places[:, 0] | places[:, 1] << np.uint64(1))]


def _near(scale: int, degree: int) -> Edges:
    from scipy.spatial import cKDTree

    count = 1 << scale
    tree = cKDTree(_points(scale))
    pairs = tree.query_pairs(np.sqrt(degree / np.pi / count), output_type="ndarray")
    low, high = _simple(pairs[:, 0], pairs[:, 1], count)
    text = f"2**{scale} uniform points in Z order, {degree} of the others near each"
    return low, high, count, f"{text}, seed {SEED}"


def _delaunay(scale: int) -> Edges:
    from scipy.spatial import Delaunay

    count = 1 << scale
    corners = Delaunay(_points(scale)).simplices
    u = np.concatenate([corners[:, 0], corners[:, 1], corners[:, 2]])
    v = np.concatenate([corners[:, 1], corners[:, 2], corners[:, 0]])
    low, high = _simple(u, v, count)
    text = (
        f"Delaunay triangulation of 2**{scale} uniform points in Z order, seed {SEED}"
    )
    return low, high, count, text


def _road(side: int) -> Edges:
    """Delete streets of a lattice and put chains of vertices in place of the others."""
    rng = np.random.default_rng(SEED)
    crossing = np.arange(side * side).reshape(side, side)
    u = np.concatenate([crossing[:, :-1].ravel(), crossing[:-1].ravel()])
    v = np.concatenate([crossing[:, 1:].ravel(), crossing[1:].ravel()])
    exists = rng.random(u.size) < STREETS
    order = np.argsort(u[exists], kind="stable")
    u, v = u[exists][order], v[exists][order]
    length = rng.integers(0, LONGEST_STREET + 1, u.size)
    # The vertices of a street are numbered behind the crossing that it starts at.
    before = np.concatenate([[0], np.cumsum(length)])
    first_street = np.searchsorted(u, np.arange(side * side))
    number = np.arange(side * side) + before[first_street]
    begin = before[:-1] + u + 1
    street = np.repeat(np.arange(u.size), length + 1)
    step = np.arange(street.size) - np.repeat(
        np.cumsum(length + 1) - length - 1, length + 1
    )
    source = np.where(step == 0, number[u[street]], begin[street] + step - 1)
    target = np.where(step == length[street], number[v[street]], begin[street] + step)
    count = side * side + int(length.sum())
    low, high = _simple(source, target, count)
    text = f"{side} x {side} crossings, {STREETS:.0%} of the streets, each of 0 to "
    return low, high, count, text + f"{LONGEST_STREET} further vertices, seed {SEED}"


def _bricks(side: int) -> Edges:
    """Lay bricks: hexagons, in rows that are shifted by half of one."""
    number = np.arange(side * side).reshape(side, side)
    is_joined = np.add.outer(np.arange(side - 1), np.arange(side)) % 2 == 0
    u = np.append(number[:, :-1].ravel(), number[:-1][is_joined])
    v = np.append(number[:, 1:].ravel(), number[1:][is_joined])
    low, high = _simple(u, v, side * side)
    return low, high, side * side, f"corners of hexagons, {side} x {side}"


def _mesh(side: int, degree: int) -> Edges:
    """Join each point of a cubic lattice with those that are nearest to it."""
    steps = [s for s in product(range(-3, 4), repeat=3) if s > (0, 0, 0)]
    steps.sort(key=lambda step: sum(along**2 for along in step))
    number = np.arange(side**3).reshape(side, side, side)
    ends: tuple[list[Any], list[Any]] = [], []
    for step in steps[: degree // 2]:
        for end, sign in zip(ends, (-1, 1), strict=True):
            cut = (slice(max(sign * a, 0), side - max(-sign * a, 0)) for a in step)
            end.append(number[tuple(cut)].ravel())
    low, high = _simple(*map(np.concatenate, ends), side**3)
    return low, high, side**3, f"{side}^3 points, each with {degree} near ones"


def _chains(scale: int) -> tuple[fg.Graph, str]:
    """Draw a web with chains: as many vertices again, in chains of up to 2,000.

    A chain leads out of the web and back into it, out of it only, into it only, or in
    a circle of its own, in turn. Vertices are numbered in any order.
    """
    web = generators.rmat(scale, 22, seed=SEED)
    rng = np.random.default_rng(SEED)
    count = web.vertex_count
    lengths = np.minimum(rng.geometric(1 / 200, count // 200), 2000)
    begins = count + np.cumsum(lengths) - lengths
    ends, kind = begins + lengths - 1, np.arange(lengths.size) % 4
    inner = np.setdiff1d(np.arange(count, count + lengths.sum()), ends)
    out, into = rng.integers(0, count, (2, lengths.size))
    circle = kind == 3
    sources = [web.sources, inner, out[kind <= 1], ends[kind % 2 == 0], ends[circle]]
    targets = [
        web.targets, inner + 1, begins[kind <= 1], into[kind % 2 == 0], begins[circle]
    ]  # fmt: skip
    number = rng.permutation(count + int(lengths.sum()))
    graph = fg.Graph.from_edges(
        number[np.concatenate(sources)],
        number[np.concatenate(targets)],
        vertex_count=number.size,
    )
    return graph, f"rmat({scale}, 22) with as many vertices in chains, seed {SEED}"


def data_folder() -> str:
    """Return the folder of real networks and ratings."""
    return os.environ.get("FEATGRAPH_DATA", str(ROOT.parent / "shared" / "data"))


def movielens(folder: str, name: str) -> Any:
    """Return users x items, float64; ids as they first occur in order."""
    path, delimiter, header = RATINGS[name]
    table = np.loadtxt(
        Path(folder) / path, delimiter=delimiter, skiprows=header, usecols=(0, 1, 2)
    )
    users, items = (np.unique(table[:, c], return_inverse=True)[1] for c in (0, 1))
    return scipy.sparse.csr_matrix((table[:, 2], (users, items)))


def _file(name: str) -> Path:
    file = Path(data_folder()) / REAL[name]
    if not file.exists():
        raise SystemExit(f"{name} is read from {file}; set FEATGRAPH_DATA")
    return file


def _real(name: str) -> Edges:
    file = _file(name)
    if file.name.endswith(".csv.gz"):
        pairs = np.loadtxt(file, dtype=np.int64, delimiter=",", skiprows=1)
        u, v, count = pairs[:, 0], pairs[:, 1], int(pairs.max()) + 1
    else:
        read = fg.read_graph(file)
        u, v, count = read.sources, read.targets, read.vertex_count
    low, high = _simple(u, v, count)
    return low, high, count, f"{name}, made simple and symmetric"


def _directed(name: str) -> tuple[fg.Graph, str]:
    return fg.read_graph(_file(name), directed=True), f"{name}-directed"


def _kron(
    scale: int,
    mixed: bool,
    drawn: tuple[float, float, float, float] = (A, B, C, KRON_DRAWS_A_VERTEX),
) -> Edges:
    """Draw R-MAT edges, drop loops and repeats, and take each both ways.

    A hash of (seed, draw, level) is the random number: any machine and any number of
    threads gives the same graph, in seconds.
    """
    count = 1 << scale
    ids = np.arange(count, dtype=np.int64)
    if mixed:
        ids = np.random.default_rng(SEED).permutation(ids)
    *(a, b, c), draws = drawn
    keys = np.empty(int(draws * count), np.int64)
    limits = (np.array([a, a + b, a + b + c]) * 2.0**32).astype(np.uint64)
    _draw_keys(scale, SEED, limits, ids, keys)
    keys = distinct(keys[keys >= 0])
    low, high = (keys >> scale).astype(np.int32), (keys & (count - 1)).astype(np.int32)
    text = f"simple symmetric R-MAT, scale {scale}, {draws} draws a vertex, "
    text += f"a={a} b={b} c={c}, seed {SEED}{', shuffled' if mixed else ''}"
    return low, high, count, text


@njit(parallel=True)
def _draw_keys(scale, seed, limits, ids, keys):  # type: ignore[no-untyped-def]
    """Fill `keys` with ``low << scale | high`` of drawn edges, -1 for self-loops."""
    for draw in prange(keys.size):
        u = v = 0
        bits = uint64(0)
        for level in range(scale):
            if level % 2 == 0:  # 64 bits serve two levels
                # SplitMix64 (Steele, Lea, Flood 2014) of a counter.
                bits = uint64(seed) + uint64(draw * 32 + level) * uint64(
                    0x9E3779B97F4A7C15
                )
                bits = (bits ^ (bits >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
                bits = (bits ^ (bits >> uint64(27))) * uint64(0x94D049BB133111EB)
                bits = bits ^ (bits >> uint64(31))
            here = bits & uint64(0xFFFFFFFF)
            bits = bits >> uint64(32)
            lower = here >= limits[1]
            right = (limits[0] <= here and not lower) or here >= limits[2]
            u = 2 * u + int(lower)
            v = 2 * v + int(right)
        low, high = min(ids[u], ids[v]), max(ids[u], ids[v])
        keys[draw] = -1 if u == v else (low << scale) | high


#: Pattern of a name, the function of its groups that makes the graph, and whether the
#: edges are kept in a folder.
MAKERS: tuple[tuple[str, Callable[..., Any], bool], ...] = (
    (r"rmat-1m", lambda: _rmat(20, 16), False),
    (r"rmat-(\d+)-(\d+)", _rmat, False),
    (r"rmat45-(\d+)-(\d+)", _rmat45, False),
    (r"uniform-(\d+)-(\d+)", _uniform, False),
    (r"kron-?(\d+)(-mixed)?", lambda s, mixed: _kron(s, bool(mixed)), True),
    (
        r"graph500-(\d+)(-mixed)?",
        lambda s, mixed: _kron(s, bool(mixed), GRAPH500),
        True,
    ),
    (r"mild-?(\d+)", lambda s: _kron(s, False, MILD), True),
    (r"grid(\d+)", lambda n: (generators.grid(n, n), f"grid({n}, {n})"), False),
    (r"path(\d+)", lambda n: (generators.grid(1, n), f"grid(1, {n})"), False),
    (r"delaunay(\d+)", _delaunay, True),
    (r"rgg-(\d+)-(\d+)", _near, True),
    (r"road(\d+)", _road, True),
    (r"bricks(\d+)", _bricks, True),
    (r"mesh-(\d+)-(\d+)", _mesh, True),
    (r"chains-(\d+)", _chains, False),
    (f"({'|'.join(REAL)})", _real, True),
    (f"({'|'.join(REAL)})-directed", _directed, False),
)


def main() -> None:
    """Make the graphs named on the command line, and store them in the cache folder."""
    for name in sys.argv[1:]:
        print(make_graph(name).describe(), flush=True)


if __name__ == "__main__":
    main()
