"""Change-driven runs: no superstep of them differs from what it means (S8, S9).

Every superstep that patches is held against the interpreter, which evaluates the same
functions from the same state, and every kept aggregate against what it accounts for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import reference
from tests.bank import BANK, BY_NAME, BankProgram
from tests.reference.kept import PATCHED, Watch
from tests.reference.test_agreement import PHASES, check_agreement
from tests.strategies import graphs, seeds

SUPERSTEPS = 5


def _widths(program: BankProgram) -> list[int]:
    """Return one width of named copies, and one of loops where there is any."""
    wide = [k for k in program.widths if k > 16][:1]
    small = max((k for k in program.widths if k <= 4), default=min(program.widths))
    return [small, *(k for k in wide if k != small)]


SINGLE = [
    pytest.param(program, k, id=f"{program.name}-{k}")
    for program in BANK
    if len(program.foldmaps) == 1
    for k in (
        _widths(program)
        if program.name in {"label_propagation", "two_gathers"}
        else _widths(program)[:1]
    )
]


@pytest.mark.drawn(32)
@pytest.mark.parametrize(("program", "k"), SINGLE)
def test_every_superstep(
    program: BankProgram, k: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tolerant = replace(program, slack=program.slack * PATCHED)
    undirected = False if program.undirected else None

    @settings(max_examples=5, phases=PHASES)
    @given(graphs(directed=undirected, max_edges=60), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        state = fg.State(graph, **program.make_state(graph, k, rng))
        foldmap, watch = program.foldmaps[0], Watch(monkeypatch)
        _, _, signature = reference.from_state(state)
        watch.iterate(
            foldmap,
            state,
            target=target,
            change_driven=True,
            max_supersteps=SUPERSTEPS,
        )
        active = None
        for number, seen in enumerate(watch.seen):
            if number and seen.work == "recomputed" and not len(active):
                break  # a proof: by the rules, no vertex is due
            outcome = reference.superstep(
                foldmap.program,
                graph,
                seen.before,
                signature,
                active=active,
                superstep=number,
            )
            signature = outcome.signature
            check_agreement(
                tolerant, k, seen.before, outcome, seen.after, seen.committed
            )
            active = seen.committed

    agrees()


#: Which gathers of the bank are kept, and why the others are not.
KEPT = {
    "label_propagation": {"aggr": None},
    "pagerank": {"inflow": None},
    "two_gathers": {"out": None, "top": "reads x of the vertex that gathers"},
    "extremes_int32": {
        "low": None,
        "high": None,
        "first": "argmin",
        "last": "argmax",
    },
    "reachability": {"touched": None},
    "integer_sum": {"total": None},
    "weighted_sum": {"total": "constant"},
    "attention": {"pull": "reads x of the vertex that gathers"},
    "belief_propagation": {
        "total": "runs behind message, which may leave vertices out"
    },
    "least_squares": {"b": None, "A": "matrix: would take 64 bytes a vertex"},
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name: str) -> None:
    program = BY_NAME[name]
    graph = fg.Graph.from_edges([0, 1], [1, 2], directed=not program.undirected)
    values = program.make_state(graph, 4, np.random.default_rng(0))
    kernel = program.foldmaps[0].fold(fg.State(graph, **values), target="cpu")
    incremental = kernel.plan.incremental
    found = {
        into: "constant" if gather.is_constant else None
        for into, gather in incremental.gathers.items()
    }
    assert found | incremental.recomputed == KEPT[name]
    assert kernel.plan.phases[0].incremental == ()


#: Iterable programs that cannot be evaluated everywhere in every superstep.
REFUSED = {"offers": "in offer: offer makes d.offered_next of what d.offered was"}


@pytest.mark.drawn(14)
@pytest.mark.parametrize("change_driven", [True, "auto", False])
@pytest.mark.parametrize("program", [p for p in BANK if p.iterable], ids=repr)
def test_run_to_the_end(
    program: BankProgram,
    change_driven: Any,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exact programs reach the same end; the others one where nothing would change."""
    from tests.reference.test_agreement import _check_certificate

    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_CONTRIBUTIONS", 0)
    monkeypatch.setattr("featgraph.runtime.loops.foldmap_run.FEWEST_A_VERTEX", 0)
    k = 2 if 2 in program.widths else program.widths[0]

    @settings(max_examples=4, phases=PHASES)
    @given(graphs(max_edges=60), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        state = fg.State(graph, **program.make_state(graph, k, rng))
        steps = list(program.foldmaps)
        expected = reference.iterate(
            [foldmap.program for foldmap in steps], *reference.from_state(state)
        )
        watch = Watch(monkeypatch)
        if change_driven is False and program.name in REFUSED:
            with pytest.raises(fg.PlanError, match=REFUSED[program.name]):
                watch.iterate(steps, state, target=target, change_driven=False)
            return
        run = watch.iterate(steps, state, target=target, change_driven=change_driven)
        assert run.converged
        if program.exact:
            for name, value in expected.values.items():
                np.testing.assert_array_equal(state[name], value, err_msg=name)
        _check_certificate(program, k, state)

    agrees()


# Contributions of every kind, changing at will: a script says what x is
# and which vertices move


@fg.gather(into="total", combine="sum")
def add(f, u, v, e, d):
    return d.w[e] * d.x[u, f]


@fg.gather(into="product", combine="product")
def multiply(f, u, v, e, d):
    return d.x[u, f]


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.x[u, f] if d.w[e] > 1 else fg.nothing


@fg.gather(into="high", combine="max")
def highest(f, u, v, e, d):
    return d.w[e] * d.x[u, f]


@fg.gather(into="marked", combine="any")
def positive(f, u, v, e, d):
    return d.x[u, f] > d.limit


@fg.gather(into="above", combine="sum")
def count_positive(f, u, v, e, d):
    return 1 if d.x[u, f] > d.limit else 0


@fg.gather(into="weight", combine="sum")
def weigh(f, u, v, e, d):
    return d.w[e]


@fg.vertex
def keep_sums(f, v, d):
    d.totals[v, f] = d.total[v, f]
    d.counts[v, f] = d.above[v, f]
    d.weights[v] = d.weight[v]
    return True


@fg.vertex
def keep_product(f, v, d):
    d.products[v, f] = d.product[v, f]
    return True


@fg.vertex
def keep_low(f, v, d):
    d.lows[v, f] = d.low[v, f]
    return True


@fg.vertex
def keep_high(f, v, d):
    d.highs[v, f] = d.high[v, f]
    return True


@fg.vertex
def keep_mark(f, v, d):
    d.marks[v, f] = d.marked[v, f]
    return True


@fg.vertex
def follow_script(f, v, d):
    d.x_next[v, f] = d.script[v, d.superstep % 3, f]
    return d.moves[v, d.superstep % 3]


#: Each alone: an inexact patch of one gather has all of a kernel's taken anew.
ALONE = {
    "sum": fg.foldmap(add, count_positive, weigh, keep_sums, follow_script),
    "product": fg.foldmap(multiply, keep_product, follow_script),
    "min": fg.foldmap(lowest, keep_low, follow_script),
    "max": fg.foldmap(highest, keep_high, follow_script),
    "any": fg.foldmap(positive, keep_mark, follow_script),
}
scripted = fg.foldmap(
    add,
    lowest,
    positive,
    count_positive,
    weigh,
    keep_sums,
    keep_low,
    keep_mark,
    follow_script,
)
TAME = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0)
WILD = (*TAME, 1e30, -1e30, 1e-30, np.inf, -np.inf, np.nan)


