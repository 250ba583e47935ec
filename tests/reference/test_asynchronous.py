"""Runs that may see their own superstep, or let far vertices wait: the same fixpoint.

S8 and S9 promise no more. Keys are compared bit by bit, since a path's sum is added up
from its beginning in every order of evaluation, and rounding is monotone.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import featgraph as fg
from featgraph import reference
from featgraph.algorithms.connected_components import (
    connected_components,
    verify_connected_components,
)
from featgraph.algorithms.sssp import sssp, verify_sssp
from featgraph.algorithms.sswp import sswp, verify_sswp
from featgraph.graph import generators
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.devices.protocol import BoundEntry, Device
from featgraph.runtime.memory.buffers import buffers_of
from tests.programs.monotone import BY_NAME, MONOTONE, Monotone, check_parents
from tests.reference.test_agreement import PHASES
from tests.simt.superstep import mask_of
from tests.strategies import graphs, seeds


def modes(program: Monotone) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        "asynchronous": {"asynchronous": True},
        "everywhere": {"asynchronous": True, "change_driven": False},
    }
    if program.waits:
        delta = 0.3 if program.name == "paths" else 7
        found["near_far"] = {"near_far": fg.NearFar(program.key, delta)}
        found["both"] = {**found["near_far"], "asynchronous": True}
        found["default"] = {"near_far": fg.NearFar(program.key)}
    return found


CASES = [
    pytest.param(program, mode, id=f"{program.name}-{mode}")
    for program in MONOTONE
    for mode in modes(program)
]


@pytest.mark.drawn(10)
@pytest.mark.parametrize(("program", "mode"), CASES)
def test_the_same_fixpoint(program: Monotone, mode: str, target: str) -> None:
    @settings(max_examples=12, phases=PHASES)
    @given(graphs(max_edges=80), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        steps = list(program.foldmaps)
        plain, other = program.state(graph, seed), program.state(graph, seed)
        synchronous = fg.iterate(steps, plain, target=target)
        options = modes(program)[mode]
        run = fg.iterate(steps, other, target=target, **options)
        assert run.converged
        assert run.asynchronous == options.get("asynchronous", False)
        assert (len(run.thresholds) == run.supersteps) == ("near_far" in options)
        np.testing.assert_array_equal(other[program.key], plain[program.key])
        if "near_far" not in options and len(steps) == 1:
            assert run.supersteps <= synchronous.supersteps
        if program.name == "paths":
            check_parents(other)
        for foldmap in steps:  # convergence is a certificate
            assert not len(foldmap(other, target=target))

    agrees()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("program", MONOTONE, ids=repr)
def test_the_interpreter_in_one_order(program: Monotone, target: str) -> None:
    """Vertex by vertex, it ends where the kernels do, and in no more supersteps."""

    @settings(max_examples=5, phases=PHASES)
    @given(graphs(max_edges=40), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        state = program.state(graph, seed)
        programs = [foldmap.program for foldmap in program.foldmaps]
        start = reference.from_state(state)
        meant = reference.iterate(programs, *start)
        early = reference.iterate(programs, *start, asynchronous=True)
        assert early.converged
        np.testing.assert_array_equal(
            early.values[program.key], meant.values[program.key]
        )
        if len(programs) == 1:
            assert early.supersteps <= meant.supersteps
        fg.iterate(list(program.foldmaps), state, target=target, asynchronous=True)
        np.testing.assert_array_equal(state[program.key], meant.values[program.key])

    agrees()


def test_the_interpreter_sees_its_superstep() -> None:
    """Along a path in order of the vertices, one superstep brings the label through."""
    graph = generators.path_graph(9, directed=True)
    state = BY_NAME["components"].state(graph, 0)
    program = BY_NAME["components"].foldmaps[0].program
    start = reference.from_state(state)
    assert reference.superstep(program, *start).values["comp"].tolist() == [
        0, 0, 1, 2, 3, 4, 5, 6, 7
    ]  # fmt: skip
    early = reference.superstep(program, *start, asynchronous=True)
    assert early.values["comp"].tolist() == [0] * 9


@pytest.fixture(scope="module")
def country() -> fg.Graph:
    """Several chunks of vertices on the CPU, many blocks on the GPU."""
    return generators.grid(100, 150)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("mode", ["asynchronous", "near_far", "both"])
def test_many_chunks(country: fg.Graph, mode: str, target: str) -> None:
    program = BY_NAME["paths"]
    plain, other = program.state(country, 5), program.state(country, 5)
    options = {"target": target, "max_supersteps": 10_000}
    fg.iterate(program.foldmaps[0], plain, **options)
    options |= modes(program)[mode]
    if mode != "asynchronous":
        options["near_far"] = fg.NearFar("distance", 4)
    fg.iterate(program.foldmaps[0], other, **options)
    np.testing.assert_array_equal(other["distance"], plain["distance"])
    check_parents(other)


def test_updates_are_seen_within_a_superstep(country: fg.Graph, target: str) -> None:
    program = BY_NAME["components"]
    plain, other = program.state(country, 1), program.state(country, 1)
    before = fg.iterate(program.foldmaps[0], plain, target=target)
    run = fg.iterate(program.foldmaps[0], other, target=target, asynchronous=True)
    np.testing.assert_array_equal(other["comp"], plain["comp"])
    assert run.supersteps <= before.supersteps
    if target == "cpu":  # a GPU may have read all before the first commit
        assert run.supersteps < 10


def test_a_commit_makes_others_due_at_once() -> None:
    """With one active vertex a label reaches the vertices that run after it.

    So it is on the CPU; a GPU has begun with most vertices at once.
    """
    target = "cpu"
    program = BY_NAME["components"]
    graph = generators.path_graph(100)
    state = program.state(graph, 0)
    run = fg.iterate(
        program.foldmaps[0], state, active=[0], target=target, asynchronous=True
    )
    assert not state["comp"].any()
    assert run.active_counts == [99, 0]
    # Not where `.on` forbids it, nor beyond what waits.
    state = program.state(graph, 0)
    some = program.foldmaps[0].on(np.arange(100) < 40)
    fg.iterate(some, state, active=[0], target=target, asynchronous=True)
    np.testing.assert_array_equal(
        state["comp"], np.where(np.arange(100) < 40, 0, np.arange(100))
    )
    state = program.state(graph, 0)
    options = {"near_far": fg.NearFar("comp", 1), "asynchronous": True}
    run = fg.iterate(program.foldmaps[0], state, active=[0], target=target, **options)
    assert run.active_counts[0] == 1


def test_far_vertices_wait(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer in-edges are read, in more supersteps; the threshold only rises."""
    graph = generators.grid(30, 30)
    edges = [0]
    device = type(choose_device(target))
    launch = device.launch

    def count(self: Device, bound: BoundEntry, given: dict[str, Any]) -> None:
        words = np.asarray(self.download(given["due"]))
        due = mask_of(words, graph.vertex_count)
        edges[-1] += int(graph.in_degree[due].sum())
        launch(self, bound, given)

    monkeypatch.setattr(device, "launch", count)
    program = BY_NAME["paths"]
    runs = []
    for options in ({}, {"near_far": fg.NearFar("distance", 0.5)}):
        state = program.state(graph, 2)
        distance = np.full((graph.vertex_count, program.k), np.inf, np.float32)
        distance[0] = 0
        state["distance"] = distance
        runs.append(
            fg.iterate(program.foldmaps[0], state, active=[0], target=target, **options)
        )
        edges.append(0)
    assert edges[1] < 0.7 * edges[0]
    assert runs[1].supersteps > runs[0].supersteps
    assert runs[1].thresholds == sorted(runs[1].thresholds)


