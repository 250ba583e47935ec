"""Circuit, heat and neural network against linear systems, NumPy and networkx."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.circuit_simulation import (
    circuit_simulation,
    component_of,
    verify_circuit_simulation,
)
from featgraph.algorithms.heat_simulation import (
    heat_simulation,
    verify_heat_simulation,
)
from featgraph.algorithms.neural_network import neural_network, verify_neural_network
from tests.algorithms.dense import dense
from tests.strategies import graphs, seeds

Array = npt.NDArray[Any]

#: Columns, and options. Two kernels.
CASES: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (1, {"change_driven": False}),
    (4, {"direction": "push"}),
]
cases = st.sampled_from(CASES)


def laplacian(matrix: Array) -> Array:
    """Return D - A with the sums of A's rows: what leaves a vertex."""
    return np.diag(matrix.sum(axis=1)) - matrix


@pytest.fixture
def path() -> fg.Graph:
    return fg.Graph.from_edges(np.arange(4), np.arange(1, 5), directed=False)


# -- circuits


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@given(graphs(directed=False, max_edges=60), st.floats(0, 1), seeds)
def test_a_path_of_resistors_leads_to_each_vertex(
    target: str, graph: fg.Graph, share: float, seed: int
) -> None:
    """Or vertices that none leads to are counted, and the first of them is named."""
    rng = np.random.default_rng(seed)
    is_open = rng.random(graph.given_edge_count) < 0.7
    held = rng.random(graph.vertex_count) < share
    component = component_of(graph, is_open)
    floats = ~np.isin(component, component[held])
    voltages = np.where(held, 1.0, np.nan)
    options: dict[str, Any] = {"conductances": 2.0 * is_open, "max_supersteps": 1}
    if not floats.any():
        circuit_simulation(graph, voltages, target=target, **options)
        return
    with pytest.raises(fg.GraphInputError) as refused:
        circuit_simulation(graph, voltages, target=target, **options)
    assert refused.value.where == f"vertex {int(np.argmax(floats))}"
    assert refused.value.got == f"{floats.sum()} such vertices"


@given(graphs(directed=False, max_edges=60), cases, seeds)
def test_voltages_solve_the_equations_of_kirchhoff(
    target: str, graph: fg.Graph, case: tuple[int, dict[str, Any]], seed: int
) -> None:
    (k, options), rng = case, np.random.default_rng(seed)
    count = graph.vertex_count
    conductances = rng.integers(1, 4, graph.given_edge_count) + 0.0
    held = rng.random(count) < 0.3
    matrix = dense(graph, conductances)
    parts = scipy.sparse.csgraph.connected_components(matrix)[1]
    held[np.unique(parts, return_index=True)[1]] = True  # one of each component
    voltages = np.where(held[:, None], rng.normal(size=(count, k)), np.nan)
    fed = np.where(held[:, None], 0, rng.integers(-1, 2, (count, k)))
    given_values = {
        "conductances": conductances,
        "currents": fed,
        "epsilon": 1e-12,
    }
    result = circuit_simulation(
        graph,
        voltages,
        max_supersteps=100_000,
        target=target,
        **given_values,
        **options,
    )
    assert result.converged
    verify_circuit_simulation(graph, result.voltages, voltages, **given_values)
    system = laplacian(matrix)
    free = ~held
    expected = np.where(held[:, None], voltages, 0.0)
    if free.any():
        right = fed[free] - system[np.ix_(free, held)] @ expected[held]
        expected[free] = np.linalg.solve(system[np.ix_(free, free)], right)
    assert result.voltages == pytest.approx(expected, abs=1e-7)
    assert result.supplied == pytest.approx(system @ result.voltages, abs=1e-9)


def test_resistance_distance_is_that_of_networkx(target: str) -> None:
    peer = nx.petersen_graph()
    for u, v in peer.edges:
        peer.edges[u, v]["weight"] = 1.0 + (u + v) % 3  # a resistance
    ends = np.array(list(peer.edges))
    graph = fg.Graph.from_edges(*ends.T, directed=False)
    resistances = np.array([w for *_, w in peer.edges(data="weight")])
    voltages = np.full(10, np.nan)
    voltages[[0, 7]] = 1, 0
    result = circuit_simulation(
        graph,
        voltages,
        conductances=1 / resistances,
        epsilon=1e-13,
        history=True,
        target=target,
    )
    distance = nx.resistance_distance(peer, 0, 7, weight="weight", invert_weight=True)
    assert 1 / result.supplied[0] == pytest.approx(distance, rel=1e-9)
    assert result.supplied.sum() == pytest.approx(0, abs=1e-12)
    drop = resistances * result.currents
    assert drop == pytest.approx(-np.diff(result.voltages[ends])[:, 0])
    assert result.residuals[-1] <= 1e-13


