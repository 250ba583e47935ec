"""Schedules beside each other: the table of warp segmentation, and shared pushes.

``segments``: the eight programs of Khorasani et al. 2015 (Table IV), whole runs, with
``warp_segmentation`` (1, 2 and 4 edges on the way), ``lanes``, and ``virtual_warp``
with 2 to 32 lanes. At the end stands how much faster the best of the first is than the
best and the worst of the last, and than ``lanes``. ``shares``: one pushed superstep
from 0.1, 1, 10 and 100% of the vertices, as it is and with ``balanced_push``.

Answers are compared with those of ``lanes`` outside of what is timed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import NamedGraph, make_graph
from bench.record import Recorder, gpu_name
from bench.timing import time_call
from featgraph.algorithms.bfs import bfs
from featgraph.algorithms.circuit_simulation import circuit_simulation
from featgraph.algorithms.connected_components import connected_components
from featgraph.algorithms.heat_simulation import heat_simulation
from featgraph.algorithms.neural_network import neural_network
from featgraph.algorithms.pagerank import pagerank
from featgraph.algorithms.sssp import sssp
from featgraph.algorithms.sswp import sswp

__all__ = ["ACTIVE", "PROGRAMS", "SCHEDULES", "SHARES", "add_arguments", "run"]

SEED = 20261123
DEFAULTS = {
    "graph": ["rmat45-20-16", "uniform-20-16", "kron21", "delaunay20", "road1000",
              "web-NotreDame-directed", "soc-Epinions1-directed"],
    "pushed": ["kron21", "grid4096"],
    "k": [1, 4, 8, 32],
    "repeat": 5,
    "budget": 550.0,
    "most": 400,
    "parts": ["segments", "shares"],
}  # fmt: skip
WARPS = {
    f"virtual_warp {n}": {"schedule": "virtual_warp", "lanes_per_vertex": n}
    for n in (2, 4, 8, 16, 32)
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "lanes": {"schedule": "lanes"},
    **WARPS,
    **{
        f"warp_segmentation {n}": {
            "schedule": "warp_segmentation",
            "edges_at_a_time": n,
        }
        for n in (1, 2, 4)
    },
}
KINDS = ("lanes", "virtual_warp", "warp_segmentation")
SHARES = {"push": {"schedule": "lanes"}, "shared": {"schedule": "balanced_push"}}
#: Shares of the vertices that push.
ACTIVE = (0.001, 0.01, 0.1, 1.0)
#: Supersteps of a batch that is timed.
BATCH = 10
#: Values that no order of additions changes by more, of the largest.
TOLERANCE = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=DEFAULTS["parts"])
    parser.add_argument("--pushed", nargs="+", help="graphs of the part `shares`")
    parser.add_argument("--budget", type=float, help="s after which no cell starts")
    parser.add_argument("--most", type=int, help="supersteps of a run")


class Inputs:
    """What the eight programs are given on a graph, all values from one seed."""

    def __init__(self, graph: fg.Graph) -> None:
        rng, count = np.random.default_rng(SEED), graph.vertex_count
        self.graph = graph
        self.source = int(np.argmax(graph.out_degree))
        # Of quarters: sums of them are exact, so paths of one length compare equal.
        self.weights = rng.integers(1, 256, graph.given_edge_count) / np.float32(4)
        self.voltages = np.full(count, np.nan)
        self.voltages[rng.choice(count, min(32, count), replace=False)] = 1.0
        self.voltages[self.source] = 0.0
        self.heat = rng.random(count)
        self.outputs = np.where(rng.random(count) < 0.1, rng.random(count), np.nan)

    @cached_property
    def both_ways(self) -> fg.Graph:
        """The graph with its edges in both directions."""
        graph = self.graph
        if not graph.directed:
            return graph
        ends, count = (graph.sources, graph.targets), graph.vertex_count
        return fg.Graph.from_edges(*ends, vertex_count=count, directed=False)


def _bfs(i: Inputs, **o: Any) -> Any:
    return bfs(i.graph, i.source, **o).levels


def _components(i: Inputs, **o: Any) -> Any:
    return connected_components(i.graph, method="propagate", **o).labels


def _circuit(i: Inputs, **o: Any) -> Any:
    o |= {"max_supersteps": 50, "change_driven": False}
    return circuit_simulation(i.both_ways, i.voltages, dtype=np.float32, **o).voltages


def _heat(i: Inputs, **o: Any) -> Any:
    o |= {"max_supersteps": 50, "change_driven": False}
    return heat_simulation(i.both_ways, i.heat, dtype=np.float32, **o).temperatures


def _network(i: Inputs, **o: Any) -> Any:
    o |= {"max_supersteps": 50, "change_driven": False}
    return neural_network(i.graph, i.outputs, **o).outputs


def _pagerank(i: Inputs, **o: Any) -> Any:
    o |= {"max_supersteps": 20, "change_driven": False}
    return pagerank(i.graph, tol=0.0, **o).ranks


def _shortest(i: Inputs, **o: Any) -> Any:
    return sssp(i.graph, i.source, weights=i.weights, **o).distances


def _widest(i: Inputs, **o: Any) -> Any:
    return sswp(i.graph, i.source, weights=i.weights, **o).widths


#: As the table has them, each a whole run that returns its answer.
PROGRAMS: dict[str, Callable[..., Any]] = {
    "BFS": _bfs,
    "CC": _components,
    "CS": _circuit,
    "HS": _heat,
    "NN": _network,
    "PR": _pagerank,
    "SSSP": _shortest,
    "SSWP": _widest,
}


@fg.gather(into="given", combine="sum", sources="active")
def values_of_active(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take a value of an active neighbor, weighted by the edge."""
    return d.weight[e] * d.x[u, f]


