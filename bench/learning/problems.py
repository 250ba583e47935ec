"""The five learning algorithms of the tables: recurrences, inputs, initial states.

=====  ==============================================================================
LP     label propagation, K classes, 5% of the vertices clamped seeds, random weights
ALS    alternating least squares, K factors: the vertices are 2-coloured at random and
       the edges between the colours kept; the colours take turns
BP     belief propagation in logs, K states, one attractive matrix for all edges
BP-E   the same with a matrix of its own for each edge
MMR    multi-manifold ranking: K rankings, each with its own weight on every edge;
       the weighted mean of the sources
MML    multimodal learning, K classes: the weights of four modalities on every edge
       are fused into one before the first superstep
=====  ==============================================================================

All settle, so that every variant ends in the same place: fused weights of MML are
divided by the square roots of the degrees of both ends, the couplings of BP fit the
degrees. LP, MMR and MML are the recurrences of `featgraph.algorithms`. BP takes its
exponentials a state, not a pair of states as `algorithms.belief_propagation` does,
which keeps impossible states apart, as a kernel written for speed would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import featgraph as fg
from featgraph.algorithms.label_propagation import step as label_step
from featgraph.algorithms.multi_manifold_ranking import STEPS as RANKING_STEPS
from featgraph.algorithms.multimodal_learning import step as multimodal_step
from featgraph.runtime.memory.buffers import buffers_of

NAMES = ("LP", "ALS", "BP", "MMR", "MML")
ALPHA = 0.85
SEED = 7
SEED_SHARE = 0.05
RIDGE = 1.0
MODALITIES = 4


@fg.gather(into="weighted", combine="sum")
def others_factors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Feature f of the other side's factor, weighted by the rating."""
    return d.rating[e] * d.factor[u, f]


