"""Heat simulation: heat flows along edges from warm vertices to cold ones.

With ``Q(v)`` the temperature of a vertex and ``c(u, v)`` the conductivity of an edge, a
superstep is a time step of length dt (explicit Euler)::

    Q'(v) = Q(v) + dt * sum over edges u -> v of c(u, v) (Q(u) - Q(v))

It is stable if ``dt * C(v) <= 1`` for all v, with ``C(v)`` the sum of ``c(u, v)`` over
the edges into v, which is checked before the run. Then Q'(v) is a mean of temperatures,
and stays in the range of the initial ones. On an undirected graph without held vertices
the sum of all temperatures is constant.

State: ``heat`` (V, k), a column for each set of initial temperatures; ``held`` (V,),
vertices that keep their temperature; ``total`` and ``leak`` (V,), ``C(v)`` in float64
and ``dt C(v)``; ``weight``, the conductivities, one per given edge. A superstep reads
E * k values along edges, and updates V * k temperatures. On the way to a steady state,
vertices whose sources have all changed by epsilon or less are skipped.

The benchmark HS of F. Khorasani, K. Vora, R. Gupta, L. N. Bhuyan, "CuSha:
Vertex-Centric Graph Processing on GPUs", HPDC, 2014, and of F. Khorasani, R. Gupta,
L. N. Bhuyan, "Scalable SIMD-Efficient Graph Processing on GPUs", PACT, 2015. There it
is a synthetic workload, with arbitrary coefficients that include dt. Here dt is a
parameter and checked, a run may end at a given time, and vertices may be held.

J. Crank, "The Mathematics of Diffusion", Oxford, 1975, chapter 8, for the method and
its stability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

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
from featgraph.algorithms._vertices import columns, columns_property, given_values

__all__ = ["HeatResult", "heat_simulation", "verify_heat_simulation"]

Array = npt.NDArray[Any]


@fg.gather(into="conducts", combine="sum")
def conductivities_of_edges(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the conductivity of an edge; 0 for a self-loop."""
    return d.weight[e] if u != v else 0.0


@fg.vertex
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    """Store C(v)."""
    d.total[v] = d.conducts[v]
    return True


@fg.reduce(into="largest", combine="max")
def largest_total(f, v, d):  # type: ignore[no-untyped-def]
    """Return C(v) of a vertex that is not held."""
    return 0.0 if d.held[v] else d.total[v]


@fg.vertex
def scale(f, v, d):  # type: ignore[no-untyped-def]
    """Compute the share of its heat that v gives away in a step."""
    d.leak[v] = d.dt * d.total[v]
    return True


