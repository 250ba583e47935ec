"""Belief propagation on factor graphs: tables over any number of variables.

Variables and tables are both vertices, and an edge leads from each variable to each
table over it. The states of a table's vertex are the entries of the table, that is the
joint states of its variables; its potential is the table. The recurrence is that of
`belief_propagation`, except that edges have no potentials: entry f of a table is
compatible with exactly one state of the variable of edge e, ``digit(e)(f)``. In
logarithms, with the cavity c of `belief_propagation`::

    variable to table:   m(f) = c(digit(f))
    table to variable:   m(x) = log sum over f with digit(f) = x of exp(c(f))   # or max

K is the number of entries of the largest table. A superstep takes E * K steps for each
state of a variable. Memory is (V + F + E) * K numbers, where pairwise potentials would
take E * K**2. Two supersteps correspond to one of the pairwise form, which is used if
no table has more than two variables.

F. Kschischang, B. Frey and H.-A. Loeliger, "Factor graphs and the sum-product
algorithm", IEEE Trans. Inf. Theory 47, 2001, equations (5) and (6).
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
from featgraph.algorithms._potentials import MODES, explain_contradiction
from featgraph.algorithms._result import Result, iterate_recorded
from featgraph.algorithms.belief_propagation import (
    belief_propagation,
    distance,
    end,
    log_of,
    make_step,
    message_state,
    settle,
    without,
)

__all__ = ["MAX_ENTRIES", "FactorPropagationResult", "factor_propagation"]

Array = npt.NDArray[Any]

#: Most entries of a table: they are the features of its vertex, and collective kernels
#: take at most this number.
MAX_ENTRIES = 1024


@fg.edge
def relay_sum(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Look up the state of variable u in entry f, or sum over all variables but v."""
    c = without(d.belief[u, f], d.msg[fg.reverse(e), f])
    new = -math.inf
    if fg.is_twin(e):
        for x in range(int(d.state_count[v])):
            total = fg.logsumexp(c if d.digit[e, f] == x else -math.inf)
            new = total if f == x else new
    else:
        new = fg.broadcast(c, int(d.digit[e, f]))
    m = settle(new, d.msg[e, f], d.damping)
    d.msg_next[e, f] = m
    return fg.any_feature(distance(m, d.msg[e, f]) > d.epsilon)