def script_state(graph: fg.Graph, rng: Any, values: Any, share: float) -> fg.State:
    count, k = graph.vertex_count, 3
    made = rng.choice(np.array(values, np.float32), (count, k, k))
    zeros = np.zeros((count, k), np.float32)
    return fg.State(
        graph,
        x=fg.vertex_property(made[:, 0], iterated=True),
        script=fg.vertex_property(made),
        moves=fg.vertex_property(rng.random((count, k)) < share),
        w=fg.edge_property(
            rng.integers(1, 4, graph.given_edge_count).astype(np.float32)
        ),
        limit=0.75,
        **{
            n: fg.vertex_property(zeros)
            for n in ("totals", "products", "lows", "highs")
        },
        marks=fg.vertex_property(np.zeros((count, k), np.bool_)),
        counts=fg.vertex_property(np.zeros((count, k), np.int64)),
        weights=fg.vertex_property(np.zeros(count, np.float32)),
    )


def check_script(
    watch: Watch, foldmap: Any, state: fg.State, made_due: Any = lambda number: False
) -> None:
    """Hold every superstep against the interpreter; floats to their magnitudes."""
    graph, _, signature = reference.from_state(state)
    active = None
    for number, seen in enumerate(watch.seen):
        if seen.work == "recomputed":
            break  # a proof: by the rules, no vertex is due
        outcome = reference.superstep(
            foldmap.program,
            graph,
            seen.before,
            signature,
            active=None if made_due(number) else active,
            superstep=number,
        )
        assert seen.committed == outcome.active_out, number
        for name in ("lows", "highs", "marks", "counts", "weights", "x"):
            np.testing.assert_array_equal(
                seen.after[name], outcome.values[name], err_msg=f"{name}, {number}"
            )
        eps = 8 * PATCHED * np.finfo(np.float32).eps
        degree = outcome.degree[:, None] + 1
        with np.errstate(all="ignore"):
            allowed = {
                "totals": eps * degree * outcome.magnitude.get("total", 0.0),
                "products": eps * degree * np.abs(outcome.values["products"]),
            }
            for name, bound in allowed.items():
                most = np.where(np.isfinite(bound), bound, 0.0)
                actual, expected = seen.after[name], outcome.values[name]
                good = (np.abs(actual - expected) <= most) | (actual == expected)
                good |= np.isnan(actual) & np.isnan(expected)
                # A float32 product of wild factors overflows in one order and not in
                # another; a sum of infinities is the same in every order.
                good |= (name == "products") & ~(np.abs(expected) < 1e30)
                good |= (name == "products") & (np.abs(expected) < 1e-30)
                assert good.all(), (name, number, np.argwhere(~good)[0])
        active = seen.committed