@fg.gather(into="inflow", combine="sum")
def conducted(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Return the heat that arrives along an edge per unit of time."""
    return d.weight[e] * d.heat[u, f] if u != v else 0.0


@fg.vertex
def exchange(f, v, d):  # type: ignore[no-untyped-def]
    """Add the heat that arrives, and subtract the share that v gives away."""
    if d.held[v]:
        return False
    change = d.dt * d.inflow[v, f] - d.leak[v] * d.heat[v, f]
    d.heat_next[v, f] = d.heat[v, f] + change
    return fg.any_feature(abs(change) > d.epsilon)


@fg.reduce(into="residual", combine="max")
def largest_change(f, v, d):  # type: ignore[no-untyped-def]
    """Return the change of a temperature."""
    return abs(d.heat_next[v, f] - d.heat[v, f])


begin = fg.foldmap(conductivities_of_edges, add_up, largest_total)
set_step = fg.vertexmap(scale)
step = fg.foldmap(conducted, exchange)
step_with_residual = fg.foldmap(conducted, exchange, largest_change)


@dataclass(frozen=True, eq=False, kw_only=True)
class HeatResult(Result):
    """Result of `heat_simulation`.

    Attributes
    ----------
    temperatures : ndarray of shape (V,) or (V, k)
        The temperatures at the end.
    dt : float
        The length of a time step.
    time : float
        The time that has passed: dt times the number of supersteps, or the duration.
    """

    temperatures: Array = answer()
    dt: float
    time: float

    residual_name: ClassVar[str] = "largest change of a temperature"


@fg.algorithm()
def heat_simulation(
    graph: fg.GraphLike,
    temperatures: npt.ArrayLike,
    *,
    conductivities: npt.ArrayLike | None = None,
    held: npt.ArrayLike | None = None,
    dt: float | None = None,
    duration: float | None = None,
    epsilon: float = 1e-6,
    max_supersteps: int = 10_000,
    history: bool = False,
    dtype: npt.DTypeLike = np.float64,
    **options: Any,
) -> HeatResult:
    """Simulate the flow of heat along edges, for some time or until it is steady.

    Parameters
    ----------
    graph : Graph, or any input of `featgraph.as_graph`
        Heat flows along ``u -> v``, in both directions if the graph is undirected. In a
        directed graph, the source of an edge loses nothing to its target.
    temperatures : array_like of shape (V,) or (V, k)
        The initial temperatures.
    conductivities : array_like of shape (E,), optional
        Non-negative, in the order in which the edges were given. Default: the weights
        of the graph, or one.
    held : array_like of bool, shape (V,), optional
        Vertices that keep their temperature. Default: none.
    dt : float, optional
        The length of a time step. Default: ``1 / (2 C)`` with C the largest C(v) of a
        vertex that is not held, so that temperatures do not oscillate.
    duration : float, optional
        The time to simulate; dt is reduced so that it is a whole number of steps.
        Default: until no temperature changes by more than `epsilon`.
    epsilon : float, optional
        A change by this or less is dropped and not announced. It has the unit of the
        temperatures: choose it far below their differences. Not used with `duration`.
    max_supersteps : int, optional
        The limit; ``result.converged`` is False if it ended the run.
    history : bool, optional
        Record the largest change of each superstep, in a pass over the vertices.
    dtype : dtype, optional
        float64 or float32.
    **options
        ``target``, ``direction``, ``progress``, ... as for `featgraph.iterate`.

    Returns
    -------
    HeatResult
        Temperatures, dt, the time, and the record of the run.

    Raises
    ------
    GraphInputError
        If temperatures, conductivities or the mask do not fit the graph or are not
        finite, a conductivity is negative, a number is out of range, or a step is too
        long to be stable; the error names the vertex.

    Warns
    -----
    ConvergenceWarning
        If the limit is reached.

    Notes
    -----
    The error of a step is of order dt squared. Bitwise repeatable in pull direction,
    which has no atomics.

    Examples
    --------
    >>> import featgraph as fg
    >>> from featgraph.algorithms import heat_simulation
    >>> rod = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
    >>> heat_simulation(rod, [100, 0, 0, 0], dt=0.25, duration=0.5).temperatures
    array([62.5 , 31.25,  6.25,  0.  ])
    >>> heat_simulation(rod, [100, 0, 0, 0]).temperatures.round(2)
    array([25., 25., 25., 25.])
    """
    graph = fg.as_graph(graph)
    require_number("epsilon", epsilon, epsilon >= 0, "0 or more")
    real, count = checked_reals(dtype), graph.vertex_count
    given = given_values(graph, "temperatures", temperatures)
    start = columns(graph, "temperatures", given)
    properties = {"weight": fg.edge_property(real.type(1))}
    properties |= weight_properties(graph, conductivities, real, name="conductivities")
    state = fg.State(
        graph,
        heat=columns_property(
            graph, start, start.shape[1], real, iterated=True, where="temperatures"
        ),
        held=fg.vertex_property(False if held is None else _mask(count, held).values),
        total=fg.vertex_property(np.float64(0)),
        leak=fg.vertex_property(real.type(0)),
        dt=0.0,
        epsilon=0.0,
        **properties,
    )
    where = {"target": options.get("target", "auto")}
    begin(state, **where)
    length, steps = _step_length(state, dt, duration)
    state["dt"] = length
    # Every change is above -1: the run goes on until the duration has passed.
    state["epsilon"] = float(epsilon) if steps is None else -1.0
    set_step(state, **where)
    run, residuals = iterate_recorded(
        step_with_residual if history else step,
        state,
        history=history,
        max_supersteps=max_supersteps,
        enough=steps,
        **options,
    )
    # After convergence, nothing would change in the rest of the duration.
    passed = run.supersteps if steps is None or not run.converged else steps
    heat = state.view("heat")
    return HeatResult.of(
        graph,
        run,
        residuals,
        temperatures=heat if given.ndim == 2 else heat.reshape(len(heat)),
        dt=length,
        time=length * passed,
    )


def _mask(count: int, held: npt.ArrayLike) -> fg.GivenArray:
    mask = fg.given_array(held, where="held")
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise fg.GraphInputError(
            "held is not a mask of the vertices that keep their temperature",
            got=f"{mask.dtype} of shape {mask.shape}",
            expected=f"bool of shape ({count},)",
        )
    return mask


def _step_length(
    state: fg.State, dt: float | None, duration: float | None
) -> tuple[float, int | None]:
    """Return dt, checked, and the number of steps, if a duration is given."""
    largest = float(state["largest"][0])
    if dt is None:
        dt = 1 / (2 * largest) if largest > 0 else 1.0
    require_number("dt", dt, dt > 0, "more than 0")
    if dt * largest > 1:
        vertex = int(np.argmax(np.where(state["held"], 0.0, state["total"])))
        raise fg.GraphInputError(
            "the step is too long to be stable",
            where=f"vertex {vertex}",
            got=f"dt = {dt:g} times the sum {largest:g} of its conductivities",
            expected="a product of 1 or less",
            fix=f"choose dt of {1 / largest:.6g} or less",
        )
    if duration is None:
        return float(dt), None
    require_number("duration", duration, duration > 0, "more than 0")
    # A quotient that exceeds an integer by rounding only counts as this integer.
    steps = max(math.ceil(duration / dt * (1 - 1e-12)), 1)
    return duration / steps, steps


def verify_heat_simulation(
    graph: fg.GraphLike,
    result: HeatResult,
    temperatures: npt.ArrayLike,
    *,
    conductivities: npt.ArrayLike | None = None,
    held: npt.ArrayLike | None = None,
    epsilon: float | None = 1e-6,
) -> None:
    """Check the answer of a run, in float64.

    All properties hold up to rounding.

    * Held vertices have the given temperatures.
    * All temperatures are in the range of the initial ones.
    * On an undirected graph without held vertices, the sum of each column equals the
      initial sum, up to dropped changes: epsilon per vertex and superstep.
    * With `epsilon`, one more superstep changes no free vertex by more than this.

    Parameters
    ----------
    graph, temperatures, conductivities, held
        As passed to `heat_simulation`.
    result : HeatResult
        The answer of `heat_simulation`.
    epsilon : float, optional
        As passed to `heat_simulation`; None for a run with a duration.

    Raises
    ------
    AssertionError
        If a property fails, with the first such vertex or column.
    """
    graph = fg.as_graph(graph)
    count = graph.vertex_count
    eps = np.finfo(result.temperatures.dtype).eps
    x = result.temperatures.astype(np.float64).reshape(count, -1)
    start = columns(graph, "temperatures", temperatures).on_host()
    mask = np.zeros(count, np.bool_) if held is None else _mask(count, held).on_host()
    kept = start.astype(result.temperatures.dtype)
    require(~mask | (x == kept).all(axis=1), "a held temperature was changed")
    edges = edges_of(graph)
    degree = np.bincount(edges.targets, minlength=count)
    # A superstep rounds a mean of degree + 1 temperatures.
    size = np.abs(start).max(axis=0, initial=0.0)
    rounding = 4 * eps * (degree.max(initial=0) + 4) * (result.supersteps + 1) * size
    low, high = start.min(axis=0) - rounding, start.max(axis=0) + rounding
    require(((low <= x) & (x <= high)).all(axis=1), "outside of the range at the start")
    if not graph.directed and not mask.any():
        dropped = 0.0 if epsilon is None else epsilon * count * result.supersteps
        off = np.abs(x.sum(axis=0) - start.sum(axis=0))
        require(off <= count * rounding + dropped, "heat was made or lost", "column")
    if epsilon is not None:
        given = checked_weights(graph, conductivities, "conductivities")
        c = given.astype(np.float64).on_host()
        of_edges = result.dt * c[edges.given][:, None]
        inflow = sums_over_in_edges(edges, of_edges * x[edges.sources], count)
        leak = result.dt * in_weights(graph, c)[:, None]
        change = np.abs(inflow - leak * x)
        settled = change <= epsilon + rounding
        require(mask | settled.all(axis=1), "one more superstep moves it")