def test_a_run_goes_on_from_what_waits(target: str) -> None:
    """Vertices of the far set at the limit stay due for a later call."""
    program = BY_NAME["paths"]
    graph = generators.grid(12, 12)
    plain, other = program.state(graph, 3), program.state(graph, 3)
    fg.iterate(program.foldmaps[0], plain, target=target)
    near_far = fg.NearFar("distance", 0.4)
    calls = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        while True:
            calls += 1
            run = fg.iterate(
                program.foldmaps[0],
                other,
                target=target,
                near_far=near_far,
                max_supersteps=4,
            )
            if run.converged:
                break
    assert calls > 2
    np.testing.assert_array_equal(other["distance"], plain["distance"])


@pytest.mark.parametrize("options", [{"asynchronous": True}, {}])
def test_writes_from_outside(options: dict[str, Any], target: str) -> None:
    """Both buffers follow what the caller writes between supersteps."""
    program = BY_NAME["labels"]
    graph = generators.path_graph(40)
    state = program.state(graph, 4)
    state["open"] = np.ones(39, bool)

    def lower(run: fg.Run, state: fg.State) -> None:
        if run.supersteps == 2:
            label = state["label"]
            label[20] = -5
            state["label"] = label

    fg.iterate(program.foldmaps[0], state, target=target, callback=lower, **options)
    assert (state["label"] == -5).all()
    # And a synchronous run goes on from an asynchronous one.
    label = state["label"]
    label[3] = -9
    state["label"] = label
    fg.iterate(program.foldmaps[0], state, target=target)
    assert (state["label"] == -9).all()