def test_circuits_that_nothing_determines_are_refused(path: fg.Graph) -> None:
    held = [1.0, *[np.nan] * 4]
    with pytest.raises(fg.GraphInputError, match="vertex 3: no path of resistors"):
        circuit_simulation(path, held, conductances=[1, 1, 0, 1])
    with pytest.raises(fg.GraphInputError, match="vertex 0: no path"):
        circuit_simulation(path, [np.nan] * 5)
    with pytest.raises(fg.GraphInputError, match="conducts both ways"):
        circuit_simulation(fg.Graph.from_edges([0], [1]), [1.0, np.nan])
    for bad in ([1.0, 2.0], [np.inf, *held[1:]], [[1, np.nan], *[[np.nan] * 2] * 4]):
        with pytest.raises(fg.GraphInputError):
            circuit_simulation(path, bad)
    with pytest.raises(fg.GraphInputError):
        circuit_simulation(path, held, conductances=[1, 1, -1, 1])


def test_the_verifier_of_circuits_sees_what_is_wrong(path: fg.Graph) -> None:
    held = np.array([4.0, *[np.nan] * 3, 0.0])
    verify_circuit_simulation(path, np.arange(5.0)[::-1], held)
    for wrong, message in (
        ([4.0, 3, 2, 1, 0.5], "vertex 4: a held voltage"),
        ([4.0, 5, 2, 1, 0], "vertex 1: a voltage outside"),
        ([4.0, 3, 2, 1.5, 0], "vertex 2: the currents"),
    ):
        with pytest.raises(AssertionError, match=message):
            verify_circuit_simulation(path, wrong, held)


# -- heat


@given(graphs(max_edges=60), cases, seeds)
def test_steps_are_those_of_the_matrix(
    target: str, graph: fg.Graph, case: tuple[int, dict[str, Any]], seed: int
) -> None:
    (k, options), rng = case, np.random.default_rng(seed)
    count = graph.vertex_count
    start = rng.normal(size=(count, k)).round(2)
    given_values: dict[str, Any] = {
        "conductivities": rng.integers(0, 4, graph.given_edge_count) + 0.0
    }
    if rng.random() < 0.5:
        given_values["held"] = rng.random(count) < 0.2
    flow = -laplacian(dense(graph, given_values["conductivities"]))
    flow[given_values.get("held", np.zeros(count, np.bool_))] = 0
    steepest = np.abs(np.diag(flow)).max()
    dt = 1 / steepest if steepest else 0.5
    result = heat_simulation(
        graph, start, dt=dt, duration=7 * dt, target=target, **given_values, **options
    )
    assert result.converged
    assert result.time == pytest.approx(7 * dt)
    step = np.eye(count) + result.dt * flow
    expected = np.linalg.matrix_power(step, 7) @ start
    assert np.abs(result.temperatures - expected).max() <= 1e-12
    verify_heat_simulation(graph, result, start, epsilon=None, **given_values)
    steady = heat_simulation(graph, start, target=target, **given_values)
    assert steady.converged
    verify_heat_simulation(graph, steady, start, **given_values)


def test_small_steps_come_near_the_exponential(
    target: str, rng: np.random.Generator
) -> None:
    ends = rng.integers(0, 12, (2, 30))
    graph = fg.Graph.from_edges(*ends, vertex_count=12, directed=False)
    start = rng.random(12)
    system = -laplacian(dense(graph, np.ones(30)))
    exact = scipy.linalg.expm(0.3 * system) @ start
    errors = [
        np.abs(
            heat_simulation(
                graph, start, dt=dt, duration=0.3, target=target
            ).temperatures
            - exact
        ).max()
        for dt in (0.01, 0.005)
    ]
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.1)


def test_steps_that_are_too_long_are_refused(path: fg.Graph) -> None:
    with pytest.raises(fg.GraphInputError) as caught:
        heat_simulation(path, np.ones(5), conductivities=[1, 1, 3, 1], dt=0.3)
    assert "vertex 2: the step is too long" in str(caught.value)
    assert "choose dt of 0.25 or less" in str(caught.value)
    held = np.array([False, False, True, True, False])
    heat_simulation(path, np.ones(5), conductivities=[1, 1, 3, 1], dt=0.5, held=held)
    for bad in (
        {"dt": 0.0},
        {"duration": -1.0},
        {"held": [0, 1, 0, 0, 0]},
        {"conductivities": [1, 1, 1, np.inf]},
    ):
        with pytest.raises(fg.GraphInputError):
            heat_simulation(path, np.ones(5), **bad)  # type: ignore[arg-type]


