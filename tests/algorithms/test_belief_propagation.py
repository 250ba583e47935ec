"""Belief propagation against NumPy, and against exact marginals on trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.belief_propagation import (
    belief_propagation,
    verify_belief_propagation,
)
from tests.algorithms.enumeration import marginals_of, pairwise_joint

Array = npt.NDArray[Any]

MODES = ("sum-product", "max-product")

#: Where a test asks for so many supersteps and no more.
limit_is_meant = pytest.mark.filterwarnings(
    "ignore:not converged:featgraph.ConvergenceWarning"
)


def path(length: int) -> fg.Graph:
    ends = np.arange(length)
    return fg.Graph.from_edges(ends[:-1], ends[1:], vertex_count=length, directed=False)


def potts(k: int, same: float) -> Array:
    return np.where(np.eye(k, dtype=bool), same, 1.0)


def log(x: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(x)


def recurrence(
    graph: fg.Graph,
    unary: Array,
    pairwise: Array,
    supersteps: int,
    mode: str = "sum-product",
    damping: float = 0.0,
) -> tuple[Array, Array]:
    """Return beliefs and messages (2 E, K), in logs, with nothing dropped."""
    count, k = graph.given_edge_count, unary.shape[1]
    u = np.concatenate([graph.sources, graph.targets])
    v = np.concatenate([graph.targets, graph.sources])
    psi = np.broadcast_to(pairwise, (count, k, k))
    psi = log(np.concatenate([psi, psi.transpose(0, 2, 1)]))
    phi = log(unary)
    for edge in np.flatnonzero(graph.sources == graph.targets):
        phi[u[edge]] += np.diag(psi[edge])
    taken = u != v
    back = np.roll(np.arange(2 * count), count)
    msg = np.zeros((2 * count, k))
    belief = phi.copy()
    for _ in range(supersteps):
        excluded = np.isneginf(belief[u])
        with np.errstate(invalid="ignore"):
            cavity = np.where(excluded, -np.inf, belief[u] - msg[back])
            joint = cavity[:, :, None] + psi
            top = joint.max(axis=1, initial=-np.inf)
            if mode == "sum-product":
                total = np.exp(joint - top[:, None]).sum(axis=1)
                top = np.where(np.isneginf(top), top, top + log(total))
            level = top - top.max(axis=1, keepdims=True)
            mixed = damping * msg + (1 - damping) * level
        new = np.where(np.isneginf(level) | np.isneginf(msg), level, mixed)
        msg = np.where(taken[:, None], new, msg)
        belief = phi.copy()
        np.add.at(belief, v[taken], msg[taken])
    return belief, msg


def shares(beliefs: Array) -> Array:
    raised = np.exp(beliefs - beliefs.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def random_model(
    rng: np.random.Generator, k: int, *, shared: bool = False, zeros: bool = True
) -> tuple[fg.Graph, Array, Array]:
    """A graph with loops, multi-edges and isolated vertices; no state is impossible."""
    ends = rng.integers(0, 24, (2, 45))
    graph = fg.Graph.from_edges(*ends, vertex_count=26, directed=False)
    unary = rng.uniform(0.2, 1, (26, k))
    pairwise = rng.uniform(0.2, 1, (k, k) if shared else (45, k, k))
    if zeros:
        # State 0 is compatible with all states: so nothing contradicts anything.
        unary[:, 1:] *= rng.random((26, k - 1)) < 0.8
        block = pairwise[..., 1:, 1:]
        block *= rng.random(block.shape) < 0.8
    return graph, unary, pairwise


def check_supersteps(
    model: tuple[fg.Graph, Array, Array],
    mode: str,
    damping: float = 0.0,
    supersteps: tuple[int, ...] = (1, 2, 6),
    size: float = 1.0,
    **options: Any,
) -> None:
    """Compare with the recurrence; `size` is that of the logs, which are rounded."""
    graph, unary, pairwise = model
    for count in supersteps:
        result = belief_propagation(
            graph,
            unary,
            pairwise,
            mode=mode,
            damping=damping,
            epsilon=0.0,
            max_supersteps=count,
            **options,
        )
        belief, msg = recurrence(graph, unary, pairwise, count, mode, damping)
        # A log of a message sums up to K terms and up to D messages, each rounded.
        degree = np.bincount(np.concatenate([graph.sources, graph.targets])).max()
        k = unary.shape[1]
        tolerance = 32 * np.finfo(np.float32).eps * (degree + k) * count * size
        assert np.array_equal(np.isneginf(result.messages), np.isneginf(msg))
        finite = np.isfinite(msg)
        assert np.abs(result.messages - msg)[finite].max(initial=0) <= tolerance
        assert np.abs(result.marginals - shares(belief)).max() <= tolerance


@pytest.mark.drawn(6)
@limit_is_meant
@pytest.mark.parametrize("k", [1, 2, 4, 8, 17, 64])
def test_supersteps_are_those_of_the_recurrence(
    k: int, target: str, rng: np.random.Generator
) -> None:
    check_supersteps(random_model(rng, k), "sum-product", target=target)


@pytest.mark.drawn(4)
@limit_is_meant
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("mode", MODES)
def test_modes_and_shared_potentials(
    mode: str, shared: bool, target: str, rng: np.random.Generator
) -> None:
    check_supersteps(random_model(rng, 3, shared=shared), mode, target=target)


@pytest.mark.drawn(6)
@limit_is_meant
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("k", [2, 4, 17])
def test_potentials_of_all_sizes(
    k: int, shared: bool, target: str, rng: np.random.Generator
) -> None:
    """Weights and sums of them that float32 does not hold, in some or all states."""
    graph, unary, pairwise = random_model(rng, k, shared=shared)
    unary = unary * 10 ** rng.uniform(-30, 0, unary.shape)
    pairwise = pairwise * 10 ** rng.uniform(-60, 40, pairwise.shape)
    check_supersteps((graph, unary, pairwise), MODES[0], target=target, size=200)


def test_sums_that_vanish_keep_their_order(target: str) -> None:
    """States that are 1e-60 as likely as others stay distinct where that matters."""
    unary = [[1, 1e-35, 1e-36], [1, 1, 1], [0, 1, 1]]
    result = belief_propagation(path(3), unary, np.eye(3), target=target)
    assert result.marginals[0] == pytest.approx([0, 1 / 1.1, 0.1 / 1.1], rel=1e-4)
    assert result.marginals[0, 0] == 0


@limit_is_meant
@pytest.mark.parametrize(("damping", "history"), [(0.3, False), (0.3, True), (0, True)])
def test_damping_mixes_logs(
    damping: float, history: bool, target: str, rng: np.random.Generator
) -> None:
    check_supersteps(
        random_model(rng, 3), "sum-product", damping, history=history, target=target
    )


OPTIONS = [
    {"direction": "push"},
    {"feature_parallel": False},
    {"folding": False},
    {"deterministic": True},
    {"change_driven": False},
]


@limit_is_meant
def test_damped_messages_settle_with_everything_active_as_without(
    target: str, rng: np.random.Generator
) -> None:
    check_supersteps(
        random_model(rng, 3), "sum-product", 0.3, target=target, change_driven=False
    )


@pytest.mark.drawn(3)
@limit_is_meant
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_do_not_change_the_answer(
    options: dict[str, Any], target: str, rng: np.random.Generator
) -> None:
    model = random_model(rng, 3)
    check_supersteps(model, "sum-product", target=target, **options)
    graph, unary, _ = model
    weak = rng.uniform(0.8, 1, (graph.given_edge_count, 3, 3))
    result = belief_propagation(graph, unary, weak, target=target, **options)
    assert result.converged
    verify_belief_propagation(graph, unary, weak, result)


@st.composite
def forests(draw: st.DrawFn) -> tuple[fg.Graph, Array, Array]:
    """Forests of up to 12 variables of 1 to 3 states, often with zero potentials."""
    count = draw(st.integers(1, 12))
    parents = [draw(st.integers(-1, v - 1)) for v in range(1, count)]
    edges = [(v, p) for v, p in enumerate(parents, 1) if p >= 0]
    turned = [draw(st.booleans()) for _ in edges]
    pairs = [(p, v) if t else (v, p) for (v, p), t in zip(edges, turned, strict=True)]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([1.0, 0.8, 0.5]))
    states = rng.integers(1, 4, count)
    unary = rng.uniform(0.1, 1, (count, 3)) * (rng.random((count, 3)) < density)
    unary[np.arange(3) >= states[:, None]] = 0
    unary[:, 0] = np.where(unary.any(axis=1), unary[:, 0], 0.5)
    pairwise = rng.uniform(0.1, 1, (len(ends), 3, 3))
    pairwise *= rng.random(pairwise.shape) < density
    graph = fg.Graph.from_edges(*ends.T, vertex_count=count, directed=False)
    return graph, unary, pairwise


@settings(deadline=None)
@given(forests(), st.sampled_from(MODES))
def test_beliefs_are_exact_on_forests(
    model: tuple[fg.Graph, Array, Array], mode: str
) -> None:
    options = {"mode": mode, "epsilon": 1e-11}
    joint = pairwise_joint(*model)
    if not joint.any():
        with pytest.raises(fg.GraphInputError, match=r"vertex .*contradicts itself"):
            belief_propagation(*model, **options, dtype=np.float64, target="cpu")
        return
    result = belief_propagation(*model, **options, dtype=np.float64, target="cpu")
    assert result.converged
    verify_belief_propagation(*model, result, **options)
    exact = np.array(marginals_of(joint, mode))
    assert np.abs(result.marginals - exact).max() <= 1e-8
    best = np.sort(joint.ravel())[-2:]
    if mode == "max-product" and (best.size == 1 or best[0] < best[1] * (1 - 1e-9)):
        assert joint[tuple(result.states)] == joint.max()


def grid(rng: np.random.Generator, side: int, strength: float) -> Any:
    x, y = np.divmod(np.arange(side * side), side)
    right, down = np.flatnonzero(y < side - 1), np.flatnonzero(x < side - 1)
    sources = np.concatenate([right, down])
    targets = np.concatenate([right + 1, down + side])
    graph = fg.Graph.from_edges(sources, targets, directed=False)
    unary = np.exp(rng.uniform(-1, 1, (side * side, 2)))
    coupling = rng.uniform(-strength, strength, len(sources))
    signs = np.array([[1, -1], [-1, 1]])
    return graph, unary, np.exp(coupling[:, None, None] * signs)


def test_loopy_beliefs_are_near_the_truth_of_a_weakly_coupled_grid(
    target: str, rng: np.random.Generator
) -> None:
    model = grid(rng, 4, 0.3)
    result = belief_propagation(*model, target=target)
    assert result.converged
    verify_belief_propagation(*model, result)
    exact = np.array(marginals_of(pairwise_joint(*model)))
    assert np.abs(result.marginals - exact).max() < 0.01


def test_one_vertex_and_no_edges(target: str) -> None:
    alone = fg.Graph.from_edges([], [], vertex_count=1, directed=False)
    result = belief_propagation(alone, [[1, 2, 1]], np.zeros((0, 3, 3)), target=target)
    assert result.marginals == pytest.approx(np.array([[0.25, 0.5, 0.25]]))
    assert result.states.tolist() == [1]
    assert result.messages.shape == (0, 3)
    assert result.converged


def test_isolated_vertices_keep_their_potential(target: str) -> None:
    graph = fg.Graph.from_edges([0], [2], vertex_count=4, directed=False)
    unary = [[1, 0, 0], [1, 2, 1], [1, 1, 1], [0, 0, 3]]
    result = belief_propagation(graph, unary, potts(3, 2), target=target)
    assert result.marginals == pytest.approx(
        np.array([[1, 0, 0], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0, 0, 1]]), abs=1e-6
    )


def test_a_self_loop_is_a_potential_of_its_vertex(target: str) -> None:
    graph = fg.Graph.from_edges([0, 0, 1], [0, 1, 1], directed=False)
    unary = np.array([[1.0, 2, 1], [1, 1, 1]])
    pairwise = np.arange(1.0, 28).reshape(3, 3, 3)
    exact = marginals_of(pairwise_joint(graph, unary, pairwise))
    for tables in (pairwise, pairwise[1]):
        result = belief_propagation(graph, unary, tables, target=target)
        exact = marginals_of(pairwise_joint(graph, unary, tables))
        assert result.marginals == pytest.approx(np.array(exact), abs=1e-5)
        verify_belief_propagation(graph, unary, tables, result)
        joint = pairwise_joint(graph, unary, tables)
        score = np.log(unary[[0, 1], result.states]).sum()
        ends = (graph.sources, graph.targets)
        x, y = (result.states[end] for end in ends)
        given_tables = np.broadcast_to(tables, (3, 3, 3))
        score += np.log(given_tables[np.arange(3), x, y]).sum()
        assert result.log_score == pytest.approx(score)
        assert joint.ndim == 2


def test_multi_edges_are_a_loop_of_their_own(target: str) -> None:
    """Two edges between two vertices: each end hears itself, as on any cycle."""
    graph = fg.Graph.from_edges([0, 1], [1, 0], directed=False)
    unary = np.array([[1.0, 3, 1], [1, 1, 1]])
    table = np.array([[3.0, 1, 1], [1, 2, 1], [1, 1, 1]])
    result = belief_propagation(graph, unary, table, target=target)
    expected, _ = recurrence(graph, unary, table, 200)
    assert result.converged
    assert np.abs(result.marginals - shares(expected)).max() < 1e-3
    merged = fg.Graph.from_edges([0], [1], directed=False)
    product = belief_propagation(merged, unary, table * table.T, target=target)
    exact = marginals_of(pairwise_joint(graph, unary, table))
    assert product.marginals == pytest.approx(np.array(exact), abs=1e-5)


def test_evidence_is_a_state_that_alone_is_possible(target: str) -> None:
    graph, unary = path(4), np.ones((4, 3))
    by_mapping = belief_propagation(
        graph, unary, potts(3, 4), evidence={3: 2}, target=target
    )
    by_array = belief_propagation(
        graph, unary, potts(3, 4), evidence=np.array([-1, -1, -1, 2]), target=target
    )
    clamped = unary.copy()
    clamped[3] = [0, 0, 1]
    exact = np.array(marginals_of(pairwise_joint(graph, clamped, potts(3, 4))))
    assert by_mapping.marginals == pytest.approx(exact, abs=1e-5)
    assert np.array_equal(by_array.marginals, by_mapping.marginals)
    assert by_mapping.marginals[3].tolist() == [0, 0, 1]


def test_impossible_states_stay_impossible_and_nothing_is_nan(target: str) -> None:
    """A chain that must alternate, whose ends agree to that or do not."""
    differ = 1 - np.eye(2)
    alternating = belief_propagation(
        path(5), np.ones((5, 2)), differ, evidence={0: 0}, target=target
    )
    assert alternating.marginals.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]]
    agreed = {0: 1, 4: 1}
    result = belief_propagation(
        path(5), np.ones((5, 2)), differ, evidence=agreed, target=target
    )
    assert result.states.tolist() == [1, 0, 1, 0, 1]
    with pytest.raises(
        fg.GraphInputError, match=r"vertex [12]: .*contradicts"
    ) as error:
        belief_propagation(
            path(4), np.ones((4, 2)), differ, evidence={0: 1, 3: 1}, target=target
        )
    assert error.value.fix is not None


def test_a_cycle_of_hard_constraints_has_the_support_of_its_solutions(
    target: str,
) -> None:
    """Equality around a cycle: what arc consistency leaves, and no nan."""
    cycle = fg.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], directed=False)
    unary = np.array([[1.0, 1, 0], [1, 1, 1], [1, 1, 1], [0, 1, 1]])
    result = belief_propagation(cycle, unary, np.eye(3), target=target)
    assert result.marginals.tolist() == [[0, 1, 0]] * 4


def test_a_hub_of_many_leaves_does_not_underflow(target: str) -> None:
    """The product of 100,000 messages of 0.4 to 0.6 is far below any float."""
    leaves = 100_000
    star = fg.Graph.from_edges(
        np.zeros(leaves, np.int64), np.arange(1, leaves + 1), directed=False
    )
    unary = np.ones((leaves + 1, 2))
    lean = np.zeros(leaves)
    lean[:3] = 1.0
    unary[1:] = np.exp(lean[:, None] * [0.0, 0.5])
    table = np.array([[0.6, 0.4], [0.4, 0.6]])
    result = belief_propagation(star, unary, table, target=target)
    assert result.converged
    ratio = 3 * np.log((0.4 + 0.6 * np.e**0.5) / (0.6 + 0.4 * np.e**0.5))
    assert np.log(result.marginals[0, 1] / result.marginals[0, 0]) == pytest.approx(
        ratio, rel=1e-3
    )
    one_sided = belief_propagation(
        star, np.ones((leaves + 1, 2)), [[0.6, 0.4], [0.5, 0.5]],
        evidence=dict.fromkeys(range(1, leaves + 1), 0), target=target,
    )  # fmt: skip
    assert one_sided.states[0] == 0
    assert one_sided.marginals[0].tolist() == [1, 0]
    score = leaves * np.log(0.6)
    assert one_sided.log_score == pytest.approx(score, rel=1e-6)


def repulsive(count: int, coupling: float) -> tuple[fg.Graph, Array, Array]:
    """Everybody next to everybody, and wanting to differ: messages flip together."""
    sources, targets = np.triu_indices(count, 1)
    graph = fg.Graph.from_edges(sources, targets, directed=False)
    unary = np.exp(np.outer(np.linspace(0.1, 0.3, count), [0.5, -0.5, 0]))
    unary[:, 2] = 0
    signs = np.array([[1.0, -1, 0], [-1, 1, 0], [0, 0, 0]])
    return graph, unary, np.tile(np.exp(-coupling * signs), (len(sources), 1, 1))


@limit_is_meant
def test_oscillation_shows_and_damping_ends_it(target: str) -> None:
    model = repulsive(5, 0.6)
    swinging = belief_propagation(
        *model, max_supersteps=200, history=True, target=target
    )
    assert not swinging.converged
    assert swinging.residuals.shape == (200,)
    assert swinging.residuals[-50:].min() > 0.1
    damped = belief_propagation(*model, damping=0.5, history=True, target=target)
    assert damped.converged
    assert damped.residuals.argmax() == 0
    assert damped.residuals[-1] <= 1e-4
    verify_belief_propagation(*model, damped, damping=0.5)
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    assert "message" in damped.plot(axes).get_ylabel()


def test_not_converged_is_warned_of_and_recorded() -> None:
    with pytest.warns(fg.ConvergenceWarning):
        result = belief_propagation(*repulsive(5, 0.6), max_supersteps=20, target="cpu")
    assert not result.converged
    assert result.supersteps == 20
    with pytest.raises(AssertionError, match=r"message .*changes"):
        verify_belief_propagation(*repulsive(5, 0.6), result)


def test_a_damped_message_is_not_left_half_way(target: str) -> None:
    """Nothing ever arrives at vertex 0, whose message must settle all the same."""
    graph, unary = path(2), np.array([[1.0, 9, 0], [1, 1, 1]])
    table = potts(3, 4)[None]
    result = belief_propagation(
        graph, unary, table, damping=0.8, epsilon=1e-6, target=target
    )
    exact = np.array(marginals_of(pairwise_joint(graph, unary, table)))
    assert result.marginals == pytest.approx(exact, abs=1e-4)


def test_messages_that_cancel_out_are_still_passed_on(target: str) -> None:
    """The belief of vertex 2 is constant, but its messages to neighbors alternate.

    Vertices 0 and 1 lean to different states, and in the second superstep hear from 3
    and 4 that it is the other way round: the messages into 2 change places.
    """
    graph = fg.Graph.from_edges([0, 1, 3, 4], [2, 2, 0, 1], directed=False)
    unary = np.array([[4.0, 1, 0], [1, 4, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]])
    turn = np.array([[1.0, 16, 0], [1, 1, 0], [1, 1, 1]])
    tables = np.array([potts(3, 5), potts(3, 5), turn, turn[:, [1, 0, 2]]])
    result = belief_propagation(graph, unary, tables, target=target)
    verify_belief_propagation(graph, unary, tables, result)
    exact = np.array(marginals_of(pairwise_joint(graph, unary, tables)))
    assert result.marginals == pytest.approx(exact, abs=1e-5)
    assert result.marginals[2] == pytest.approx([0.5, 0.5, 0], abs=1e-6)


def test_logs_are_potentials_too(target: str, rng: np.random.Generator) -> None:
    graph, unary, pairwise = random_model(rng, 3)
    plain = belief_propagation(graph, unary, pairwise, target=target)
    logs = belief_propagation(
        graph, log(unary) - 800, log(pairwise) + 800, is_log=True, target=target
    )
    assert np.abs(plain.marginals - logs.marginals).max() < 1e-3


def test_pull_repeats_bit_by_bit(target: str, rng: np.random.Generator) -> None:
    model = random_model(rng, 3)
    runs = [belief_propagation(*model, direction="pull", target=target) for _ in "ab"]
    assert np.array_equal(runs[0].messages, runs[1].messages)
    assert runs[0].run.active_counts == runs[1].run.active_counts
