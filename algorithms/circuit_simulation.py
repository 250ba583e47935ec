"""Circuit simulation: the voltages of a network of resistors with held vertices.

At every vertex that is not held at a voltage, the currents along its edges and the
current fed into it sum to zero. With ``g(u, v)`` the conductance of an edge and
``I(v)`` the current fed in, each superstep solves this equation for V(v) (Jacobi)::

    V'(v) = (sum over edges u - v of g(u, v) V(u) + I(v)) / sum over edges of g(u, v)

The fixpoint is the solution of Kirchhoff's equations. The voltages converge to it if a
path of resistors leads from each free vertex to a held one, which is checked. Large
grids need many supersteps: about the square of their side.

State: ``voltage``, ``fed`` and ``supplied`` (V, k), a column for each set of sources;
``held`` (V,); ``total`` (V,), the sum of the conductances at a vertex; ``weight``, the
conductances, one per given edge; ``through`` (2 E, k), the currents, one per direction.
A superstep reads E * k values along edges, and updates V * k voltages. Vertices whose
neighbors have all changed by epsilon or less are skipped.

The benchmark CS of F. Khorasani, K. Vora, R. Gupta, L. N. Bhuyan, "CuSha:
Vertex-Centric Graph Processing on GPUs", HPDC, 2014, and of F. Khorasani, R. Gupta,
L. N. Bhuyan, "Scalable SIMD-Efficient Graph Processing on GPUs", PACT, 2015. There it
is a synthetic workload on the in-edges of directed graphs, with arbitrary weights. Here
the graph is undirected, since a resistor conducts both ways; sums of g are computed
once; and held voltages and fed currents define a circuit whose solution can be checked.
Y. Saad, "Iterative Methods for Sparse Linear Systems", SIAM, 2003, chapter 4, for
Jacobi's method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

import featgraph as fg
from featgraph.algorithms._checks import (
    checked_weights,
    in_weights,
    require_number,
    weight_properties,
)
from featgraph.algorithms._paths import checked_reals
from featgraph.algorithms._result import Result, answer, iterate_recorded
from featgraph.algorithms._verify import edges_of, require, sums_over_in_edges
from featgraph.algorithms._vertices import (
    columns,
    columns_property,
    held_values,
    width_of,
)

__all__ = ["CircuitResult", "circuit_simulation", "verify_circuit_simulation"]

Array = npt.NDArray[Any]


# -- before the first superstep


@fg.gather(into="conducts", combine="sum")
def conductances_of_edges(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the conductance of a resistor."""
    return d.weight[e]


@fg.vertex
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    """Store the sum of the conductances."""
    d.total[v] = d.conducts[v]
    return True


begin = fg.foldmap(conductances_of_edges, add_up)


# -- a superstep