@pytest.mark.drawn(4)
@pytest.mark.parametrize("mode", ["asynchronous", "near_far", "both"])
def test_algorithms_take_the_options(mode: str, target: str) -> None:
    """Shortest and widest paths: the same keys, and predecessors that explain them."""
    graph = generators.rmat(9, 6, seed=3, directed=False)
    weights = np.random.default_rng(3).random(graph.given_edge_count)
    near, wide = (
        find(graph, [0, 7], weights=weights, target=target) for find in (sssp, sswp)
    )
    options: dict[str, Any] = {"asynchronous": mode != "near_far"}
    waits = mode != "asynchronous"
    by = [fg.NearFar(k, 0.2) if waits else None for k in ("distance", "width")]
    roads = sssp(
        graph, [0, 7], weights=weights, target=target, near_far=by[0], **options
    )
    pipes = sswp(
        graph, [0, 7], weights=weights, target=target, near_far=by[1], **options
    )
    np.testing.assert_array_equal(roads.distances, near.distances)
    np.testing.assert_array_equal(pipes.widths, wide.widths)
    verify_sssp(graph, [0, 7], roads.distances, roads.predecessors, weights=weights)
    verify_sswp(graph, [0, 7], pipes.widths, pipes.predecessors, weights=weights)
    if not waits:
        assert roads.supersteps <= near.supersteps
        assert pipes.supersteps <= wide.supersteps


@pytest.mark.parametrize("directed", [True, False])
def test_components_take_the_option(directed: bool, target: str) -> None:
    """Edges count both ways, and labels jump: both foldmaps commit in their kernels."""
    rng = np.random.default_rng(8)
    source, target_ = rng.integers(0, 3000, (2, 2500))
    graph = fg.Graph.from_edges(source, target_, vertex_count=3000, directed=directed)
    options = {"method": "propagate", "target": target}
    meant = connected_components(graph, **options)
    found = connected_components(graph, asynchronous=True, target=target)
    assert found.run.asynchronous
    np.testing.assert_array_equal(found.labels, meant.labels)
    verify_connected_components(graph, found.labels)
    if target == "cpu":
        assert found.supersteps <= meant.supersteps
    with pytest.raises(fg.PlanError, match="join is an edge function"):
        connected_components(graph, method="link", asynchronous=True, target=target)


def test_restricted_foldmaps(target: str) -> None:
    """Due vertices that `.on` leaves out stay due, and see what is there then."""
    program = BY_NAME["components"]
    hook = program.foldmaps[0]
    graph = generators.cycle_graph(50)
    even = np.arange(50) % 2 == 0
    state = program.state(graph, 0)
    run = fg.iterate(
        [hook.on(even), hook.on(~even)], state, target=target, asynchronous=True
    )
    assert run.converged
    assert (state["comp"] == 0).all()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_interrupted_superstep_leaves_everything_due(
    asynchronous: bool, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that commits may have done so before it failed."""
    program = BY_NAME["components"]
    backward = np.arange(100)  # the labels go down, word by word of the active set
    graph = fg.Graph.from_edges(backward[1:], backward[:-1])
    state = program.state(graph, 6)
    state["comp"] = backward[::-1].astype(np.int32)
    device = type(choose_device(target))
    launch, calls = device.launch, [0]

    def fail(self: Device, bound: BoundEntry, given: dict[str, Any]) -> None:
        launch(self, bound, given)
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt

    options = {"asynchronous": asynchronous, "target": target}
    with monkeypatch.context() as patch:
        patch.setattr(device, "launch", fail)
        with pytest.raises(KeyboardInterrupt):
            fg.iterate(program.foldmaps[0], state, active=[99], **options)
    fg.iterate(program.foldmaps[0], state, **options)
    assert not state["comp"].any()


def test_both_buffers_are_equal_between_supersteps(target: str) -> None:
    program = BY_NAME["labels"]
    graph = generators.path_graph(70)
    state, device = program.state(graph, 7), choose_device(target)

    def compare(run: fg.Run, state: fg.State) -> None:
        buffers = buffers_of(state, device)
        assert buffers.stale["label"] is None
        current, next_ = buffers.property("label"), buffers.next_of("label")
        assert current is not next_
        np.testing.assert_array_equal(
            np.array(device.download(current)), np.array(device.download(next_))
        )

    fg.iterate(
        program.foldmaps[0], state, target=target, callback=compare, asynchronous=True
    )