@fg.vertex
def keep(f, v, d):  # type: ignore[no-untyped-def]
    """Keep the sum, and announce nothing."""
    d.y[v, f] = d.given[v, f]
    return False


pushed = fg.foldmap(values_of_active, keep)


def pushed_state(graph: fg.Graph, k: int) -> fg.State:
    """Return a State of the pushed superstep, of `k` features."""
    rng = np.random.default_rng(SEED)
    values = rng.integers(0, 16, (graph.vertex_count, k)).astype(np.float32)
    weights = rng.integers(1, 4, graph.given_edge_count).astype(np.float32)
    return fg.State(
        graph,
        x=fg.vertex_property(values),
        y=fg.vertex_property(np.zeros_like(values)),
        weight=fg.edge_property(weights),
    )


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time every cell; what raises is reported, and the rest goes on."""
    begun = time.perf_counter()
    recorder.device = gpu_name()
    if recorder.device is None:
        raise SystemExit("schedules-gpu needs a GPU")
    warnings.simplefilter("ignore", fg.ConvergenceWarning)
    parts = {"segments": (_segments, arguments.graph), "shares": (_shares, None)}
    for part in arguments.parts:
        measure, graphs = parts[part]
        for name in graphs or arguments.pushed:
            named = make_graph(name)
            print(f"[{time.perf_counter() - begun:.1f} s] {name} is made", flush=True)
            for contender, cell, call in measure(named, arguments, recorder):
                if time.perf_counter() - begun > arguments.budget:
                    print(f"no time left for {cell} | {contender}", flush=True)
                    continue
                about = named.describe()
                recorder.attempt(contender, call, cell=cell, part=part, graph=about)
    for line in summary(recorder.lines):
        print(line, flush=True)


def summary(lines: list[dict[str, Any]]) -> list[str]:
    """Return for each cell how much faster segments are: a cell of the table each."""
    cells: dict[str, dict[str, float]] = {}
    for line in lines:
        if line.get("part") == "segments" and "median_ms" in line:
            cells.setdefault(line["cell"], {})[line["contender"]] = line["median_ms"]
    out = []
    for cell, ms in cells.items():
        kinds = {k: [t for n, t in ms.items() if n.startswith(k)] for k in KINDS}
        if not all(kinds.values()):
            continue
        best = min(kinds["warp_segmentation"])
        warps, lanes = kinds["virtual_warp"], kinds["lanes"][0]
        out.append(
            f"{cell}: {best:.4g} ms, {min(warps) / best:.2f} to "
            f"{max(warps) / best:.2f} times faster than virtual_warp, "
            f"{lanes / best:.2f} than lanes"
        )
    return out


Cells = Iterator[tuple[str, str, Callable[[], None]]]


def _segments(
    named: NamedGraph, arguments: argparse.Namespace, recorder: Recorder
) -> Cells:
    """Yield contender, cell, and what measures it: a program in a schedule."""
    inputs = Inputs(named.graph)
    for program, function in PROGRAMS.items():
        known: list[Any] = []
        for contender, schedule in SCHEDULES.items():
            options = {
                "target": "cuda",
                "direction": "pull",
                "max_supersteps": arguments.most,
                **schedule,
            }

            def call(f: Any = function, o: Any = options) -> Any:
                return f(inputs, **o)

            def measure(
                c: Any = call, name: str = contender, k: Any = known, p: str = program
            ) -> None:
                first = time_call(lambda: k.append(c()))  # compiles, uploads
                checks = _compare(k[-1], k[0])
                if len(k) > 1:
                    k.pop()
                trials = [time_call(c) for _ in range(arguments.repeat)]
                recorder.add(
                    name, trials, part="segments", cell=f"{named.name} | {p}",
                    graph=named.describe(), checks=checks, first_call_ms=first,
                )  # fmt: skip

            yield contender, f"{named.name} | {program}", measure


def _shares(
    named: NamedGraph, arguments: argparse.Namespace, recorder: Recorder
) -> Cells:
    """Yield the same for a pushed superstep from a share of the vertices."""
    graph, rng = named.graph, np.random.default_rng(SEED)
    masks = {share: rng.random(graph.vertex_count) < share for share in ACTIVE}
    for k in arguments.k:
        for share, mask in masks.items():
            known: list[Any] = []
            for contender, schedule in SHARES.items():
                options = {"target": "cuda", "direction": "push", **schedule}

                def measure(
                    name: str = contender, k: int = k, share: float = share,
                    mask: Any = mask, o: Any = options, known: list[Any] = known,
                ) -> None:  # fmt: skip
                    state = pushed_state(graph, k)
                    active = fg.ActiveSet(graph, mask)

                    def batch() -> None:
                        for _ in range(BATCH):
                            pushed(state, active_in=active, **o)
                        state["y"]  # waits

                    first = time_call(batch)
                    known.append(np.array(state["y"]))
                    trials = [time_call(batch) for _ in range(arguments.repeat)]
                    recorder.add(
                        name, [t / BATCH for t in trials], part="shares", k=k,
                        cell=f"{named.name} | {share:.1%} active",
                        active=int(mask.sum()),
                        edges=int(graph.out_degree[mask].sum()),
                        graph=named.describe(), first_call_ms=first,
                        checks=_compare(known[-1], known[0]),
                    )  # fmt: skip

                yield contender, f"{named.name} | {share:.1%} active, K = {k}", measure


def _compare(answer: Any, expected: Any) -> dict[str, Any]:
    """Compare an answer with that of the first contender."""
    answer, expected = np.asarray(answer), np.asarray(expected)
    if answer.dtype.kind != "f":
        return {"ok": bool((answer == expected).all())}
    ours, theirs = (np.nan_to_num(a, posinf=-1, neginf=-1) for a in (answer, expected))
    scale = float(np.abs(theirs).max(initial=1e-30))
    error = float(np.abs(ours - theirs).max(initial=0)) / scale
    return {"ok": error <= TOLERANCE, "error": error}
