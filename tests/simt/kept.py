"""Programs whose aggregates are kept, and one superstep of them through the emulator.

What the sources were differs from what they are at some vertices. Kept aggregates
account for what they were, but for stale ones, which hold nonsense.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph import reference
from featgraph.fold.analysis.changes import Changes
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from featgraph.fold.printing.module import KernelSource
from featgraph.program import functions as fn
from featgraph.program import operations as fg
from featgraph.program.program import Program
from tests.simt.case import Case, edge, floats, signed, vertex
from tests.simt.memory import padded
from tests.simt.programs import BY_NAME
from tests.simt.superstep import Superstep, words_of

# Every combine that is patched, a constant, and one that reads its target


@fn.gather(into="total", combine="sum")
def summed(f, u, v, e, d):
    return d.weight[e] * d.x[u, f]


@fn.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.n[u, f]


@fn.gather(into="high", combine="max")
def highest(f, u, v, e, d):
    return d.weight[e] * d.x[u, f] if d.x[u, f] > 0.25 else fg.nothing


@fn.gather(into="touched", combine="any")
def touched(f, u, v, e, d):
    return d.n[u, f] > 3


@fn.gather(into="product", combine="product")
def multiplied(f, u, v, e, d):
    return 0.5 + d.x[u, f]


@fn.gather(into="counted", combine="sum")
def counted(f, u, v, e, d):
    return d.n[u, f]


@fn.gather(into="weight_sum", combine="sum")
def weights(f, u, v, e, d):
    return d.weight[e]


@fn.gather(into="apart", combine="sum")
def apart(f, u, v, e, d):
    return d.x[u, f] - d.x[v, f]


@fn.vertex
def keep_all(f, v, d):
    d.totals[v, f] = d.total[v, f] + d.weight_sum[v]
    d.highs[v, f] = min(d.high[v, f], 9.0)
    d.products[v, f] = d.product[v, f]
    d.parts[v, f] = d.apart[v, f]
    d.marks[v, f] = d.touched[v, f]
    d.counts[v, f] = d.counted[v, f]
    d.n_next[v, f] = min(d.n[v, f], d.low[v, f])
    d.x_next[v, f] = d.x[v, f] * 0.5
    return d.low[v, f] < d.n[v, f]


def all_state(graph: Any, k: int, rng: Any) -> Any:
    count = graph.vertex_count
    zeros = np.zeros((count, k))
    return {
        "x": vertex(floats(rng, count, k), True),
        "n": vertex(signed(rng, count, k), True),
        "weight": edge(floats(rng, graph.given_edge_count)),
        **{name: vertex(zeros) for name in ("totals", "highs", "products", "parts")},
        "marks": vertex(np.zeros((count, k), np.bool_)),
        "counts": vertex(np.zeros((count, k), np.int64)),
    }


# A gather that makes shuffles


@fn.gather(into="pull", combine="sum")
def direction(f, u, v, e, d):
    return d.weight[e] * d.x[u, f] / (1 + fg.norm(d.x[u, f]))


@fn.vertex
def turn(f, v, d):
    d.x_next[v, f] = 0.5 * d.x[v, f] + 0.125 * d.pull[v, f]
    return d.x[v, f] > 0.5


def turn_state(graph: Any, k: int, rng: Any) -> Any:
    return {
        "x": vertex(floats(rng, graph.vertex_count, k), True),
        "weight": edge(floats(rng, graph.given_edge_count)),
    }


# Truth values alone: nothing else finds out that one of them retreats


@fn.vertex
def mark(f, v, d):
    d.marks[v, f] = d.touched[v, f]
    d.n_next[v, f] = d.n[v, f] + 1
    return d.touched[v, f]


def mark_state(graph: Any, k: int, rng: Any) -> Any:
    count = graph.vertex_count
    return {
        "n": vertex(signed(rng, count, k), True),
        "marks": vertex(np.zeros((count, k), np.bool_)),
    }


# One feature reads what is gathered for another: lanes hand it to each other


@fn.vertex
def mark_first(f, v, d):
    d.counts[v, f] = d.counted[v, f] - d.counted[v, 0]
    d.n_next[v, f] = d.n[v, f] + d.counted[v, 0]
    return d.counted[v, 0] > 3


def counts_state(graph: Any, k: int, rng: Any) -> Any:
    count = graph.vertex_count
    return {
        "n": vertex(signed(rng, count, k), True),
        "counts": vertex(np.zeros((count, k), np.int64)),
    }


# Gathered values of all features that are no real numbers: loops leave them in arrays


@fn.gather(into="below", combine="any")
def below(f, u, v, e, d):
    first = fg.broadcast(d.n[u, f], 0)
    return fg.nothing if d.n[u, f] == 2 else d.n[u, f] < first


@fn.gather(into="firsts", combine="sum")
def firsts(f, u, v, e, d):
    return d.n[u, f] + fg.broadcast(d.n[u, f], 0)


@fn.vertex
def mark_below(f, v, d):
    d.counts[v, f] = d.firsts[v, f] if d.below[v, f] else -1
    d.n_next[v, f] = d.n[v, f] + 1
    return d.below[v, f]


EVERY_COMBINE = (
    summed,
    lowest,
    highest,
    touched,
    multiplied,
    counted,
    weights,
    apart,
    keep_all,
)
KEPT_CASES = (
    BY_NAME["label_propagation"],
    Case("every_combine", EVERY_COMBINE, all_state),
    Case("turn", (direction, turn), turn_state),
    Case("mark", (touched, mark), mark_state),
    Case("entry", (counted, mark_first), counts_state),
    Case("below", (below, firsts, mark_below), counts_state),
)

KEPT_BY_NAME = {case.name: case for case in KEPT_CASES}


class KeptRun:
    """One superstep that patches: the interpreter's outcome, and the kernels to run."""

    def __init__(
        self, case: Case, k: int, graph: Any, *, hubs: bool = False, **options: Any
    ) -> None:
        rng = np.random.default_rng(k)
        self.graph = graph
        self.values, signature = case.values(graph, k, rng)
        program = case.program()
        traits = GraphTraits(
            options.pop("degree", 32),
            hubs,
            False,
            case.undirected,
            long_rows=options.pop("long_rows", False),
        )
        chosen = Options(target="cuda", incremental=Changes(), **options)
        self.plan = make_plan(program, signature, chosen, traits)
        self.kernels: KernelSource = emit(self.plan)
        self.signature = signature
        count = graph.vertex_count
        self.active = rng.random(count) < 0.3
        self.stale = rng.random(count) < 0.2
        # Values retreat or do not: the extremes are among the changed ones.
        before, _ = case.values(graph, k, np.random.default_rng(k + 1))
        self.seen = dict(self.values)
        for name in self.plan.incremental.reads:
            old = self.values[name].copy()
            old[self.active] = before[name][self.active]
            self.seen[name] = old
        self.expected = reference.superstep(
            program, graph, self.values, signature, active=self.active
        )

    def aggregates(self, into: str, values: Any) -> Any:
        """Return the result of a gather at every vertex."""
        functions = self.plan.analysis.functions
        declared = next(f.declared for f in functions if f.into == into)
        outcome = reference.superstep(
            Program.declare([declared]), self.graph, values, self.signature
        )
        return outcome.temporaries[into]

    def check(self, text: str | None = None) -> None:
        """Run the kernels; compare what they committed, left, and kept."""
        step = Superstep(self.kernels, self.graph, self.values, text=text)
        fields = [f for f in self.kernels.fields if f.source in {"incremental", "seen"}]
        for field in fields:
            if field.source == "seen":
                seen, strides = self.seen[field.of].copy(), step.plan.strides
                if field.of in strides:
                    seen = padded(seen, strides[field.of])
                step.arrays[field.name] = seen
                continue
            kept = self.aggregates(field.of, self.seen).astype(field.dtype)
            kept[self.stale] = 5  # a value like others, which must not show
            step.arrays[field.name] = kept
        step.buffers["changed_sources"] = words_of(self.active)
        step.buffers["stale"] = words_of(self.stale)
        result = step.run(self.active)
        np.testing.assert_array_equal(
            result.active_out, self.expected.active_out.mask, err_msg="active_out"
        )
        for name, value in result.values.items():
            self._compare(name, value, self.expected.values[name])
        sources, ends = step._ends()
        due = self.active.copy()
        due[ends[self.active[sources]]] = True
        for field in fields:
            if field.source == "incremental":
                now = self.aggregates(field.of, self.values)
                self._compare(field.name, step.arrays[field.name][due], now[due])

    @staticmethod
    def _compare(name: str, actual: Any, expected: Any) -> None:
        if actual.dtype.kind == "f":
            np.testing.assert_allclose(
                actual, expected, rtol=2e-4, atol=1e-5, err_msg=name
            )
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=name)