@fg.edge
def relay_max(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Do the same as `relay_sum`, with maxima in place of sums."""
    c = without(d.belief[u, f], d.msg[fg.reverse(e), f])
    new = -math.inf
    if fg.is_twin(e):
        for x in range(int(d.state_count[v])):
            most = fg.feature_max(c if d.digit[e, f] == x else -math.inf)
            new = most if f == x else new
    else:
        new = fg.broadcast(c, int(d.digit[e, f]))
    m = settle(new, d.msg[e, f], d.damping)
    d.msg_next[e, f] = m
    return fg.any_feature(distance(m, d.msg[e, f]) > d.epsilon)


@fg.vertex
def know(f, v, d):  # type: ignore[no-untyped-def]
    """Store the log of the table, or of the variable's own tables."""
    p = log_of(d.unary[v, f], False)
    d.phi[v, f] = p
    d.belief_next[v, f] = p
    return True


begin = fg.vertexmap(know)
#: Mode, whether messages are damped, whether residuals are recorded -> the foldmap of a
#: superstep.
steps = {
    (mode, damped, recorded): make_step(send, damped=damped, recorded=recorded)
    for mode, send in (("sum-product", relay_sum), ("max-product", relay_max))
    for damped in (False, True)
    for recorded in (False, True)
}
step = steps["sum-product", False, False]


@dataclass(frozen=True, eq=False, kw_only=True)
class FactorPropagationResult(Result):
    """Result of `factor_propagation`.

    Attributes
    ----------
    marginals : dict of str to ndarray of float64
        The probabilities of the states of each variable, in the order of its states. An
        observed variable has a one and zeros. Max-product: scaled max-marginals.
    states : dict of str to str
        The likeliest state of each variable, the first on ties. Max-product: if beliefs
        are exact and the likeliest assignment is unique, `states` is it.
    log_score : float
        The log of the product of all tables at `states`.
    run, residuals
        See `Result`.
    """

    marginals: dict[str, npt.NDArray[np.float64]]
    states: dict[str, str]
    log_score: float

    residual_name: ClassVar[str] = "largest change of the log of a message"


@fg.algorithm()
def factor_propagation(
    model: fg.FactorGraph,
    *,
    evidence: Mapping[Any, str | int] | None = None,
    mode: str = "sum-product",
    damping: float = 0.0,
    epsilon: float = 1e-4,
    max_supersteps: int = 1000,
    form: str = "auto",
    history: bool = False,
    dtype: npt.DTypeLike = np.float32,
    **options: Any,
) -> FactorPropagationResult:
    """Compute the beliefs of a factor graph by loopy belief propagation.

    Parameters
    ----------
    model : FactorGraph
        For example the result of `featgraph.read_bif` or `featgraph.read_uai`.
    evidence : mapping, optional
        Observed states of some variables, by names or numbers. Tables are restricted to
        them before the run.
    mode, damping, epsilon, max_supersteps, history, dtype
        As for `belief_propagation`.
    form : {"auto", "pairwise", "factors"}, optional
        Whether tables of two variables are edges, or all tables are vertices. "auto":
        edges, if no table has more than two variables. Fixpoints are the same, except
        for several tables over the same two variables, which the pairwise form
        multiplies.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    FactorPropagationResult
        Marginals and likeliest states by name, and the record of the run.

    Raises
    ------
    GraphInputError
        If the evidence has an unknown variable or state; a variable or table has no
        possible state (with its name); a restricted table has more than `MAX_ENTRIES`
        entries; or ``form="pairwise"`` and a table has three variables or more.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import factor_propagation
    >>> model = fg.FactorGraph(
    ...     {"rain": ["no", "yes"], "wet": ["no", "yes"]},
    ...     [(["rain"], [0.8, 0.2]), (["rain", "wet"], [[0.9, 0.1], [0.2, 0.8]])],
    ... )
    >>> result = factor_propagation(model, evidence={"wet": "yes"})
    >>> result.marginals["rain"].round(3).tolist()
    [0.333, 0.667]
    """
    require_choice("mode", mode, MODES)
    require_number("damping", damping, 0 <= damping < 1, "0 <= damping < 1")
    require_choice("form", form, ("auto", "pairwise", "factors"))
    if not isinstance(model, fg.FactorGraph):
        raise fg.ArgumentError(
            "not a factor graph",
            where="model=",
            got=type(model).__name__,
            expected="a featgraph.FactorGraph",
            fix="read one with featgraph.read_uai or featgraph.read_bif",
        )
    left = model.given({} if evidence is None else evidence)
    widest = max((len(factor.scope) for factor in left.factors), default=0)
    keywords = {
        "mode": mode,
        "damping": damping,
        "epsilon": epsilon,
        "max_supersteps": max_supersteps,
        "history": history,
        "dtype": dtype,
        **options,
    }
    if form == "pairwise" or (form == "auto" and widest <= 2):
        graph, potentials = left.pairwise()
        found = _named(
            left, belief_propagation, graph, left.unary(), potentials, **keywords
        )
        return _result(model, left, found.marginals, found.run, found.residuals)
    return _result(model, left, *_on_factors(left, **keywords))


def _on_factors(
    model: fg.FactorGraph,
    mode: str,
    damping: float,
    epsilon: float,
    max_supersteps: int,
    history: bool,
    dtype: npt.DTypeLike,
    **options: Any,
) -> tuple[Array, fg.Run, Array]:
    """Return the beliefs (V, K) of the variables, the record, and the residuals."""
    graph, unary, digits = bipartite(model)
    step = steps[mode, damping > 0, history]
    counts = np.ones(graph.vertex_count, np.int32)
    counts[: len(model.names)] = model.cardinalities
    where = {"target": options.get("target", "auto")}

    def fresh() -> fg.State:
        made = message_state(
            graph,
            unary,
            checked_reals(dtype),
            damping,
            epsilon,
            digit=fg.edge_property(digits),
            state_count=fg.vertex_property(counts),
        )
        begin(made, **where)
        return made

    state = fresh()
    run, residuals = iterate_recorded(
        step, state, history=history, max_supersteps=max_supersteps, **options
    )
    end(state, **where)
    if int(state["first_lost"][0]) < graph.vertex_count:
        raise explain_contradiction(
            step, fresh, lambda v: _describe(model, v), max_supersteps=max_supersteps
        )
    return state["marginal"][: len(model.names)], run, residuals


def bipartite(model: fg.FactorGraph) -> tuple[fg.Graph, Array, Array]:
    """Return the graph of variables and tables.

    Parameters
    ----------
    model : FactorGraph

    Returns
    -------
    graph : Graph
        Vertices 0 to V - 1 are the variables, the others the tables of two variables
        or more; edges lead from variables to tables.
    potentials : ndarray of float64, shape (V + F, K)
        The product of the tables over each variable alone, then the entries of the
        other tables.
    digits : ndarray of int32, shape (E, K)
        Entry [e, f] is the state of the edge's variable in entry f of its table.
    """
    tables = [factor for factor in model.factors if len(factor.scope) > 1]
    largest = max((factor.table.size for factor in tables), default=1)
    if largest > MAX_ENTRIES:
        big = next(factor for factor in tables if factor.table.size == largest)
        raise fg.GraphInputError(
            "a table has too many entries",
            where=f"the table over {', '.join(model.names[v] for v in big.scope)}",
            got=largest,
            expected=f"at most {MAX_ENTRIES}: every vertex takes as many values",
            fix="observe some of its variables, or split it",
        )
    unary = model.unary()
    k = max(largest, unary.shape[1])
    # All vertices have the same width: entries beyond a table are impossible states.
    potentials = np.zeros((len(unary) + len(tables), k))
    potentials[: len(unary), : unary.shape[1]] = unary
    sources: list[int] = []
    targets: list[int] = []
    digits: list[Array] = []
    for vertex, factor in enumerate(tables, len(unary)):
        potentials[vertex, : factor.table.size] = factor.table.ravel()
        for axis, variable in enumerate(factor.scope):
            sources.append(variable)
            targets.append(vertex)
            row = np.zeros(k, np.int32)
            row[: factor.table.size] = np.indices(factor.table.shape)[axis].ravel()
            digits.append(row)
    graph = fg.Graph.from_edges(
        np.array(sources, np.int64),
        np.array(targets, np.int64),
        vertex_count=len(potentials),
        directed=False,
    )
    return graph, potentials, np.array(digits, np.int32).reshape(-1, k)


def _describe(model: fg.FactorGraph, vertex: int) -> str:
    if vertex < len(model.names):
        return f"variable {model.names[vertex]!r}"
    tables = [factor for factor in model.factors if len(factor.scope) > 1]
    scope = tables[vertex - len(model.names)].scope
    return f"the table over {', '.join(model.names[v] for v in scope)}"


def _named(
    model: fg.FactorGraph, function: Any, *arguments: Any, **keywords: Any
) -> Any:
    """Call a function on vertices; replace vertices by variables in its errors."""
    try:
        return function(*arguments, **keywords)
    except fg.GraphInputError as error:
        word, _, number = (error.where or "").partition(" ")
        if word != "vertex" or not number.isdigit():
            raise
        raise error.at(_describe(model, int(number))) from error


def _result(
    model: fg.FactorGraph,
    left: fg.FactorGraph,
    beliefs: Array,
    run: fg.Run,
    residuals: Array,
) -> FactorPropagationResult:
    """Return the result for all states, from beliefs of the restricted model."""
    marginals: dict[str, npt.NDArray[np.float64]] = {}
    for name, row in zip(model.names, beliefs, strict=True):
        kept = [model.states[name].index(state) for state in left.states[name]]
        marginals[name] = np.zeros(len(model.states[name]))
        marginals[name][kept] = row[: len(kept)]
    chosen = {name: int(row.argmax()) for name, row in marginals.items()}
    return FactorPropagationResult(
        run=run,
        residuals=residuals,
        marginals=marginals,
        states={name: model.states[name][state] for name, state in chosen.items()},
        log_score=model.log_score(list(chosen.values())),
    )
