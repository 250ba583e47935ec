"""S9: every target, under every option, agrees with the interpreter.

One superstep of each program of the bank from a drawn graph, state and active set, and
whole runs of those that converge. ``--hypothesis-profile deep`` takes every program at
every width; otherwise each width is met by many programs and each option by all.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import reference
from featgraph.program.signature import PropertyKind
from tests.bank import BANK, BY_NAME, BankProgram
from tests.strategies import OPTION_SETS, active_sets, graphs, seeds

#: The constant c of S9.
C = 8.0
#: Terms of a sum that are added up one after the other (S9); more, pairwise. Of pushed
#: sums, and of products, all are: no row here is as long.
IN_ORDER = 2048
#: Programs that are run at every width also without the deep profile.
EVERY_WIDTH = {"label_propagation", "extremes_int32", "pagerank", "ragged"}
WIDTHS_OTHERWISE = 4


def _is_deep() -> bool:
    return hypothesis.settings.get_current_profile_name() == "deep"


#: Shrinking would compile again and again what does not compile.
PHASES = tuple(p for p in Phase if _is_deep() or p is not Phase.shrink)


def _widths(program: BankProgram) -> tuple[int, ...]:
    """Return the widths to run: all, or a few that differ from program to program."""
    count = len(program.widths)
    if _is_deep() or program.name in EVERY_WIDTH or count <= WIDTHS_OTHERWISE:
        return program.widths
    first = zlib.crc32(program.name.encode()) % count
    step = max(1, count // WIDTHS_OTHERWISE)
    return tuple(
        sorted(
            program.widths[(first + i * step) % count] for i in range(WIDTHS_OTHERWISE)
        )
    )


def _options(program: BankProgram, k: int) -> list[dict[str, Any]]:
    """Return the option sets of one width; over the widths, every set is met.

    That is for programs at every width and the deep profile. Else a width meets one,
    and over the programs every set is met at every width.
    """
    widths = _widths(program)
    place = widths.index(k)
    count = len(OPTION_SETS)
    if program.name not in EVERY_WIDTH and not _is_deep():
        return [OPTION_SETS[(3 * place + zlib.crc32(program.name.encode())) % count]]
    own = list(OPTION_SETS[place % count :: len(widths)])
    return own or [OPTION_SETS[place % count]]


def _size(program: BankProgram, k: int) -> tuple[int, int]:
    """Return (examples, edges): the interpreter takes no longer than a compile."""
    if k > 10:
        return 3, 34
    examples, edges = (12, 150) if k <= 4 else (6, 100)
    share = 1 if _is_deep() else program.effort
    return examples // share, edges // share


@dataclass
class Tolerance:
    """How far floats may differ (S9), row by row of the vertices."""

    program: BankProgram
    outcome: reference.Outcome
    width: int

    def eps(self, dtype: Any) -> float:
        return C * self.program.slack * float(np.finfo(dtype).eps)

    def of_vertices(self, name: str, before: Any) -> Any:
        """Return the tolerance of each vertex, shape (V, 1, ...)."""
        outcome = self.outcome
        expected = outcome.values[name]
        count = len(expected)
        scale = _largest(expected) + _largest(before)
        if name in outcome.proposed:
            scale = scale + _largest(outcome.proposed[name])
        lost = np.zeros(count)
        for into, magnitude in outcome.magnitude.items():
            if into in outcome.temporaries:
                scale = scale + _largest(magnitude)
            else:
                lost += count * magnitude.max(initial=0.0)
        terms = _roundings(outcome.degree + 1) + np.sqrt(self.width)
        each = self.eps(expected.dtype) * (terms * scale + lost)
        return each.reshape(-1, *[1] * (expected.ndim - 1))

    def of_others(self, name: str) -> float:
        """Return the tolerance of an edge property or a reduce result."""
        expected = self.outcome.values[name]
        scale = float(np.abs(expected).max(initial=0.0)) + 1.0
        scale += float(self.outcome.magnitude.get(name, np.zeros(1)).max(initial=0.0))
        is_edge = self.outcome.signature[name].kind is PropertyKind.EDGE
        terms = self.width + (0 if is_edge else _roundings(self.outcome.degree.size))
        return self.eps(expected.dtype) * scale * terms


def _roundings(terms: Any) -> Any:
    """Return how many roundings of the whole a sum of so many terms has at most."""
    return np.minimum(terms, IN_ORDER) + np.log2(np.maximum(terms / IN_ORDER, 1.0))


def _largest(rows: Any) -> Any:
    """Return the largest absolute value of each row, finite."""
    flat = np.abs(np.asarray(rows, np.float64)).reshape(len(rows), -1)
    return np.where(np.isfinite(flat), flat, 0.0).max(axis=1, initial=0.0)


def _is_close(actual: Any, expected: Any, tolerance: Any) -> Any:
    with np.errstate(invalid="ignore"):
        near = np.abs(actual.astype(np.float64) - expected) <= tolerance
    same = actual == expected
    return near | same | (np.isnan(actual) & np.isnan(expected))


def _undecided(
    program: BankProgram, before: dict[str, Any], tolerance: Tolerance
) -> dict[str, Any]:
    """Return, by property with a threshold, the rows that may go either way."""
    rows = {}
    for name, scalar in program.thresholds:
        outcome = tolerance.outcome
        change = np.abs(outcome.proposed[name].astype(np.float64) - before[name])
        if outcome.signature[name].kind is PropertyKind.VERTEX:
            margin = tolerance.of_vertices(name, before[name])
        else:
            margin = tolerance.of_others(name)
        near = np.abs(change - before[scalar]) <= 2 * margin
        rows[name] = near.any(axis=tuple(range(1, near.ndim)))
    return rows


def check_agreement(
    program: BankProgram,
    k: int,
    before: dict[str, Any],
    outcome: reference.Outcome,
    state: fg.State,
    active_out: fg.ActiveSet,
) -> None:
    """Hold what a target left in `state` against the interpreter's outcome (S9)."""
    tolerance = Tolerance(program, outcome, k)
    undecided = _undecided(program, before, tolerance)
    for name, rows in undecided.items():
        if outcome.signature[name].kind is PropertyKind.EDGE:
            assume(not rows.any())  # one edge decides which vertices are due
    differ = active_out.mask != outcome.active_out.mask
    for name, rows in undecided.items():
        if outcome.signature[name].kind is PropertyKind.VERTEX:
            differ &= ~rows
    assert not differ.any(), f"commits differ at {np.flatnonzero(differ).tolist()}"
    for name, type_ in outcome.signature.items():
        if type_.kind is PropertyKind.SCALAR:
            continue
        actual, expected = state[name], outcome.values[name]
        assert actual.shape == expected.shape, name
        assert actual.dtype == expected.dtype, name
        if program.exact or actual.dtype.kind != "f":
            np.testing.assert_array_equal(actual, expected, err_msg=name)
            continue
        if type_.kind is PropertyKind.VERTEX:
            allowed = tolerance.of_vertices(name, before.get(name, expected))
        else:
            allowed = tolerance.of_others(name)
        good = _is_close(actual, expected, allowed)
        if name in undecided:
            rows = undecided[name].reshape(-1, *[1] * (actual.ndim - 1))
            good |= rows & _is_close(actual, before[name], allowed)
            good |= rows & _is_close(actual, outcome.proposed[name], allowed)
        bad = np.argwhere(~good)
        assert not bad.size, (
            f"d.{name}{bad[0].tolist()} is {actual[tuple(bad[0])]!r}, the interpreter "
            f"has {expected[tuple(bad[0])]!r}; {len(bad)} of {good.size} entries differ"
        )


