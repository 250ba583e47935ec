"""One fused superstep of label propagation against SciPy's product alone, on the CPU.

The gather, two normalisations, the update and the commit in one kernel, next to: the
sparse product alone, the whole superstep in SciPy + NumPy, and the kernel written by
hand. Trials are interleaved, each from the initial state, with 1 thread and with more.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import featgraph as fg
from bench.baselines.label_propagation_numba import edge_balanced_words, make_superstep
from bench.baselines.sparse_products import ScipyProduct, ScipySuperstep
from bench.programs import ALPHA, EPSILON, Problem, problems, step
from bench.record import Recorder
from bench.timing import Contender, interleave
from featgraph.runtime.devices.choose import choose_device

DEFAULTS = {"graph": ["rmat-1m"], "k": [8], "repeat": 15, "threads": "1,2"}


def _checks(problem: Problem, labels: Any, words: Any) -> dict[str, Any]:
    mask = fg.ActiveSet.from_words(problem.graph.vertex_count, words).mask
    return problem.check(labels, mask)


class Featgraph:
    """The folded superstep on the CPU target."""

    def __init__(self, problem: Problem, **options: Any) -> None:
        self.problem = problem
        self.superstep = step.prepare(problem.state, choose_device("cpu"), options)
        self.outcome: Any = None

    def __call__(self) -> None:
        """Run a superstep."""
        self.outcome = self.superstep.run()

    def check(self) -> dict[str, Any]:
        """Compare the values behind the first call with the float64 answer."""
        return _checks(self.problem, self.problem.state["label"], self.outcome)


class ByHand:
    """The hand-written kernel on the arrays that featgraph reads."""

    def __init__(self, problem: Problem, threads: int) -> None:
        self.problem = problem
        ins = problem.graph.in_edges
        self.kernel = make_superstep(problem.k)
        self.next = np.empty_like(problem.initial)
        self.passed = np.empty(-(-problem.graph.vertex_count // 32), np.uint32)
        self.arguments = (
            edge_balanced_words(ins.row_offsets, 16 * threads),
            ins.row_offsets,
            ins.column_indices,
            problem.weights,
            problem.state.stored("clamped"),
            problem.initial,
            self.next,
            self.passed,
            np.float32(ALPHA),
            np.float32(EPSILON),
        )

    def __call__(self) -> None:
        """Run a superstep."""
        self.kernel(*self.arguments)

    def check(self) -> dict[str, Any]:
        """Compare the values behind the first call with the float64 answer."""
        return _checks(self.problem, self.next, self.passed)


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Check every contender, then time them in turn."""
    import numba

    wanted = [int(t) for t in arguments.threads.split(",")]
    threads = [t for t in wanted if t <= numba.get_num_threads()]
    for problem, fields in problems(arguments):
        fused, by_hand = Featgraph(problem), ByHand(problem, max(threads))
        product, whole = ScipyProduct(problem), ScipySuperstep(problem)
        for call in (fused, by_hand, product, whole):
            call()
        checks = {
            "featgraph": fused.check(),
            "by hand (Numba)": by_hand.check(),
            "SciPy product alone": problem.check_aggregate(product.result()),
            "SciPy + NumPy": problem.check(whole.result(), whole.committed),
        }
        contenders = [
            Contender("SciPy product alone", product, threads=1),
            Contender("SciPy + NumPy", whole, threads=1),
        ]
        for count in threads:
            contenders.append(Contender("featgraph", fused, problem.reset, count))
            contenders.append(Contender("by hand (Numba)", by_hand, threads=count))
        interleave(contenders, arguments.repeat)
        fields["bytes"] = problem.compulsory_bytes()
        for one in contenders:
            own = {"threads": one.threads, "checks": checks[one.name]}
            recorder.add(one.name, one.trials, **own, **fields)
