"""A second layout: kernels find the edges of a row, in its order, wherever they stand.

Where the order of atomics is fixed, on one thread and in the emulator, results have the
same bits as with CSR; everywhere they agree with the interpreter.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import reference
from featgraph.fold.plan import planner
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing import cpu
from featgraph.fold.printing.emit import emit
from featgraph.fold.printing.module import Entry
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.statements import Body, code
from featgraph.program.functions import EdgeFunction, GatherFunction
from featgraph.program.signature import PropertyKind
from tests.bank import BANK, BY_NAME, BankProgram
from tests.generated.check import check
from tests.generated.programs import generate
from tests.layouts.extents import POISON, Extents, arrays_of, extents_of
from tests.layouts.laid_out import LAYOUT, laid_out, layout_named
from tests.programs.queued import QUEUED
from tests.reference.test_agreement import check_agreement
from tests.simt.emulator import MemoryFault
from tests.simt.superstep import Superstep
from tests.strategies import active_sets, graphs, seeds
from tests.unit.test_cpu_queue import in_a_loop, make, record, run

#: Kinds of phases that are printed from nests, and how they are asked for.
KINDS: dict[str, dict[str, Any]] = {
    "push": {"direction": "push"},
    "vertex": {"direction": "pull"},
    "edge": {"folding": False},
}
#: How the emulator's kernels go to threads.
SCHEDULES: dict[str, dict[str, Any]] = {
    "lanes": {},
    "lanes and block": {"hubs": True},
    "thread": {"feature_parallel": False},
    "packed lanes": {"form": "packed"},
    "packed threads": {"form": "packed", "feature_parallel": False},
    "lanes in blocks of sums": {"block": 2},
    "rows together": {"schedule": "warp_segmentation"},
    "edges shared out": {"schedule": "balanced_push"},
    "rows together in blocks of sums": {"schedule": "warp_segmentation", "block": 2},
    "threads in blocks of sums": {"block": 2, "feature_parallel": False},
}
#: Vertices of this degree are left to blocks.
HUB_DEGREE = 9


def _is_deep() -> bool:
    return hypothesis.settings.get_current_profile_name() == "deep"


EXAMPLES = 20 if _is_deep() else 4  # the first is one vertex
#: No shrinking of drawn cases: it would compile again and again.
PHASES = tuple(p for p in Phase if p is not Phase.shrink)


def _entries(kind: str, program: BankProgram, target: str = "cpu") -> list[Entry]:
    """Return the kernels of a kind that a program has."""
    directed = not program.undirected
    graph = fg.Graph.from_edges([0], [1], vertex_count=2, directed=directed)
    values = program.make_state(graph, program.widths[0], np.random.default_rng(0))
    signature = fg.State(graph, **values).signature
    traits = GraphTraits(undirected=not directed, layout=LAYOUT)
    options = Options(target=target, **KINDS[kind])
    try:
        plan = make_plan(program.foldmaps[0].program, signature, options, traits)
        kernels = emit(plan)
    except fg.PlanError:
        return []
    return [e for e in kernels.entries if plan.phases[e.phase].kind.name == kind]


def _takes_extents(entry: Entry) -> bool:
    return any("extent_firsts" in name for name in entry.arguments)


def _width(program: BankProgram, turn: int) -> int:
    widths = [k for k in program.widths if k <= 10]
    return widths[turn % len(widths)]


#: Programs whose gathers are none of those that sources can push.
ONLY_PULLED = {"along_all", "along_out", "extremes_int32", "notes"}


def _has(program: BankProgram, kind: str) -> bool:
    """Return whether a program has kernels of a kind that go along edges.

    It goes by functions: to fold them all takes longer than to collect all other tests.
    """
    wanted = EdgeFunction if kind == "edge" else GatherFunction
    if kind == "push" and program.name in ONLY_PULLED:
        return False
    return any(isinstance(f, wanted) for f in program.foldmaps[0].program.functions)


#: Every program with kernels of a kind that go along edges.
CASES = [
    pytest.param(program, kind, _width(program, turn), id=f"{program}-{kind}")
    for kind in KINDS
    for turn, program in enumerate(BANK)
    if _has(program, kind)
]


#: Programs that the CPU sums in vectors and tiles, at such a width.
WIDTH = 33
WIDE = [
    pytest.param(program, "vertex", WIDTH, id=f"{program}-wide")
    for program in map(BY_NAME.get, ("label_propagation", "implicit_least_squares"))
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("folded_for", ["cpu", "cuda"])
def test_cases_are_all_programs_with_such_kernels(folded_for: str, kind: str) -> None:
    found = {p: [*map(_takes_extents, _entries(kind, p, folded_for))] for p in BANK}
    assert {p for p in BANK if any(found[p])} == {p for p in BANK if _has(p, kind)}
    if kind != "vertex":  # which some have that go along no edges
        assert all(itertools.chain(*found.values())), "a kernel takes another layout"


# -- the arrays


@given(graphs(), seeds)
def test_rows_have_the_same_edges_in_the_same_order(graph: fg.Graph, seed: int) -> None:
    for rows in (graph.in_edges, graph.out_edges, graph.incident_edges):
        made = arrays_of(rows, np.random.default_rng(seed))
        found, numbers = [], []
        for first, last in zip(made["firsts"], made["lasts"], strict=True):
            extent = first
            for place in range(made["places"][last]):
                while made["places"][extent] <= place:
                    extent += 1
                found.append(made["ends"][place + made["shifts"][extent]])
                numbers.append(made["numbers"][place + made["shifts"][extent]])
        assert found == rows.column_indices.tolist()
        if rows.edge_ids is not None:
            assert numbers == rows.edge_ids.tolist()
        assert np.count_nonzero(made["ends"] != POISON) == len(found)


def test_extents_are_unlike_csr() -> None:
    rng = np.random.default_rng(0)
    rows = fg.Graph.from_edges(*rng.integers(0, 20, (2, 90)), vertex_count=20).in_edges
    made = arrays_of(rows, rng)
    assert (made["lasts"] > made["firsts"]).any()
    assert (np.diff(made["firsts"]) < 0).any()
    assert (made["ends"] == POISON).sum() > 20
    firsts = made["shifts"][made["firsts"]]
    assert (np.diff(firsts) < 0).any()


# -- kernels


def same_bits(ours: Any, theirs: Any, name: str) -> None:
    ours, theirs = np.ascontiguousarray(ours), np.ascontiguousarray(theirs)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8), name)


@pytest.mark.drawn(44)
@pytest.mark.parametrize(("program", "kind", "k"), [*CASES, *WIDE])
def test_on_the_cpu(
    program: BankProgram, kind: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = KINDS[kind]
    examples = EXAMPLES if k < WIDTH or _is_deep() else EXAMPLES // 2
    # Which divisions become products, and so the last bit, is up to the compiler, by
    # what it can move out of a loop. Here the same operations come in the same order.
    fast = tuple(flag for flag in cpu.FAST if flag != "arcp")
    monkeypatch.setattr(cpu, "FAST", fast)
    foldmap = fg.foldmap(*program.foldmaps[0].program.functions)

    @settings(max_examples=examples, phases=PHASES)
    @given(st.data())
    def agrees(data: st.DataObject) -> None:
        directed = False if program.undirected else None
        # The interpreter goes through a wide matrix number by number.
        most = 100 if k < WIDTH else 40
        graph = data.draw(graphs(directed=directed, max_edges=most))
        active = data.draw(active_sets(graph))
        other = laid_out(graph, data.draw(seeds))
        values = program.make_state(graph, k, np.random.default_rng(data.draw(seeds)))
        state, laid = (fg.State(g, **copy.deepcopy(values)) for g in (graph, other))
        before = reference.from_state(state)
        outcome = reference.superstep(foldmap.program, *before, active=active)
        out = foldmap(state, active_in=active, target="cpu", **options)
        mask = None if active is None else fg.ActiveSet(other, active.mask)
        active_out = foldmap(laid, active_in=mask, target="cpu", **options)
        assert "extent_firsts" in foldmap.fold(laid, target="cpu", **options).source
        check_agreement(program, k, before[1], outcome, laid, active_out)
        same_bits(active_out.mask, out.mask, "active_out")
        for name in state:
            same_bits(laid[name], state[name], name)

    agrees()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "options", [{"change_driven": True}, {"direction": "push"}], ids=str
)
def test_a_run_has_the_same_bits(options: dict[str, Any]) -> None:
    """From superstep to superstep, by aggregates that stay and are patched, too."""
    program, rng = BY_NAME["label_propagation"], np.random.default_rng(4)
    graph = fg.Graph.from_edges(*rng.integers(0, 70, (2, 300)), vertex_count=70)
    values = program.make_state(graph, 3, rng)
    states = [fg.State(g, **copy.deepcopy(values)) for g in (graph, laid_out(graph, 5))]
    runs = [fg.iterate(program.foldmaps[0], s, target="cpu", **options) for s in states]
    assert runs[0].active_counts == runs[1].active_counts
    assert runs[0].supersteps > 2
    for name in states[0]:
        same_bits(states[1][name], states[0][name], name)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", sorted(QUEUED))
def test_supersteps_in_one_loop_have_the_same_bits(name: str) -> None:
    rng = np.random.default_rng(6)
    graph = fg.Graph.from_edges(*rng.integers(0, 200, (2, 500)), vertex_count=200)
    found = []
    for each, most in ((graph, -1), (laid_out(graph, 5), 1 << 20)):
        step, state, _ = make(name, each, 7)
        with in_a_loop(most):
            done = run(step, state, deterministic=True, max_supersteps=60)
        found.append((state, done))
    (csr, ours), (laid, theirs) = found
    assert record(theirs) == record(ours)
    assert "push" in theirs.directions
    assert "extent_firsts" in step.fold(laid).source
    for value in csr:
        same_bits(laid[value], csr[value], value)


@dataclass
class Emulated:
    """A superstep of a program on a graph in extents, and on the same in CSR."""

    program: BankProgram
    k: int
    graph: fg.Graph
    active: Any
    options: dict[str, Any]
    seed: int
    layout: str = LAYOUT

    def check(self) -> None:
        rng = np.random.default_rng(self.seed)
        state = fg.State(self.graph, **self.program.make_state(self.graph, self.k, rng))
        self.given = reference.from_state(state)
        active = np.ones(self.graph.vertex_count, bool)
        self.mask = active if self.active is None else self.active.mask
        steps = self.program.foldmaps[0].program
        outcome = reference.superstep(steps, *self.given, active=self.mask)
        arrays = extents_of(self.graph, rng)
        laid, csr = self._run(self.layout, arrays), self._run("csr", {})
        # Lanes tell each other more numbers of a row in extents: they meet more often,
        # and the order of their atomics is another.
        pushes = self.options.get("direction") == "push"
        if not (pushes and "schedule" in self.options):
            same_bits(laid.active_out, csr.active_out, "active_out")
            for name, value in csr.values.items():
                same_bits(laid.values[name], value, name)
        for name, type_ in self.given[2].items():
            if name in laid.values and type_.kind is PropertyKind.EDGE:
                # The second row of a self-loop belongs to no edge.
                own, value = self.graph.given_index, outcome.values[name].copy()
                value[own] = laid.values[name][own]
                laid.values[name] = value
        values = {**self.given[1], **laid.values}
        out = SimpleNamespace(mask=laid.active_out)
        check_agreement(self.program, self.k, self.given[1], outcome, values, out)

    def _run(self, layout: str, arrays: dict[str, Any]) -> Any:
        options = dict(self.options)
        form, hubs = options.pop("form", "plain"), options.pop("hubs", False)
        block = options.pop("block", 0)
        traits = GraphTraits(
            16, hubs, undirected=not self.graph.directed,
            long_rows=block > 0, layout=layout,
        )  # fmt: skip
        steps = self.program.foldmaps[0].program
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planner, "SUM_BLOCK", block)
            given = Options(target="cuda", **options)
            try:
                kernels = emit(make_plan(steps, self.given[2], given, traits))
            except fg.PlanError as error:
                if "schedule" not in options:
                    raise
                pytest.skip(error.what)
        assert ("extent_firsts" in kernels.text) == (layout != "csr")
        step = Superstep(
            kernels, self.graph, self.given[1],
            hub_degree=HUB_DEGREE, form=form, graph_arrays=arrays,
        )  # fmt: skip
        return step.run(self.mask)


def _in_turn() -> Iterator[Any]:
    """Every program in every schedule."""
    for program, kind, k in (case.values for case in CASES):
        for schedule, options in SCHEDULES.items():
            if kind == "vertex" and options == SCHEDULES["edges shared out"]:
                continue  # no source writes
            given = KINDS[kind] | options
            yield pytest.param(program, k, given, id=f"{program}-{kind}-{schedule}")


@pytest.mark.drawn(210)
@pytest.mark.parametrize(("program", "k", "options"), list(_in_turn()))
def test_in_the_emulator(program: BankProgram, k: int, options: dict[str, Any]) -> None:
    @settings(max_examples=EXAMPLES, phases=PHASES)
    @given(st.data())
    def agrees(data: st.DataObject) -> None:
        directed = False if program.undirected else None
        graph = data.draw(graphs(directed=directed, max_edges=60))
        active = data.draw(active_sets(graph))
        Emulated(program, k, graph, active, options, data.draw(seeds)).check()

    agrees()


@dataclass(frozen=True)
class LaidOut:
    """A drawn graph of a drawn program, in extents."""

    spec: Any
    seed: int

    def make(self) -> fg.Graph:
        return laid_out(self.spec.make(), self.seed)


@pytest.mark.skipif(not _is_deep(), reason="compiles drawn programs: deep profile")
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_programs(kind: str) -> None:
    @settings(max_examples=40, phases=PHASES)
    @given(st.integers(0, 2**32 - 1), seeds)
    def agrees(number: int, seed: int) -> None:
        case = generate(random.Random(number), work=300)
        case = replace(case, graph=LaidOut(case.graph, seed), options=[KINDS[kind]])
        report = check(case, "cpu")
        assert report.status != "failed", f"{report.detail}\n{case.text}"

    agrees()


# -- faults


class BySlot(Extents):
    """Counts slots from the first one of a row: spare ones are taken for edges."""

    def edge_at(self, place: str) -> tuple[Body, str, str]:
        shift = f"{self.array('shifts')}[first_extent]"
        at = self._number(f"{place} + {shift}")
        number = f"{self.array('numbers')}[{at}]" if self.finds_edges else "0"
        return [], at, self._number(number)


class ReadsSpare(Extents):
    """Goes one slot too far in each extent."""

    def edge_at(self, place: str) -> tuple[Body, str, str]:
        find, _, _ = super().edge_at(f"{place} - 1")
        return find, *super().edge_at(place)[1:]


class FirstExtentAlone(Extents):
    """Ends rows behind their first extents."""

    def row(self, vertex: str) -> Body:
        stop = f"{self.array('places')}[first_extent]"
        shorter = f"last_extent = first_extent\nstop = {stop}"
        return super().row(vertex) + code(shorter)


class FirstPlace(Extents):
    """Has all lanes begin at the first place of a row, not each at its own."""

    def edges(self, vertex: str, walk: Walk, part: str, body: Body) -> Body:
        return super().edges(vertex, replace(walk, own=""), part, body)


#: Kind -> the program that faults are planted in.
FAULTY = {
    "push": "label_propagation",
    "vertex": "label_propagation",
    "edge": "edge_atomics",
}
FAULTS = (None, BySlot, ReadsSpare, FirstExtentAlone, FirstPlace)


@pytest.mark.drawn(6)
@pytest.mark.parametrize(
    "schedule", ["lanes", "lanes and block", "thread", "rows together"]
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(
    fault: type[Extents] | None, kind: str, schedule: str
) -> None:
    rng = np.random.default_rng(3)
    source, target = rng.integers(0, 20, (2, 90))
    source[:12] = 3  # a hub
    graph = fg.Graph.from_edges(source, target, vertex_count=20)
    options = KINDS[kind] | SCHEDULES[schedule]
    layout = LAYOUT if fault is None else layout_named(fault.__name__, fault.of)
    run = Emulated(BY_NAME[FAULTY[kind]], 2, graph, None, options, 1, layout)
    lone = schedule in {"thread", "rows together"}  # has no place of its own
    if fault is None or (fault is FirstPlace and lone):
        run.check()
        return
    with pytest.raises((AssertionError, IndexError, MemoryFault)):
        run.check()
