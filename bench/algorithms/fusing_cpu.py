"""Three ways to say multimodal learning, a superstep of each on the CPU.

============================  ======================================================
fused before the first        an edge has one number; what the algorithm does
fused in every superstep      an edge has M, and a gather weights and adds them up
outer product of each edge    the M x k matrix of the recurrence, M = k, then a AGGR
============================  ======================================================
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import make_graph
from bench.record import Recorder
from bench.timing import Contender, interleave
from featgraph.algorithms.multimodal_learning import step as fused_before
from featgraph.runtime.devices.choose import choose_device

DEFAULTS = {"graph": ["rmat-1m"], "k": [4], "repeat": 5, "modalities": 4}
#: Bound on the norm of the difference over the norm, float32 against float64.
LIMIT = 1e-5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--modalities", type=int, help="M; the outer product has M = k")


def fused_in_every_superstep(modality_count: int) -> fg.FoldMap:
    """Return the foldmap in which a gather reads all M weights of an edge."""

    @fg.gather(into="aggr", combine="sum")
    def fuse(f, u, v, e, d):  # type: ignore[no-untyped-def]
        c = 0.0
        for m in range(modality_count):
            c += d.alpha[m] * d.weight[e, m]
        return c * d.mmode[u, f]

    return fg.foldmap(fuse, learn)


@fg.vertex
def learn(f, v, d):  # type: ignore[no-untyped-def]
    new = d.aggr[v, f] + d.rest * d.given[v, f]
    d.mmode_next[v, f] = new
    return fg.any_feature(abs(new - d.mmode[v, f]) > d.epsilon)


@fg.gather(into="AGGR", combine="sum", matrix=True)
def outer_products(i, f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.weight[e, i] * d.mmode[u, f]


@fg.vertex
def learn_from_matrix(f, v, d):  # type: ignore[no-untyped-def]
    fused = fg.matvec(d.AGGR[v], d.alpha[f], transpose=True)
    new = fused + d.rest * d.given[v, f]
    d.mmode_next[v, f] = new
    return fg.any_feature(abs(new - d.mmode[v, f]) > d.epsilon)


by_matrix = fg.foldmap(outer_products, learn_from_matrix)


class Superstep:
    """One superstep on a state of its own."""

    def __init__(self, foldmap: fg.FoldMap, graph: fg.Graph, inputs: Any) -> None:
        given, weights, alpha = inputs
        self.given = given
        self.state = fg.State(
            graph,
            mmode=fg.vertex_property(given, iterated=True),
            given=fg.vertex_property(given),
            weight=fg.edge_property(weights),
            fused=fg.edge_property((weights @ alpha).astype(np.float32)),
            alpha=alpha,
            rest=float(1 - alpha.sum()),
            epsilon=-1.0,  # every vertex commits
        )
        self.superstep = foldmap.prepare(self.state, choose_device("cpu"), {})

    def __call__(self) -> None:
        """Run it."""
        self.superstep.run()

    def reset(self) -> None:
        """Go back to what was given."""
        self.state["mmode"] = self.given


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Check every contender against NumPy, then time them in turn."""
    for name in arguments.graph:
        named = make_graph(name)
        graph = named.graph
        for k in arguments.k:
            rng = np.random.default_rng(1)
            m = arguments.modalities
            given = rng.random((graph.vertex_count, k), np.float32)
            weights = rng.random((graph.given_edge_count, m), np.float32)
            alpha = np.full(m, 0.9 / m, np.float32)
            inputs = given, weights, alpha
            foldmaps = {
                "fused before the first": fused_before,
                "fused in every superstep": fused_in_every_superstep(m),
            }
            if m == k:
                foldmaps["outer product of each edge"] = by_matrix
            contenders, checks = [], {}
            expected = _expected(graph, *inputs)
            for contender, foldmap in foldmaps.items():
                call = Superstep(foldmap, graph, inputs)
                call()
                error = float(
                    np.linalg.norm(call.state["mmode"] - expected)
                    / np.linalg.norm(expected)
                )
                checks[contender] = {"ok": error <= LIMIT, "error": error}
                contenders.append(Contender(contender, call, call.reset))
            trials = interleave(contenders, arguments.repeat)
            for (contender, _), taken in trials.items():
                recorder.add(
                    contender,
                    taken,
                    k=k,
                    modalities=m,
                    checks=checks[contender],
                    graph=named.describe(),
                )


def _expected(graph: fg.Graph, given: Any, weights: Any, alpha: Any) -> Any:
    fused = weights.astype(np.float64) @ alpha
    ends = [(graph.sources, graph.targets, fused)]
    if not graph.directed:
        twins = graph.sources != graph.targets
        ends.append((graph.targets[twins], graph.sources[twins], fused[twins]))
    aggr = np.zeros(given.shape)
    for sources, targets, c in ends:
        np.add.at(aggr, targets, c[:, None] * given[sources])
    return aggr + (1 - float(alpha.sum())) * given
