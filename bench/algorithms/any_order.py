"""Supersteps, edges and time of monotone programs, by which values a vertex sees.

Shortest paths from one vertex, with lengths of 1 to 255, to their ends: synchronous,
asynchronous, with far vertices waiting, and both. Components by smallest labels, which
are no distances: the first two. Edges are those into the vertices that supersteps were
due on, or out of active ones where they pushed, over all edges; where commits spread,
also into those that became due, whether their turn was yet to come or not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import featgraph as fg
from bench.graphs import SEED, make_graph
from bench.record import Recorder
from bench.timing import Contender, interleave
from featgraph.algorithms.sssp import step as paths
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.devices.protocol import BoundEntry, Device
from featgraph.runtime.loops.worklist import CpuQueue
from featgraph.runtime.loops.worklist_cuda import CudaQueue
from featgraph.runtime.memory.graph_arrays import graph_arrays

#: The loop over few vertices of a GPU is compiled behind runs, and not otherwise.
COMPILES_BEHIND = True
DEFAULTS = {"graph": ["grid1000", "kron-15"], "repeat": 5, "target": "cpu"}
LONGEST = 255
MOST_SUPERSTEPS = 1_000_000


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take the label of the source."""
    return d.label[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    """Keep the smallest label."""
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


components = fg.foldmap(lowest, adopt)


def _paths_state(graph: fg.Graph) -> dict[str, Any]:
    count = graph.vertex_count
    root = int(np.argmax(graph.out_degree))
    distance = np.full((count, 1), np.inf, np.float32)
    distance[root] = 0
    rng = np.random.default_rng(SEED)
    length = rng.integers(1, LONGEST + 1, graph.given_edge_count)
    return {
        "distance": fg.vertex_property(distance, iterated=True),
        "predecessor": fg.vertex_property(
            -1, shape=(1,), dtype=np.int32, iterated=True
        ),
        "weight": fg.edge_property(length.astype(np.float32)),
    }


def _labels_state(graph: fg.Graph) -> dict[str, Any]:
    label = np.arange(graph.vertex_count, dtype=np.int32)
    return {"label": fg.vertex_property(label, iterated=True)}


#: Program -> foldmap, state, key, deltas of `near_far` by name.
PROGRAMS: dict[str, tuple[Any, Any, str, tuple[float | None, ...]]] = {
    "sssp": (paths, _paths_state, "distance", (None, LONGEST / 4, 16.0 * LONGEST)),
    "components": (components, _labels_state, "label", ()),
}


def _ways(key: str, deltas: tuple[float | None, ...]) -> dict[str, dict[str, Any]]:
    ways: dict[str, dict[str, Any]] = {
        "synchronous": {},
        "asynchronous": {"asynchronous": True},
    }
    for delta in deltas:
        size = "default" if delta is None else f"{delta:g}"
        near_far = {"near_far": fg.NearFar(key, delta)}
        ways[f"near_far, delta {size}"] = near_far
        ways[f"both, delta {size}"] = {**near_far, "asynchronous": True}
    return ways


class _Problem:
    """A program on a graph, from its beginning each time."""

    def __init__(self, name: str, graph: fg.Graph, target: str) -> None:
        self.step, make, self.key, self.deltas = PROGRAMS[name]
        self.state, self.target = fg.State(graph, **make(graph)), target
        names = self.state.signature.keys() & {"distance", "predecessor", "label"}
        self.start = {name: self.state[name].copy() for name in names}
        self.root = None
        if name == "sssp":
            self.root = np.flatnonzero(self.start["distance"][:, 0] == 0)

    def reset(self) -> None:
        for name, values in self.start.items():
            self.state[name] = values

    def iterate(self, **options: Any) -> fg.Run:
        options |= {"target": self.target, "max_supersteps": MOST_SUPERSTEPS}
        return fg.iterate(self.step, self.state, active=self.root, **options)


@contextmanager
def _counting(graph: fg.Graph, target: str) -> Iterator[list[int]]:
    """Count the edges that gathers are launched on: into due vertices, or pushed."""
    device = type(choose_device(target))
    launch, edges = device.launch, [0]
    loop: Any = CpuQueue if target == "cpu" else CudaQueue
    run_several = loop.run_several

    def counted_several(self: Any, *arguments: Any) -> Any:
        ran = run_several(self, *arguments)
        edges[0] += 0 if ran is None else ran.edges
        return ran

    def counted(self: Device, bound: BoundEntry, given: dict[str, Any]) -> None:
        launch(self, bound, given)
        phase = bound.phase
        functions = bound.kernel.plan.functions_of(phase)
        if bound.entry.role != "main" or all(not f.kind.gathers for f in functions):
            return
        pushes = phase.kind.pushes
        chosen = given["active_sources" if pushes else "due"]
        arrays, along = graph_arrays(graph, self), "out" if pushes else "in"
        edges[0] += self.sets.edges_of(chosen, arrays, along)

    with (
        mock.patch.object(device, "launch", counted),
        mock.patch.object(loop, "run_several", counted_several),
    ):
        yield edges


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time every way on every graph; hold the fixpoints against each other."""
    recorder.use(arguments.target)
    for graph_name in arguments.graph:
        named = make_graph(graph_name)
        for name in PROGRAMS:
            problem = _Problem(name, named.graph, arguments.target)
            ways = _ways(problem.key, problem.deltas)
            contenders, ends = [], {}
            for way, options in ways.items():
                problem.reset()
                with _counting(problem.state.graph, problem.target) as counted:
                    fields = {"supersteps": problem.iterate(**options).supersteps}
                evaluated = counted[0] / named.graph.edge_count
                fields["edges_evaluated"] = round(evaluated, 2)
                ends[way] = problem.state[problem.key].copy()
                call = partial(problem.iterate, **options)
                contenders.append(Contender(way, call, problem.reset, fields=fields))
            interleave(contenders, arguments.repeat, warm_up=1)
            for one in contenders:
                same = bool(np.array_equal(ends[one.name], ends["synchronous"]))
                recorder.add(
                    one.name, one.trials, **one.fields, program=name,
                    target=arguments.target, graph=named.describe(),
                    checks={"ok": same},
                )  # fmt: skip