@fg.gather(into="gram", combine="sum", matrix=True)
def gram(i, f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Entry of the Gram matrix of the other side's factors."""
    return d.factor[u, i] * d.factor[u, f]


@fg.vertex
def least_squares(f, v, d):  # type: ignore[no-untyped-def]
    """Solve the regularised normal equations."""
    new = fg.solve(
        d.gram[v], d.weighted[v, f], diagonal=d.ridge * d.in_degree[v], spd=True
    )
    d.factor_next[v, f] = new
    return fg.any_feature(abs(new - d.factor[v, f]) > d.epsilon)


@fg.edge
def message(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Send the belief of u without v through the matrix of all edges."""
    cavity = d.belief[u, f] - d.msg[fg.reverse(e), f]
    x = math.exp(cavity - fg.feature_max(cavity))
    m = math.log(fg.matvec(d.psi, x))
    m = m - fg.feature_max(m)
    d.msg_next[e, f] = m
    return fg.any_feature(abs(m - d.msg[e, f]) > d.epsilon)


@fg.edge
def message_of_edge(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Send the belief of u without v through the symmetric matrix of the edge."""
    cavity = d.belief[u, f] - d.msg[fg.reverse(e), f]
    x = math.exp(cavity - fg.feature_max(cavity))
    m = math.log(fg.matvec(d.psi[e], x))
    m = m - fg.feature_max(m)
    d.msg_next[e, f] = m
    return fg.any_feature(abs(m - d.msg[e, f]) > d.epsilon)


@fg.gather(into="total", combine="sum")
def messages(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Add up the messages of the edges."""
    return d.msg_next[e, f]


@fg.vertex
def believe(f, v, d):  # type: ignore[no-untyped-def]
    """Add all messages to the potential of the vertex."""
    b = d.phi[v, f] + d.total[v, f]
    d.belief_next[v, f] = b
    return fg.any_feature(abs(b - d.belief[v, f]) > d.epsilon)


_als = fg.foldmap(others_factors, gram, least_squares)
_bp = fg.foldmap(message, messages, believe)
_bp_of_edges = fg.foldmap(message_of_edge, messages, believe)


@dataclass
class LearningProblem:
    """One algorithm on one graph, ready to run.

    Attributes
    ----------
    name : str
    graph : Graph
        That it runs on; for ALS the bipartite part of the one given.
    k : int
    steps : list of FoldMap
        For `fg.iterate`.
    state : State
    result : str
        The vertex property that is the answer.
    initial : dict
        Initial values of the iterated properties, in kernel order.
    epsilon : float
    sides : list of array
        ALS: the vertices of each colour that have edges.
    inputs : str
        The inputs in words.
    """

    name: str
    graph: fg.Graph
    k: int
    steps: list[Any]
    state: fg.State
    result: str
    epsilon: float
    inputs: str
    sides: list[Any] = field(default_factory=list)
    initial: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, type_ in self.state.signature.items():
            if type_.iterated:
                self.initial[name] = np.array(self.state.stored(name))

    def reset(self, device: Any) -> None:
        """Go back to the initial values, and bring them to the device."""
        for name, values in self.initial.items():
            column = self.state._columns[name]
            if column.type.kind.value == "vertex":
                self.state[name] = values
            else:
                # In kernel order already: sorting 85M rows again would take seconds.
                column.values = values.copy()  # the CPU target writes in place
                self.state.version += 1
                if self.state.residency is not None:
                    self.state.residency.written(name)
        buffers = buffers_of(self.state, device)
        for name in self.state.signature:
            if self.state.signature[name].kind.value in {"vertex", "edge"}:
                buffers.property(name)
        device.synchronize()

    def answer(self) -> Any:
        """Return the result as the variants are compared on it.

        Beliefs are unnormalised logs: the largest of a vertex becomes 0.
        """
        values = np.array(self.state.stored(self.result))
        return self.comparable(values)

    def comparable(self, values: Any) -> Any:
        """Return values of `result` as answers are compared."""
        if self.result == "belief":
            values = values - values.max(axis=1, keepdims=True)
            return np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
        return values


def make_problem(name: str, graph: fg.Graph, k: int) -> LearningProblem:
    """Make the inputs of an algorithm on an undirected graph."""
    makers = {
        "LP": _label_propagation,
        "ALS": _least_squares,
        "BP": _belief_propagation,
        "BP-E": _belief_propagation_of_edges,
        "MMR": _ranking,
        "MML": _multimodal,
    }
    return makers[name](graph, k, np.random.default_rng(SEED))


def _random_seeds(graph: fg.Graph, k: int, rng: Any) -> tuple[Any, Any]:
    """Return (V, K) rows of one class each at the seeds, and the seeds' mask."""
    is_seed = rng.random(graph.vertex_count) < SEED_SHARE
    is_seed[0] = True
    classes = rng.integers(0, k, graph.vertex_count)
    rows = np.zeros((graph.vertex_count, k), np.float32)
    rows[is_seed, classes[is_seed]] = 1
    return rows, is_seed


def _label_propagation(graph: fg.Graph, k: int, rng: Any) -> LearningProblem:
    rows, is_seed = _random_seeds(graph, k, rng)
    weight = rng.random(graph.given_edge_count, np.float32) + np.float32(0.5)
    state = fg.State(
        graph,
        label=fg.vertex_property(rows, iterated=True),
        clamped=fg.vertex_property(is_seed),
        weight=fg.edge_property(weight),
        alpha=ALPHA,
        epsilon=1e-3,
    )
    inputs = f"{k} classes, {SEED_SHARE:.0%} seeds, weights U(0.5, 1.5), alpha {ALPHA}"
    steps = [label_step]
    return LearningProblem("LP", graph, k, steps, state, "label", 1e-3, inputs)


def _least_squares(graph: fg.Graph, k: int, rng: Any) -> LearningProblem:
    colour = rng.integers(0, 2, graph.vertex_count, np.int8)
    kept = colour[graph.sources] != colour[graph.targets]
    part = fg.Graph.from_edges(
        graph.sources[kept],
        graph.targets[kept],
        vertex_count=graph.vertex_count,
        directed=False,
    )
    used = part.in_degree > 0
    sides = [np.flatnonzero((colour == c) & used).astype(np.int32) for c in (0, 1)]
    factor = rng.random((graph.vertex_count, k), np.float32)
    rating = rng.integers(1, 6, part.given_edge_count).astype(np.float32)
    state = fg.State(
        part,
        factor=fg.vertex_property(factor, iterated=True),
        rating=fg.edge_property(rating),
        ridge=RIDGE,
        epsilon=1e-2,
    )
    inputs = f"{k} factors, random 2-colouring, ratings 1-5, lambda {RIDGE} x degree"
    return LearningProblem(
        "ALS", part, k, [_als.on(side) for side in sides], state, "factor", 1e-2,
        inputs, sides,
    )  # fmt: skip


def _coupling(graph: fg.Graph, k: int) -> float:
    """Return log psi[i, i] - log psi[i, j], so that beliefs settle soon.

    By mean field, k / (mean excess degree) is critical. Where degrees are about equal,
    this stays below half of that. Half of it would leave nothing to compute beside
    hubs, so that these are saturated instead.
    """
    degree = graph.in_degree.astype(np.float64)
    mean = max(degree.mean(), 1)
    excess = max((degree * degree).mean() / mean - 1, 1)
    return float(k / 2 / max(mean, excess**0.75))


def _potentials(graph: fg.Graph, k: int, rng: Any) -> tuple[Any, dict[str, Any]]:
    phi = np.log(rng.random((graph.vertex_count, k), np.float32) + np.float32(0.1))
    messages = np.zeros((2 * graph.given_edge_count, k), np.float32)
    return phi, {
        "phi": fg.vertex_property(phi),
        "belief": fg.vertex_property(phi, iterated=True),
        "msg": fg.edge_property(messages, iterated=True, per_direction=True),
    }


def _belief_propagation(graph: fg.Graph, k: int, rng: Any) -> LearningProblem:
    coupling = _coupling(graph, k)
    noise = rng.random((k, k), np.float32) * coupling / 4
    psi = np.exp(np.eye(k) * coupling - (noise + noise.T) / 2).astype(np.float32)
    _, properties = _potentials(graph, k, rng)
    state = fg.State(graph, psi=psi, epsilon=1e-4, **properties)
    inputs = f"{k} states, one attractive matrix, coupling {coupling:.3g}"
    return LearningProblem("BP", graph, k, [_bp], state, "belief", 1e-4, inputs)


def _belief_propagation_of_edges(graph: fg.Graph, k: int, rng: Any) -> LearningProblem:
    coupling = _coupling(graph, k)
    strength = rng.random(graph.given_edge_count, np.float32) * np.float32(2 * coupling)
    psi = np.ones((graph.given_edge_count, k, k), np.float32)
    for i in range(k):
        psi[:, i, i] = np.exp(strength)
    _, properties = _potentials(graph, k, rng)
    state = fg.State(graph, psi=fg.edge_property(psi), epsilon=1e-4, **properties)
    inputs = f"{k} states, a Potts matrix an edge, couplings U(0, {2 * coupling:.3g})"
    return LearningProblem(
        "BP-E", graph, k, [_bp_of_edges], state, "belief", 1e-4, inputs
    )


def _ranking(graph: fg.Graph, k: int, rng: Any) -> LearningProblem:
    query, _ = _random_seeds(graph, k, rng)
    state = fg.State(
        graph,
        score=fg.vertex_property(query, iterated=True),
        query=fg.vertex_property(query),
        weight=fg.edge_property(_weights(graph, k, rng)),
        alpha=ALPHA,
        epsilon=1e-4,
    )
    inputs = f"{k} manifolds, {SEED_SHARE:.0%} queries, weights U(0.1, 1), their mean"
    steps = [RANKING_STEPS["mean", False]]
    return LearningProblem("MMR", graph, k, steps, state, "score", 1e-4, inputs)


def _multimodal(graph: fg.Graph, k: int, rng: Any) -> LearningProblem:
    given, _ = _random_seeds(graph, k, rng)
    mixture = np.linspace(1, 2, MODALITIES)
    mixture = (ALPHA * mixture / mixture.sum()).astype(np.float32)
    fused = _weights(graph, MODALITIES, rng) @ mixture
    # With all weights one, the matrix has spectral radius ALPHA; so each has at most
    # that.
    root = 1 / np.sqrt(np.maximum(graph.in_degree, 1)).astype(np.float32)
    fused *= root[graph.sources] * root[graph.targets]
    state = fg.State(
        graph,
        mmode=fg.vertex_property(given, iterated=True),
        given=fg.vertex_property(given),
        fused=fg.edge_property(fused),
        rest=1 - ALPHA,
        epsilon=1e-4,
    )
    inputs = f"{k} classes, {SEED_SHARE:.0%} labelled, {MODALITIES} modalities fused"
    steps = [multimodal_step]
    return LearningProblem("MML", graph, k, steps, state, "mmode", 1e-4, inputs)


def _weights(graph: fg.Graph, k: int, rng: Any) -> Any:
    """Return (E, k) weights from U(0.1, 1)."""
    weight = rng.random((graph.given_edge_count, k), np.float32)
    weight *= np.float32(0.9)
    weight += np.float32(0.1)
    return weight