def _call(foldmap: Any, state: fg.State, active: Any, options: dict[str, Any]) -> Any:
    """Call `foldmap`; pull what cannot be pushed, run what is not repeatable."""
    try:
        return foldmap(state, active_in=active, **options)
    except fg.PlanError:
        if options.get("direction") != "push" and not options.get("deterministic"):
            raise
        changed = {"direction": "auto", "deterministic": False}
        return foldmap(state, active_in=active, **(options | changed))


def _spell(options: dict[str, Any]) -> list[str]:
    return [
        value if isinstance(value, str) else name if value else f"no_{name}"
        for name, value in options.items()
    ]


CASES = [
    pytest.param(
        program, k, options, id="-".join([program.name, str(k), *_spell(options)])
    )
    for program in BANK
    for k in _widths(program)
    for options in _options(program, k)
]


@pytest.mark.drawn(72)
@pytest.mark.parametrize(("program", "k", "options"), CASES)
def test_one_superstep(
    program: BankProgram, k: int, options: dict[str, Any], target: str
) -> None:
    examples, edges = _size(program, k)

    @settings(max_examples=examples, phases=PHASES)
    @given(st.data())
    def agrees(data: st.DataObject) -> None:
        directed = False if program.undirected else None
        graph = data.draw(graphs(directed=directed, max_edges=edges, dead=True))
        foldmap = data.draw(st.sampled_from(program.foldmaps))
        active = data.draw(active_sets(graph))
        rng = np.random.default_rng(data.draw(seeds))
        state = fg.State(graph, **program.make_state(graph, k, rng))
        given_state = reference.from_state(state)
        outcome = reference.superstep(foldmap.program, *given_state, active=active)
        active_out = _call(foldmap, state, active, {"target": target, **options})
        check_agreement(program, k, given_state[1], outcome, state, active_out)

    agrees()