@pytest.mark.drawn(10)
@pytest.mark.parametrize("values", [TAME, WILD], ids=["tame", "wild"])
@pytest.mark.parametrize("combine", ALONE)
def test_contributions_that_change_at_will(
    combine: str, values: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extrema retreat, sums cancel, products meet zero, infinities come and go."""

    foldmap = ALONE[combine]

    @settings(max_examples=15, phases=PHASES)
    @given(graphs(max_edges=60), seeds, st.sampled_from([0.1, 0.4, 0.9]))
    def agrees(graph: fg.Graph, seed: int, share: float) -> None:
        state = script_state(graph, np.random.default_rng(seed), values, share)
        watch = Watch(monkeypatch)
        run = watch.iterate(
            foldmap, state, target=target, change_driven=True, max_supersteps=6
        )
        assert run.aggregates[0] == "kept"
        # "kept" again where every vertex has changed.
        assert set(run.aggregates[1:]) <= {"kept", "patched", "recomputed"}
        check_script(watch, foldmap, state)

    agrees()


@pytest.mark.drawn(3)
@pytest.mark.parametrize("what", ["scalar", "property", "superstep"])
def test_writes_from_outside(
    what: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind them it is not known what has changed: nothing that is kept holds."""
    rng = np.random.default_rng(3)
    graph = fg.Graph.from_edges(*rng.integers(0, 40, (2, 120)), vertex_count=40)
    state = script_state(graph, rng, TAME, 0.3)

    def meddle(run: fg.Run, state: fg.State) -> None:
        if run.supersteps != 3:
            return
        if what == "scalar":
            state["limit"] = 1.5
        elif what == "property":
            state["x"] = state["x"][::-1].copy()
        else:  # every vertex commits, and no active set of the run says so
            scripted(state, active_in=None, target=target)

    watch = Watch(monkeypatch, meddle)
    run = watch.iterate(
        scripted, state, target=target, change_driven=True, max_supersteps=6
    )
    assert run.aggregates == ["kept", "patched", "patched", "kept", *["patched"] * 2]
    if what != "superstep":  # d.superstep is one ahead there
        check_script(watch, scripted, state, lambda number: number == 3)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("split", ["restrictions", "foldmaps"])
def test_lists_of_foldmaps(
    split: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has kept data and an active set of its own; all agree with recomputing."""

    @settings(max_examples=10, phases=PHASES)
    @given(graphs(max_edges=80), seeds)
    def agrees(graph: fg.Graph, seed: int) -> None:
        even = np.arange(graph.vertex_count) % 2 == 0
        steps = (
            [scripted.on(even), scripted.on(~even)]
            if split == "restrictions"
            else [scripted, changing_only, scripted.on(even)]
        )
        ends = []
        for change_driven in (True, "auto"):
            state = script_state(graph, np.random.default_rng(seed), TAME, 0.4)
            watch = Watch(monkeypatch)
            watch.iterate(
                steps,
                state,
                target=target,
                change_driven=change_driven,
                max_supersteps=12,
                until=lambda state: False,
            )
            until = [seen.work for seen in watch.seen]
            cut = (
                until.index("recomputed")
                if change_driven is True and ("recomputed" in until)
                else len(until)
            )
            ends.append((watch.seen, cut))
        (patched, cut), (plain, _) = ends
        for number, (a, b) in enumerate(zip(patched[:cut], plain, strict=False)):
            assert a.committed == b.committed, number
            for name in ("x", "lows", "highs", "marks", "counts", "weights"):
                np.testing.assert_array_equal(a.after[name], b.after[name], name)
            np.testing.assert_allclose(
                a.after["totals"], b.after["totals"], rtol=1e-4, atol=1e-4
            )

    agrees()


@fg.vertex
def jump(f, v, d):
    d.x_next[v, f] = d.x[v, f] + d.script[v, f, d.superstep % 3]
    return d.moves[v, (d.superstep + 1) % 3]


changing_only = fg.foldmap(jump)
