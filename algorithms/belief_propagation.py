"""Belief propagation: marginals, or the likeliest states, of a pairwise Markov model.

Every vertex is a variable with up to K states and a potential phi of each state. Every
undirected edge u, v has a potential psi of each pair of states of its ends. One
superstep sends a message along each edge, in both directions, and sums the incoming
messages of each vertex. In logarithms::

    c(x)    = b(u)(x) - m(v -> u)(x)
    m(y)    = log sum over x of exp(c(x) + psi(x, y))       # or max over x
    m'(u -> v) = damping * m(u -> v) + (1 - damping) * (m - max of m)
    b'(v)   = phi(v) + sum over edges u -> v of m'(u -> v)

Without logarithms, this is ``m' = (b(u) / m(v -> u)) . psi`` and ``b' = phi * product
of m'``. Beliefs are exact on trees; on other graphs, if the run converges, they are the
usual approximation.

State: ``belief`` (V, K), not normalised, so that it is always phi plus the messages;
``msg`` (2 E, K), each with a largest entry of 0; ``phi``; ``psi``, one per edge or one
for all edges.

Impossible states have -inf. The cavity c of a state that b excludes stays -inf, by the
rule 0 / 0 = 0. This loses nothing, since such a state could only contribute to states
that the neighbor excludes as well. Therefore no nan arises, and impossible states stay
impossible. A message is announced if it changes by more than epsilon. A vertex is
announced if a message has arrived, even if its belief is the same: two changes that
cancel still change both cavities. With damping, a message depends on its old value, so
its source stays due until the message has converged.

A superstep costs E * K exponentials and logarithms, and E * K**2 products (additions in
max-product), with as many reads of potentials.

J. Pearl, "Probabilistic Reasoning in Intelligent Systems", 1988; J. Yedidia, W. Freeman
and Y. Weiss, "Constructing free-energy approximations and generalized belief
propagation algorithms", IEEE Trans. Inf. Theory 51, 2005, section 3; the form for
single features is from Onyx.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._checks import require_choice, require_number
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._potentials import (
    MODES,
    UNOBSERVED,
    checked_unary,
    distributions,
    explain_contradiction,
    observation,
    observed,
    pairwise_logs,
    require_held_logs,
    unary_logs,
)
from featgraph.algorithms._result import Result, answer, around_of, iterate_recorded
from featgraph.algorithms._verify import require

__all__ = ["BeliefPropagationResult", "belief_propagation", "verify_belief_propagation"]

Array = npt.NDArray[Any]


# -- before the first message


@fg.gather(into="own", combine="sum")
def of_loops(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the log-potential of state f of a self-loop."""
    return d.psi[e, f, f] if u == v else 0.0