def test_the_verifier_of_heat_sees_what_is_wrong(path: fg.Graph) -> None:
    start = np.array([1.0, 0, 0, 0, 0])
    held = np.array([True, False, False, False, False])
    free, fixed = heat_simulation(path, start), heat_simulation(path, start, held=held)
    verify_heat_simulation(path, free, start)
    verify_heat_simulation(path, fixed, start, held=held)
    warmer = replace(free, temperatures=free.temperatures + 0.1)
    with pytest.raises(AssertionError, match="column 0: heat was made"):
        verify_heat_simulation(path, warmer, start)
    uneven = replace(free, temperatures=np.array([0.3, 0.1, 0.2, 0.2, 0.2]))
    with pytest.raises(AssertionError, match="vertex 0: one more superstep"):
        verify_heat_simulation(path, uneven, start)
    with pytest.raises(AssertionError, match="vertex 1: outside"):
        verify_heat_simulation(
            path, replace(free, temperatures=np.array([0, 1.1, -0.1, 0, 0])), start
        )
    with pytest.raises(AssertionError, match="vertex 0: a held"):
        verify_heat_simulation(path, free, start, held=held)


# -- neurons


@given(graphs(max_edges=60), cases, seeds)
def test_neurons_settle_at_the_fixpoint(
    target: str, graph: fg.Graph, case: tuple[int, dict[str, Any]], seed: int
) -> None:
    (k, options), rng = case, np.random.default_rng(seed)
    count = graph.vertex_count
    is_input = rng.random(count) < 0.3
    inputs = np.where(is_input[:, None], rng.normal(size=(count, k)), np.nan)
    weights = rng.normal(size=graph.given_edge_count)
    matrix = dense(graph, np.abs(weights))
    weights *= 0.8 / max(1.0, matrix.sum(axis=1).max())  # contracts
    given_values = {"weights": weights, "bias": rng.normal(size=count)}
    result = neural_network(
        graph, inputs, epsilon=1e-12, dtype=np.float64, target=target,
        **given_values, **options,
    )  # fmt: skip
    assert result.converged
    verify_neural_network(graph, result.outputs, inputs, epsilon=1e-12, **given_values)
    x, matrix = np.nan_to_num(inputs), dense(graph, weights)
    for _ in range(200):
        fired = np.tanh(matrix @ x + given_values["bias"][:, None])
        x = np.where(is_input[:, None], inputs, fired)
    assert np.abs(result.outputs - x).max() <= 1e-10


def test_layers_take_a_superstep_each(target: str, rng: np.random.Generator) -> None:
    sizes = [3, 4, 2, 1]
    layers = np.split(np.arange(10), np.cumsum(sizes)[:-1])
    pairs = [(u, v) for a, b in pairwise(layers) for u in a for v in b]
    graph = fg.Graph.from_edges(*np.array(pairs).T)
    weights = rng.normal(size=len(pairs))
    inputs = np.full((10, 4), np.nan)
    inputs[:3] = rng.normal(size=(3, 4))
    result = neural_network(
        graph, inputs, weights=weights, epsilon=0, dtype=np.float64, target=target
    )
    matrix, x = dense(graph, weights), np.nan_to_num(inputs)
    for layer in layers[1:]:
        x[layer] = np.tanh(matrix[layer] @ x)
    assert np.abs(result.outputs - x).max() <= 1e-14
    assert result.supersteps <= len(sizes) + 1


def test_neurons_that_swing_do_not_converge(target: str) -> None:
    pair = fg.Graph.from_edges([0, 1, 2], [1, 0, 0], vertex_count=3)
    with pytest.warns(fg.ConvergenceWarning):
        result = neural_network(
            pair,
            [np.nan, np.nan, 1],
            weights=[-5, 5, 0.1],
            max_supersteps=50,
            target=target,
        )
    assert not result.converged
    assert result.supersteps == 50


def test_the_verifier_of_neurons_sees_what_is_wrong() -> None:
    layers = fg.Graph.from_edges([0, 1], [1, 2])
    inputs = np.array([2.0, np.nan, np.nan])
    right = neural_network(layers, inputs).outputs
    verify_neural_network(layers, right, inputs)
    for wrong, message in (
        (right + np.array([1, 0, 0]), "vertex 0: an input"),
        (right + np.array([0, 1, 0]), "vertex 1: an output beyond"),
        (right - np.array([0, 0, 0.01]), "vertex 2: one more superstep"),
    ):
        with pytest.raises(AssertionError, match=message):
            verify_neural_network(layers, wrong, inputs)
    for bad in ({"bias": [1.0, 2.0]}, {"bias": np.inf}, {"weights": [1.0, np.nan]}):
        with pytest.raises(fg.GraphInputError):
            neural_network(layers, inputs, **bad)