@pytest.mark.drawn(4)
@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize(
    "name",
    [
        "label_propagation",
        "bfs",
        "pagerank",
        "integer_sum",
        "push",
        "offers",
        "opinions",
    ],
)
def test_restriction(name: str, k: int, target: str) -> None:
    program = BY_NAME[name]

    @settings(max_examples=8, phases=PHASES)
    @given(graphs(max_edges=60, dead=True), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        on, active = (rng.random((2, graph.vertex_count)) < 0.5).astype(np.bool_)
        state = fg.State(graph, **program.make_state(graph, k, rng))
        given_state = reference.from_state(state)
        foldmap = program.foldmaps[0]
        outcome = reference.superstep(
            foldmap.program, *given_state, active=active, on=on
        )
        active_out = foldmap.on(on)(
            state, active_in=fg.ActiveSet(graph, active), target=target
        )
        check_agreement(program, k, given_state[1], outcome, state, active_out)

    agrees()


@pytest.mark.drawn(8)
@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("program", [p for p in BANK if p.iterable], ids=repr)
def test_run_to_the_end(program: BankProgram, k: int, target: str) -> None:
    """Exact programs reach the same end; the others one where nothing would change."""
    k = k if k in program.widths else program.widths[0]

    @settings(max_examples=6, phases=PHASES)
    @given(graphs(max_edges=60, dead=True), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        state = fg.State(graph, **program.make_state(graph, k, rng))
        steps = list(program.foldmaps)
        expected = reference.iterate(
            [foldmap.program for foldmap in steps], *reference.from_state(state)
        )
        assert expected.converged
        run = fg.iterate(
            steps if len(steps) > 1 else steps[0],
            state,
            max_supersteps=1000,
            target=target,
        )
        assert run.converged
        if program.exact:
            for name, value in expected.values.items():
                np.testing.assert_array_equal(state[name], value, err_msg=name)
        _check_certificate(program, k, state)

    agrees()


def _check_certificate(program: BankProgram, k: int, state: fg.State) -> None:
    """When converged, no vertex would return True (S9), but within the margin."""
    for foldmap in program.foldmaps:
        given_state = reference.from_state(state)
        outcome = reference.superstep(foldmap.program, *given_state)
        tolerance = Tolerance(program, outcome, k)
        would = outcome.active_out.mask
        for rows in _undecided(program, given_state[1], tolerance).values():
            would = would & ~rows
        assert not would.any(), f"{np.flatnonzero(would).tolist()} would still change"


@pytest.mark.drawn(2)
@pytest.mark.parametrize("k", [2, 8])
def test_halves_in_turn(k: int, target: str) -> None:
    """Items, then users: vertices that a restriction leaves out stay due (S4)."""
    program = BY_NAME["least_squares"]
    rng = np.random.default_rng(5)
    users, items = np.arange(12), np.arange(12, 30)
    graph = fg.Graph.from_edges(
        rng.choice(users, 70), rng.choice(items, 70), vertex_count=30, directed=False
    )
    values = program.make_state(graph, k, rng) | {"epsilon": 1e-3}
    state, kept = fg.State(graph, **values), fg.State(graph, **values)
    half = program.foldmaps[0]
    expected = reference.iterate(
        [(half.program, items), (half.program, users)],
        *reference.from_state(kept),
        active=users,
    )
    run = fg.iterate(
        [half.on(items), half.on(users)], state, active=users, target=target
    )
    assert expected.converged
    assert run.converged
    _check_certificate(program, k, state)
    np.testing.assert_allclose(state["factor"], expected.values["factor"], atol=0.02)


@pytest.mark.drawn(6)
@pytest.mark.parametrize(
    "name",
    [
        "label_propagation", "extremes_int32", "bfs", "push", "offers", "notes",
        "belief_propagation",
    ],
)  # fmt: skip
def test_several_supersteps_by_hand(name: str, target: str) -> None:
    """Plain control flow: active_out of one call is active_in of the next."""
    program = BY_NAME[name]
    directed = False if program.undirected else None

    @settings(max_examples=5, phases=PHASES)
    @given(graphs(max_edges=60, directed=directed, dead=True), seeds, st.data())
    def agrees(graph: fg.Graph, seed: int, data: st.DataObject) -> None:
        rng = np.random.default_rng(seed)
        state = fg.State(graph, **program.make_state(graph, 3, rng))
        active = data.draw(active_sets(graph))
        for _ in range(4):
            foldmap = data.draw(st.sampled_from(program.foldmaps))
            given_state = reference.from_state(state)
            outcome = reference.superstep(
                foldmap.program, *given_state, active=active, superstep=state.superstep
            )
            active_out = foldmap(state, active_in=active, target=target)
            check_agreement(program, 3, given_state[1], outcome, state, active_out)
            active = active_out

    agrees()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["label_propagation", "bfs", "pagerank", "push"])
def test_several_chunks_of_vertices(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs as small as the others are one chunk, on one thread: cut this one up."""
    monkeypatch.setattr("featgraph.runtime.devices.host_arrays.SMALLEST_CHUNK", 1)
    program, rng = BY_NAME[name], np.random.default_rng(11)
    graph = fg.Graph.from_edges(*rng.integers(0, 300, (2, 900)), vertex_count=300)
    state = fg.State(graph, **program.make_state(graph, 3, rng))
    given_state = reference.from_state(state)
    foldmap = program.foldmaps[0]
    outcome = reference.superstep(foldmap.program, *given_state)
    active_out = foldmap(state, target=target)
    check_agreement(program, 3, given_state[1], outcome, state, active_out)