@fg.gather(into="inflow", combine="sum")
def conducted(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the current that the neighbor's voltage drives through the resistor."""
    return d.weight[e] * d.voltage[u, f]


def divisor(total: Any) -> Any:
    """Return the divisor of currents; 1 for a vertex without conductance."""
    return total if total > 0 else 1.0


@fg.vertex
def balance(f, v, d):  # type: ignore[no-untyped-def]
    """Set the voltage at which the currents of v sum to zero."""
    if d.held[v]:
        return False
    new = (d.inflow[v, f] + d.fed[v, f]) / divisor(d.total[v])
    d.voltage_next[v, f] = new
    return fg.any_feature(abs(new - d.voltage[v, f]) > d.epsilon)


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    """Return the change of a voltage."""
    return abs(d.voltage_next[v, f] - d.voltage[v, f])


step = fg.foldmap(conducted, balance)
step_with_residual = fg.foldmap(conducted, balance, largest_change)


# -- after the last superstep


@fg.gather(into="leaving", combine="sum")
def sent_to(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the current from a vertex to a neighbor."""
    return d.weight[e] * (d.voltage[v, f] - d.voltage[u, f])


@fg.vertex
def supply(f, v, d):  # type: ignore[no-untyped-def]
    """Store the total current out of a vertex."""
    d.supplied[v, f] = d.leaving[v, f]
    return True


@fg.edge
def flow(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Store the current along the edge."""
    d.through[e, f] = d.weight[e] * (d.voltage[u, f] - d.voltage[v, f])
    return True


end = fg.foldmap(sent_to, supply), fg.edgemap(flow)


# -- paths: whether a path of open edges leads to each vertex from a held one
#
# *Link*, in one superstep: open edges join trees, as in `connected_components`, so that
# each component has one root; held vertices mark their root; vertices whose root has no
# mark have no path. The parent of v is ``v - drop(v)``, initially v itself. An edge
# usually costs two reads and one atomic operation.
#
# *Search*, a superstep for each edge on the longest of the shortest paths, where ranks
# have parts of the graph: another rank may own the parent.


@fg.edge
def join(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Join the trees of the ends of an open edge; a twin adds nothing."""
    if u > v or d.weight[e] <= 0:
        return True
    a = u - d.drop[u]
    b = v - d.drop[v]
    while a != b:
        high = max(a, b)
        low = min(a, b)
        before = high - fg.atomic.max(d.drop, high, high - low)
        if before == high:
            return True
        a = before
        b = low
    return True


@fg.vertex
def climb(f, v, d):  # type: ignore[no-untyped-def]
    """Attach v to its root, and mark the root if v is held."""
    before = v
    top = v - d.drop[v]
    while d.drop[top] > 0:
        fg.atomic.max(d.drop, before, before - (top - d.drop[top]))
        before = top
        top = top - d.drop[top]
    fg.atomic.max(d.drop, v, v - top)
    if d.held[v]:
        fg.atomic.max(d.marked, top, 1)
    return True


@fg.reduce(into="floating", combine="sum")
def has_no_path(f, v, d):  # type: ignore[no-untyped-def]
    """Count the free vertices without a path to a held one."""
    return 0 if d.held[v] or d.marked[v - d.drop[v]] > 0 else 1


@fg.vertex
def not_linked(f, v, d):  # type: ignore[no-untyped-def]
    """Return True for vertices without a known path."""
    return not d.linked[v]


@fg.gather(into="leads", combine="any", sources="active")
def linked_by(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Test whether the edge is open and its other end has a path."""
    return d.linked[u] and d.weight[e] > 0


@fg.vertex
def link(f, v, d):  # type: ignore[no-untyped-def]
    """Record that v has a path."""
    d.linked_next[v] = True
    return d.leads[v]


trees = fg.foldmap(join, climb, has_no_path)
spread = fg.foldmap(not_linked, linked_by, link)


@dataclass(frozen=True, eq=False, kw_only=True)
class CircuitResult(Result):
    """Result of `circuit_simulation`.

    Attributes
    ----------
    voltages : ndarray of shape (V,) or (V, k)
        The voltages; at held vertices, those given.
    currents : ndarray of shape (E,) or (E, k)
        The current through each given edge, from its source to its target.
    supplied : ndarray of shape (V,) or (V, k)
        The total current from a vertex over its edges: at held vertices, the supply of
        their sources; at free ones, the current fed in, as far as the run converged.
    """

    voltages: Array = answer()
    currents: Array = answer(is_per_vertex=False)
    supplied: Array = answer()

    residual_name: ClassVar[str] = "largest change of a voltage"


@fg.algorithm()
def circuit_simulation(
    graph: fg.GraphLike,
    voltages: npt.ArrayLike,
    *,
    conductances: npt.ArrayLike | None = None,
    currents: npt.ArrayLike = 0.0,
    epsilon: float = 1e-6,
    max_supersteps: int = 10_000,
    history: bool = False,
    dtype: npt.DTypeLike = np.float64,
    **options: Any,
) -> CircuitResult:
    """Find the voltages of a network of resistors.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Undirected; an edge is a resistor.
    voltages : array_like of shape (V,) or (V, k)
        Voltages of held vertices, such as sources and ground; nan for free vertices,
        in all columns of a row.
    conductances : array_like of shape (E,), optional
        Conductances (1 / resistance), not negative, in the order in which the edges
        were given. Default: the weights of the graph, or one.
    currents : float, or array_like of shape (V,) or (V, k), optional
        The current fed into free vertices from outside.
    epsilon : float, optional
        A change of a voltage by this or less is dropped and not announced. It has the
        unit of the voltages: choose it far below their differences.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False if it ended the run.
    history : bool, optional
        Record the largest change of each superstep, in a pass over the vertices.
    dtype : dtype, optional
        float64, or float32, which needs an `epsilon` of at least 1e-6 times the
        voltages.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    CircuitResult
        Voltages, currents, and the record of the run.

    Raises
    ------
    GraphInputError
        If the graph is directed, voltages, currents or conductances do not fit it or
        are not finite, a conductance is negative, or a free vertex has no path to a
        held one.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    After convergence, the currents of a free vertex sum to zero, up to epsilon times
    the sum of its conductances. The errors of voltages may exceed epsilon, by a factor
    that grows as convergence slows down. Bitwise repeatable in pull direction, which
    has no atomics.

    Examples
    --------
    >>> import numpy as np
    >>> import featgraph as fg
    >>> from featgraph.algorithms import circuit_simulation
    >>> divider = fg.Graph.from_edges([0, 1], [1, 2], directed=False)
    >>> result = circuit_simulation(divider, [10, np.nan, 0], conductances=[1, 4])
    >>> result.voltages.round(3).tolist(), result.currents.round(3).tolist()
    ([10.0, 2.0, 0.0], [8.0, 8.0])
    """
    graph = fg.as_graph(graph, directed=False)
    require_number("epsilon", epsilon, epsilon >= 0, "0 or more")
    if graph.directed:
        raise fg.GraphInputError(
            "a resistor conducts both ways",
            got="a directed graph",
            fix="build the graph with directed=False",
        )
    real = checked_reals(dtype)
    given = fg.given_array(voltages, where="voltages")
    sent = fg.given_array(currents, where="currents")
    fixed = held_values(graph, "voltages", given)
    known, held = fixed.values, fixed.is_held.values
    if fixed.count:
        mean = known.sums_of_columns() / fixed.count
        known = known.with_rows(fixed.is_held, mean)
    fed = None if sent.ndim == 0 else _fed(graph, sent)
    width = width_of({"voltages": known, "currents": fed})
    properties = {
        "weight": fg.edge_property(real.type(1)),
        "fed": fg.vertex_property(sent.astype(real, "currents").values, shape=(width,))
        if fed is None
        else columns_property(graph, fed, width, real, where="currents"),
    }
    properties |= weight_properties(graph, conductances, real, name="conductances")
    state = fg.State(
        graph,
        voltage=columns_property(
            graph, known, width, real, iterated=True, where="voltages"
        ),
        held=fg.vertex_property(held),
        total=fg.vertex_property(real.type(0)),
        supplied=fg.vertex_property(real.type(0), shape=(width,)),
        through=fg.edge_property(real.type(0), shape=(width,), per_direction=True),
        epsilon=float(epsilon),
        **_path_properties(graph, held),
        **properties,
    )
    where = {"target": options.get("target", "auto")}
    begin(state, **where)
    _require_paths(
        state, fixed.count, where["target"],
        what="no path of resistors leads to a held vertex, so any voltage would do",
        fix="hold one vertex of each component, such as at 0",
    )  # fmt: skip
    recorded = iterate_recorded(
        step_with_residual if history else step,
        state,
        history=history,
        max_supersteps=max_supersteps,
        **options,
    )
    for foldmap in end:
        foldmap(state, **where)
    one = given.ndim < 2 and sent.ndim < 2
    found, supplied = state.view("voltage"), state.view("supplied")
    if one:
        # The number of rows is V, or the number of vertices of this rank.
        found, supplied = (view.reshape(len(view)) for view in (found, supplied))
    # On ranks, `state.graph` is the graph to which the stored rows belong.
    stored, of = state.view("through"), state.graph
    return CircuitResult.of(
        graph,
        *recorded,
        voltages=found,
        currents=lambda _: _of_edges(of, stored, one),
        supplied=supplied,
    )


def _fed(graph: fg.Graph, currents: fg.GivenArray) -> fg.GivenArray:
    if currents.ndim == 0:
        one = currents.on_host()
        currents = fg.given_array(np.full(graph.vertex_count, one, np.float64))
    return columns(graph, "currents", currents)


def _of_edges(graph: fg.Graph, stored: fg.View, one: bool) -> Array:
    """Return the currents along given edges, (E,) or (E, k)."""
    found = graph.collect_edge_values(stored)
    return found[:, 0] if one else found


def verify_circuit_simulation(
    graph: fg.GraphLike,
    result: npt.ArrayLike,
    voltages: npt.ArrayLike,
    *,
    conductances: npt.ArrayLike | None = None,
    currents: npt.ArrayLike = 0.0,
    epsilon: float = 1e-6,
) -> None:
    """Check the voltages of a converged run, in float64.

    * Held vertices have the given voltages.
    * If no currents are fed in, each voltage is in the range of the held ones of its
      component.
    * At free vertices, the currents sum to zero, up to epsilon times the sum of the
      conductances and rounding.

    Parameters
    ----------
    graph, voltages, conductances, currents, epsilon
        As passed to `circuit_simulation`.
    result : array_like of shape (V,) or (V, k)
        The voltages of the answer.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex.
    """
    graph = fg.as_graph(graph, directed=False)
    answer = fg.given_array(result, where="result").on_host()
    eps = np.finfo(answer.dtype).eps
    x = answer.astype(np.float64).reshape(graph.vertex_count, -1)
    found = held_values(graph, "voltages", voltages)
    known, held = found.values.on_host(), found.is_held.on_host()
    fed = _fed(graph, fg.given_array(currents)).on_host()
    wanted = known.astype(answer.dtype)
    require(~held | (x == wanted).all(axis=1), "a held voltage was changed")

    given = checked_weights(graph, conductances, "conductances")
    g = given.astype(np.float64).on_host()
    edges = edges_of(graph)
    of_edges = g[edges.given][:, None]
    total = in_weights(graph, g)[:, None]
    degree = np.bincount(edges.targets, minlength=len(x))[:, None]
    if not fed.any():
        component = component_of(graph, g > 0)
        for column in range(x.shape[1]):
            values = known[:, min(column, known.shape[1] - 1)]
            low, high = np.full(len(x), np.inf), np.full(len(x), -np.inf)
            np.minimum.at(low, component[held], values[held])
            np.maximum.at(high, component[held], values[held])
            size = 4 * eps * (degree[:, 0] + 4) * np.abs(values).max(initial=0)
            low, high = low[component] - size, high[component] + size
            inside = (low <= x[:, column]) & (x[:, column] <= high)
            dead = np.zeros_like(held) if graph.living is None else ~graph.living
            require(inside | dead, "a voltage outside of all held ones")
    inflow = sums_over_in_edges(edges, of_edges * x[edges.sources], len(x))
    size = sums_over_in_edges(edges, of_edges * np.abs(x[edges.sources]), len(x))
    # A sum of n rounded terms is off by at most n roundings of the sum of their sizes.
    rounding = 4 * eps * (degree + 4) * (size + np.abs(fed) + total * np.abs(x))
    left = np.abs(inflow - total * x + fed)
    balanced = left <= epsilon * total + rounding
    require(held | balanced.all(axis=1), "the currents do not cancel")


def _path_properties(graph: fg.Graph, held: Any) -> dict[str, Any]:
    """Return the properties that `_require_paths` needs beside ``held`` and ``weight``.

    The graph is undirected.
    """
    if graph.ranks is not None:
        return {"linked": fg.vertex_property(held, iterated=True)}
    nothing = fg.vertex_property(np.int32(0))
    return {"drop": nothing, "marked": nothing}


def _require_paths(
    state: fg.State, held: int, target: str, *, what: str, fix: str | None
) -> None:
    """Raise GraphInputError if no path leads to some vertex from a held one.

    Parameters
    ----------
    state : State
    held : int
        The number of held vertices.
    target : str
    what, fix : str
        Message and fix of the error.
    """
    count = state.graph.vertex_count
    if state.graph.ranks is None:
        trees(state, target=target)
        missing = int(state["floating"][0])
    else:  # each of the others is committed once, when a path is found
        run = fg.iterate(spread, state, max_supersteps=count + 1, target=target)
        missing = count - held - sum(run.active_counts)
    if missing > 0:
        raise fg.GraphInputError(
            what,
            where=f"vertex {int(np.argmax(_floating(state)))}",
            got=f"{missing} such vertices",
            fix=fix,
        )


def _floating(state: fg.State) -> Any:
    """Return a mask of the vertices without a path."""
    if state.graph.ranks is not None:
        return ~state["linked"]
    tops = np.arange(state.graph.vertex_count) - state["drop"]
    found = ~state["held"] & (state["marked"][tops] == 0)
    return found if state.graph.living is None else found & state.graph.living


def component_of(graph: fg.Graph, is_open: Array) -> Array:
    """Return the component of each vertex, (V,), along the given edges in a mask."""
    ends = graph.sources[is_open], graph.targets[is_open]
    count = graph.vertex_count
    matrix = sp.coo_matrix((np.ones(len(ends[0]), np.int8), ends), (count, count))
    return np.asarray(connected_components(matrix, directed=False)[1])