@fg.gather(into="own", combine="sum")
def of_shared_loops(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the same as `of_loops`, with one potential for all edges."""
    return d.psi[f, f] if u == v else 0.0


def log_of(x: float, is_log: bool) -> float:
    """Return the log of a potential in its own dtype; a log is returned unchanged."""
    if is_log:
        return x
    return math.log(x) if x > 0 else -math.inf


@fg.vertex
def observe(f, v, d):  # type: ignore[no-untyped-def]
    """Exclude all states except an observed one; set the initial belief."""
    is_out = d.observed[v] != UNOBSERVED and d.observed[v] != f
    p = -math.inf if is_out else log_of(d.unary[v, f], d.is_log) + d.own[v, f]
    d.phi[v, f] = p
    d.belief_next[v, f] = p
    d.possible[v] = fg.any_feature(p > -math.inf)
    return True


@fg.reduce(into="first_lost", combine="min")
def first_impossible(f, v, d):  # type: ignore[no-untyped-def]
    """Find the first vertex without a possible state."""
    return d.vertex_count if d.possible[v] else v


#: Whether psi is shared -> the foldmap that runs before the first superstep.
begin = {
    False: fg.foldmap(of_loops, observe, first_impossible),
    True: fg.foldmap(of_shared_loops, observe, first_impossible),
}

# -- a superstep


def without(total: float, part: float) -> float:
    """Subtract a message from a belief; an impossible state stays impossible."""
    return total - part if total > -math.inf else total


def distance(new: float, old: float) -> float:
    """Return the distance of two logs; 0 for two impossible states."""
    return abs(new - old) if new != old else 0.0


@fg.collaborative
def renew(new, old, damping):  # type: ignore[no-untyped-def]
    """Normalise a message so that its largest entry is 0."""
    top = fg.feature_max(new)
    return new - top if top > -math.inf else new


@fg.collaborative
def settle(new, old, damping):  # type: ignore[no-untyped-def]
    """Normalise a message so that its largest entry is 0, and damp it."""
    top = fg.feature_max(new)
    level = new - top if top > -math.inf else new
    is_finite = level > -math.inf and old > -math.inf
    return damping * old + (1 - damping) * level if is_finite else level


#: Sums of weights below this may lack terms that have underflown in float32.
LEAST = 1e-30


@fg.collaborative
def weigh(c):  # type: ignore[no-untyped-def]
    """Return weights with the logs c, scaled to a largest of 1; zeros for all -inf."""
    top = fg.feature_max(c)
    return math.exp(c - top) if top > -math.inf else 0.0


def adder(is_shared: bool, damped: bool) -> Any:
    """Return the edge function of sum-product, with potentials per edge or one for all.

    The message is a product of weights, which are at most 1, with one exponential and
    one logarithm per state; its scale does not matter, since `mix` normalises. If a sum
    is below `LEAST`, it is computed from logs, with an exponential per pair of states.
    """
    mix = settle if damped else renew

    @fg.edge
    def send_sums(f, u, v, e, d):  # type: ignore[no-untyped-def]
        """Send v a message on its state f: the belief of u without the message of v."""
        if u == v:
            return False
        turned = not fg.is_twin(e)
        c = without(d.belief[u, f], d.msg[fg.reverse(e), f])
        sums = fg.matvec(d.weight[e], weigh(c), transpose=turned)
        new = math.log(max(sums, LEAST))
        if fg.feature_min(sums) < LEAST:
            new = fg.matvec(d.psi[e], c, transpose=turned, semiring="log_plus")
        m = mix(new, d.msg[e, f], d.damping)
        d.msg_next[e, f] = m
        return fg.any_feature(distance(m, d.msg[e, f]) > d.epsilon)

    @fg.edge
    def send_sums_by_shared(f, u, v, e, d):  # type: ignore[no-untyped-def]
        """Do the same as `send_sums`, with one potential for all edges."""
        if u == v:
            return False
        turned = not fg.is_twin(e)
        c = without(d.belief[u, f], d.msg[fg.reverse(e), f])
        sums = fg.matvec(d.weight, weigh(c), transpose=turned)
        new = math.log(max(sums, LEAST))
        if fg.feature_min(sums) < LEAST:
            new = fg.matvec(d.psi, c, transpose=turned, semiring="log_plus")
        m = mix(new, d.msg[e, f], d.damping)
        d.msg_next[e, f] = m
        return fg.any_feature(distance(m, d.msg[e, f]) > d.epsilon)

    return send_sums_by_shared if is_shared else send_sums


def maximizer(is_shared: bool, damped: bool) -> Any:
    """Return the edge function of max-product, with potentials per edge or one for all.

    Only damped messages depend on their previous values.
    """
    mix = settle if damped else renew

    @fg.edge
    def send(f, u, v, e, d):  # type: ignore[no-untyped-def]
        """Send v a message on its state f: the belief of u without the message of v."""
        if u == v:
            return False
        c = without(d.belief[u, f], d.msg[fg.reverse(e), f])
        new = fg.matvec(d.psi[e], c, transpose=not fg.is_twin(e), semiring="max_plus")
        m = mix(new, d.msg[e, f], d.damping)
        d.msg_next[e, f] = m
        return fg.any_feature(distance(m, d.msg[e, f]) > d.epsilon)

    @fg.edge
    def send_by_shared(f, u, v, e, d):  # type: ignore[no-untyped-def]
        """Do the same as `send`, with one potential for all edges."""
        if u == v:
            return False
        c = without(d.belief[u, f], d.msg[fg.reverse(e), f])
        new = fg.matvec(d.psi, c, transpose=not fg.is_twin(e), semiring="max_plus")
        m = mix(new, d.msg[e, f], d.damping)
        d.msg_next[e, f] = m
        return fg.any_feature(distance(m, d.msg[e, f]) > d.epsilon)

    return send_by_shared if is_shared else send


@fg.gather(into="total", combine="sum")
def incoming(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the message from u."""
    return d.msg_next[e, f]


@fg.gather(into="shift", combine="max")
def arriving(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the change of the message into v."""
    return distance(d.msg_next[e, f], d.msg[e, f])


@fg.gather(into="shift", combine="max")
def settling(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the largest change of the message into v and of its reverse."""
    return max(
        distance(d.msg_next[e, f], d.msg[e, f]),
        distance(d.msg_next[fg.reverse(e), f], d.msg[fg.reverse(e), f]),
    )


@fg.vertex
def believe(f, v, d):  # type: ignore[no-untyped-def]
    """Add the messages to the potential; announce v if a message has changed."""
    d.belief_next[v, f] = d.phi[v, f] + d.total[v, f]
    return fg.any_feature(d.shift[v, f] > 0)


@fg.vertex
def note(f, v, d):  # type: ignore[no-untyped-def]
    """Store the shift for `largest_change`; states that became impossible count 0."""
    d.change[v, f] = d.shift[v, f] if abs(d.shift[v, f]) < math.inf else 0.0
    return True


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    """Return the largest change of a message."""
    return d.change[v, f]


def make_step(send: Any, *, damped: bool, recorded: bool) -> fg.FoldMap:
    """Return the foldmap of a superstep, from an edge function that sends messages."""
    sums = [send, incoming, settling if damped else arriving]
    return fg.foldmap(
        *sums, *([note, believe, largest_change] if recorded else [believe])
    )


SENDERS = {"sum-product": adder, "max-product": maximizer}
#: Mode, whether psi is shared, whether messages are damped, whether residuals are
#: recorded -> the foldmap of a superstep.
steps = {
    (mode, shared, damped, recorded): make_step(send, damped=damped, recorded=recorded)
    for mode, sender in SENDERS.items()
    for shared in (False, True)
    for damped in (False, True)
    for send in [sender(shared, damped)]
    for recorded in (False, True)
}
step = steps["sum-product", False, False, False]

# -- after the last superstep


@fg.vertex
def decide(f, v, d):  # type: ignore[no-untyped-def]
    """Store the likeliest state, and the belief in float64."""
    d.best[v] = fg.argmax(d.belief[v, f])
    d.possible[v] = fg.any_feature(d.belief[v, f] > -math.inf)
    d.marginal[v, f] = d.belief[v, f]
    return True


@fg.vertex
def share(f, v, d):  # type: ignore[no-untyped-def]
    """Convert the logs to a distribution."""
    d.marginal[v, f] = fg.softmax(d.marginal[v, f])
    return True


@fg.gather(into="pairs", combine="sum")
def log_of_edge(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return an edge's log-potential at the likeliest states of both ends."""
    if u == v or fg.is_twin(e):
        return fg.nothing
    return d.psi[e, d.best[u], d.best[v]]


@fg.gather(into="pairs", combine="sum")
def log_of_shared(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the same as `log_of_edge`, with one potential for all edges."""
    if u == v or fg.is_twin(e):
        return fg.nothing
    return d.psi[d.best[u], d.best[v]]


@fg.vertex
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    """Add the log-potential of the vertex."""
    d.log[v] = d.phi[v, d.best[v]] + d.pairs[v]
    return True


@fg.reduce(into="log_score", combine="sum")
def sum_of_logs(f, v, d):  # type: ignore[no-untyped-def]
    """Sum over all vertices."""
    return d.log[v]


end = fg.foldmap(decide, share, first_impossible)
#: Whether psi is shared -> the foldmap that computes ``log_score``.
score = {
    False: fg.foldmap(log_of_edge, add_up, sum_of_logs),
    True: fg.foldmap(log_of_shared, add_up, sum_of_logs),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class BeliefPropagationResult(Result):
    """Result of `belief_propagation`.

    Attributes
    ----------
    marginals : ndarray of float64, shape (V, K)
        Beliefs; rows sum to one. Max-product: max-marginals, scaled likewise.
    states : ndarray of int64, shape (V,)
        The likeliest state of each vertex, the smallest on ties. Max-product: if
        beliefs are exact and the likeliest assignment is unique, `states` is it.
    log_score : float
        The log of the product of all potentials at `states`.
    messages : ndarray of shape (2 E, K)
        Logs of messages; row i is along edge i as given, row E + i against it.
    run, residuals
        See `Result`.
    """

    marginals: npt.NDArray[np.float64] = answer()
    states: npt.NDArray[np.int64] = answer()
    log_score: float
    messages: Array = answer(is_per_vertex=False)

    residual_name: ClassVar[str] = "largest change of the log of a message"


@fg.algorithm()
def belief_propagation(
    graph: fg.GraphLike,
    unary: npt.ArrayLike,
    pairwise: npt.ArrayLike,
    *,
    evidence: Mapping[int, int] | npt.ArrayLike | None = None,
    mode: str = "sum-product",
    damping: float = 0.0,
    epsilon: float = 1e-4,
    max_supersteps: int = 1000,
    is_log: bool = False,
    history: bool = False,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> BeliefPropagationResult:
    """Compute the beliefs of a pairwise model by loopy belief propagation.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Undirected. A self-loop is a potential of its vertex alone. Multi-edges have
        their own potentials and form a cycle; to avoid it, multiply their potentials
        into one edge.
    unary : array_like of shape (V, K)
        Potentials of the states, 0 for impossible ones. Variables with fewer than K
        states have zeros in the remaining columns.
    pairwise : array_like of shape (E, K, K), or (K, K) for all edges
        Entry [e, x, y] is the potential of state x of the source and y of the target of
        edge e, in the order and direction in which edges were given.
    evidence : mapping of vertex to state, or array_like of int, shape (V,), optional
        Observed states; in an array, -1 for vertices that are not observed.
    mode : {"sum-product", "max-product"}, optional
        Marginals, or max-marginals and their likeliest assignment.
    damping : float, optional
        Share of the old message in the new one, in [0, 1). Fixpoints are the same. Try
        0.5 if messages oscillate, that is if residuals do not fall.
    epsilon : float, optional
        A new message is dropped if none of its logs changes by more than this.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False if it ended the run.
    is_log : bool, optional
        Whether potentials are logarithms (-inf: impossible), for large ranges.
    history : bool, optional
        Record the residual of every superstep, for ``result.plot()``.
    dtype : dtype, optional
        float32 or float64. At a vertex of degree D, rounding errors of a float32 belief
        are about 1e-7 * D; `epsilon` must not be less.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    BeliefPropagationResult
        Marginals, likeliest states, messages, and the record of the run.

    Raises
    ------
    GraphInputError
        If the graph is directed; potentials do not fit it, or are negative, infinite or
        NaN; or no state of a vertex is possible (with the vertex).

    Notes
    -----
    Bitwise repeatable in pull direction, which has no atomics.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import belief_propagation
    >>> chain = fg.Graph.from_edges([0, 1], [1, 2], directed=False)
    >>> alike = [[0.9, 0.1], [0.1, 0.9]]
    >>> result = belief_propagation(chain, [[1, 0], [1, 1], [1, 1]], alike)
    >>> result.marginals.round(2).tolist()
    [[1.0, 0.0], [0.9, 0.1], [0.82, 0.18]]
    """
    graph = fg.as_graph(graph, directed=False)
    require_choice("mode", mode, MODES)
    require_number("damping", damping, 0 <= damping < 1, "0 <= damping < 1")
    real = checked_reals(dtype)
    _require_undirected(graph)
    given = checked_unary(graph, unary, is_log)
    psi = pairwise_logs(graph, pairwise, given.shape[1], is_log)
    if is_log:
        require_held_logs(given, "unary", real)
        require_held_logs(psi, "pairwise", real)
    of_vertices, is_any = observation(evidence, *given.shape)
    is_shared, where = psi.ndim == 2, around_of(options)
    step = steps[mode, is_shared, damping > 0, history]

    def fresh() -> fg.State:
        made = message_state(
            graph,
            given.values,
            real,
            damping,
            epsilon,
            is_log=is_log,
            observed=of_vertices,
            log=fg.vertex_property(np.float64(0)),
            **tables_of(psi, real, mode),
        )
        begin[is_shared](made, **where)
        return made

    state = fresh()
    if is_any:
        _refuse_impossible(state)
    recorded = iterate_recorded(
        step, state, history=history, max_supersteps=max_supersteps, **options
    )
    end(state, **where)
    if int(state["first_lost"][0]) < graph.vertex_count:
        raise explain_contradiction(
            step, fresh, lambda v: f"vertex {v}", max_supersteps=max_supersteps
        )
    score[is_shared](state, **where)
    log_score, stored = float(state["log_score"][0]), state.view("msg")
    of = state.graph  # on ranks, the graph to which the stored rows belong
    return BeliefPropagationResult.of(
        graph,
        *recorded,
        marginals=state.view("marginal"),
        states=state.view("best"),
        log_score=log_score,
        messages=lambda _: of.collect_edge_values(stored, per_direction=True),
    )


def message_state(
    graph: fg.Graph,
    unary: Any,
    real: np.dtype[Any],
    damping: float,
    epsilon: float,
    **properties: Any,
) -> fg.State:
    """Return a State with beliefs and messages of zero.

    Potentials stay float64, and so do their logs until they are stored in `phi`: in
    float32, small potentials would become zero.
    """
    zero, shape = real.type(0), unary.shape[1:]
    return fg.State(
        graph,
        unary=fg.vertex_property(unary, copy=False),
        phi=fg.vertex_property(zero, shape=shape),
        belief=fg.vertex_property(zero, shape=shape, iterated=True),
        msg=fg.edge_property(zero, shape=shape, iterated=True, per_direction=True),
        change=fg.vertex_property(zero, shape=shape),
        marginal=fg.vertex_property(np.float64(0), shape=shape),
        best=fg.vertex_property(np.int64(0)),
        possible=fg.vertex_property(False),
        damping=float(damping),
        epsilon=float(epsilon),
        **properties,
    )


def tables_of(psi: fg.GivenArray, real: np.dtype[Any], mode: str) -> dict[str, Any]:
    """Return the properties of pairwise potentials.

    ``psi`` has their logs; sum-product also needs ``weight``, the potentials scaled to
    a largest of 1.
    """
    tables = {"psi": psi.astype(real)}
    if mode == "sum-product":
        top = psi.matrix().largest_of_columns().max() if len(psi) else 0.0
        tables["weight"] = psi.exps(top if np.isfinite(top) else 0.0).astype(real)
    if psi.ndim == 2:
        return {name: table.on_host() for name, table in tables.items()}
    return {
        name: fg.edge_property(table.values, copy=False)
        for name, table in tables.items()
    }


def _require_undirected(graph: fg.Graph) -> None:
    if graph.directed:
        raise fg.GraphInputError(
            "potentials belong to undirected edges",
            got=repr(graph),
            fix="make the graph with directed=False",
        )


def _refuse_impossible(state: fg.State) -> None:
    first = int(state["first_lost"][0])
    if first < state.graph.vertex_count:
        raise fg.GraphInputError(
            "the observed state is impossible",
            where=f"vertex {first}",
            fix="observe another state, or none",
        )


def verify_belief_propagation(
    graph: fg.GraphLike,
    unary: npt.ArrayLike,
    pairwise: npt.ArrayLike,
    result: BeliefPropagationResult,
    *,
    evidence: Mapping[int, int] | npt.ArrayLike | None = None,
    mode: str = "sum-product",
    damping: float = 0.0,
    epsilon: float = 1e-4,
    is_log: bool = False,
) -> None:
    """Check a converged result, in float64.

    * A row of marginals is not negative and sums to one.
    * It is the product of the vertex's potential and the messages into it, normalised.
    * One more superstep changes no log of a message by more than `epsilon`, up to
      rounding, except for states that the target excludes.

    On a forest there is only one such fixpoint, and it is exact.

    Parameters
    ----------
    graph, unary, pairwise, evidence, mode, damping, epsilon, is_log
        As passed to `belief_propagation`.
    result : BeliefPropagationResult
        The answer of `belief_propagation`.

    Raises
    ------
    AssertionError
        With the vertex or edge at which a property fails first.
    """
    graph = fg.as_graph(graph, directed=False)
    phi, psi = _model(graph, unary, pairwise, evidence, is_log)
    msg = result.messages.astype(np.float64)
    u = np.concatenate([graph.sources, graph.targets])
    v = np.concatenate([graph.targets, graph.sources])
    count = graph.given_edge_count
    own = np.arange(2 * count) < count
    heard = (u != v) | own  # a self-loop is its own twin
    belief = phi.copy()
    np.add.at(belief, v[heard], msg[heard])
    degree = np.bincount(v[heard], minlength=len(phi))
    size = np.where(np.isfinite(belief), np.abs(belief), 0).max(axis=1, initial=1.0)
    rounding = 8 * np.finfo(result.messages.dtype).eps * (degree + phi.shape[1]) * size

    marginals = result.marginals
    wanted = distributions(belief)
    if graph.living is not None:  # dead vertices have no distribution
        wanted[~graph.living] = 0
    sums = np.abs(marginals.sum(axis=1) - wanted.sum(axis=1).round())
    require((marginals >= 0).all(axis=1) & (sums < 1e-9), "not a distribution")
    apart = np.abs(marginals - wanted).max(axis=1)
    require(apart <= np.maximum(rounding, 1e-12), "not what messages say")

    back = np.roll(np.arange(2 * count), count)
    possible = belief > -np.inf
    with np.errstate(invalid="ignore"):
        cavity = np.where(possible[u], belief[u] - msg[back], -np.inf)
    tables = np.broadcast_to(psi, (count, *psi.shape[-2:])) if psi.ndim == 2 else psi
    both = np.concatenate([tables, tables.transpose(0, 2, 1)])
    joint = cavity[:, :, None] + both
    top = joint.max(axis=1, initial=-np.inf)
    if mode == "sum-product":
        with np.errstate(divide="ignore", invalid="ignore"):
            total = np.log(np.exp(joint - top[:, None]).sum(axis=1)) + top
        top = np.where(top > -np.inf, total, top)
    level = top - top.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        moved = (1 - damping) * np.abs(level - msg)
    matters = possible[v] & (u != v)[:, None]
    moved = np.where(matters, moved, 0).max(axis=1, initial=0)
    settled = moved <= epsilon + (1 - damping) * 2 * (rounding[u] + rounding[v])
    require(settled, "one more superstep changes it", "message")


def _model(
    graph: fg.Graph,
    unary: npt.ArrayLike,
    pairwise: npt.ArrayLike,
    evidence: Mapping[int, int] | npt.ArrayLike | None,
    is_log: bool,
) -> tuple[Array, Array]:
    """Return phi and psi in logs; phi includes self-loops and evidence."""
    phi = unary_logs(graph, unary, is_log).copy()
    psi = pairwise_logs(graph, pairwise, phi.shape[1], is_log).on_host()
    loops = np.flatnonzero(graph.sources == graph.targets)
    own = psi if psi.ndim == 2 else psi[loops]
    diagonals = np.broadcast_to(own.diagonal(0, -2, -1), (len(loops), phi.shape[1]))
    np.add.at(phi, graph.sources[loops], diagonals)
    seen, states = observed(evidence, *phi.shape)
    kept = phi[seen, states]
    phi[seen] = -np.inf
    phi[seen, states] = kept
    return phi, psi
