"""How features and edges go to lanes: one superstep under each of several mappings.

The mapping that the folder chooses, others that are forced on it, and cuSPARSE's
product alone through PyTorch, on label propagation. Each is checked against float64 on
a sample of the vertices, then timed by events around supersteps launched back to back.
The most telling mappings come first; those beyond the budget are printed.

A name such as ``8x4 s32 u2 r12`` is 8 lanes of 4 features, 32 lanes a vertex, 2 edges a
lane on the way, 12 blocks a multiprocessor. ``p1`` loads features one by one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
from typing import Any

import numpy as np

import featgraph as fg
from bench.baselines.sparse_products import TorchProduct
from bench.graphs import NamedGraph, make_graph
from bench.programs import EPSILON, MARGIN, Problem, compared, proposed, step
from bench.record import Recorder
from bench.schedules.superstep_gpu import first_superstep, time_in_batches, time_product
from bench.timing import Budget
from featgraph.fold.schedules.mapping import WARP, power_of_two

DEFAULTS = {
    "graph": ["kron21", "grid2048", "rmat-21-16"],
    "k": [32, 4, 8, 128, 16, 64],
    "repeat": 5,
    "budget": 215.0,
    "workers": 14,
}
SAMPLE = 4000
BATCH_MS = 60.0
#: Shares of the budget that each graph may use up, in order.
SHARES = (0.6, 0.8, 1.0)
#: Mappings on graphs behind the first.
SECOND = 9


def mapping(k: int, piece: int, edges: int, copies: int = 0, **more: int) -> Any:
    """Return the fields of a mapping: lanes for K, `edges` of them within a warp."""
    lanes = min(WARP, power_of_two(-(-k // (copies or piece))))
    copies = max(copies or piece, piece * -(-k // (lanes * piece)))
    shared = min(WARP, lanes * power_of_two(edges))
    return {
        "lanes_per_edge": lanes,
        "features_per_lane": copies,
        "vector_width": piece,
        "lanes_per_vertex": shared,
        "unroll": 1,
        "resident": 0,
        **more,
    }


def name_of(fields: dict[str, int]) -> str:
    """Return a short name of a mapping."""
    parts = [
        f"{fields['lanes_per_edge']}x{fields['features_per_lane']}",
        f"s{fields['lanes_per_vertex']}",
    ]
    if (
        fields["vector_width"] < min(fields["features_per_lane"], 4)
        or fields["vector_width"] == 1
    ):
        parts.append(f"p{fields['vector_width']}")
    if fields["unroll"] > 1:
        parts.append(f"u{fields['unroll']}")
    if fields["resident"]:
        parts.append(f"r{fields['resident']}")
    return " ".join(parts)


def candidates(
    k: int, mean_degree: int, most: int | None = None
) -> dict[str, dict[str, int]]:
    """Return the mappings to try, the most telling first; {} is the chosen one."""
    many = WARP if mean_degree > 8 else max(2, mean_degree // 2)
    listed = [
        mapping(k, 4, many),
        mapping(k, 1, many),
        mapping(k, 4, many, unroll=2),
        mapping(k, 4, many, resident=12),
        mapping(k, 4, many, unroll=2, resident=12),
        mapping(k, 4, max(1, min(many, WARP * 4 // max(k, 4)) // 2), unroll=2),
        mapping(k, 4, max(1, min(many, WARP * 4 // max(k, 4)) // 4)),
        mapping(k, 4, many, unroll=4),
        mapping(k, 2, many, unroll=2),
        mapping(k, 1, many, unroll=4),
        mapping(k, 4, many, unroll=4, resident=10),
        mapping(k, 4, many, resident=16),
        mapping(k, 4, 1, unroll=2),
    ]
    if k >= 16:
        listed.insert(6, mapping(k, 4, many, copies=8))
    found: dict[str, dict[str, int]] = {"chosen": {}}
    for fields in listed:
        found.setdefault(name_of(fields), fields)
    return dict(list(found.items())[:most])


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time every mapping; record errors, and go on."""
    budget = Budget(arguments.budget)
    recorder.require_gpu()
    for place, name in enumerate(arguments.graph):
        named = make_graph(name)
        budget.print(f"{named.describe()}")
        most = None if place == 0 else SECOND
        _compile_ahead(named, most, arguments, budget)
        share = SHARES[min(place, len(SHARES) - 1)] if len(arguments.graph) > 1 else 1
        for k in arguments.k:
            if not budget.allows(f"{name}, k={k}", share):
                continue
            _time_all(named, k, most, arguments, recorder, budget)
            if recorder.lines and recorder.lines[-1].get("is_cuda_error"):
                print("a CUDA error ends this run: nothing after it would tell much")
                return


def _time_all(
    named: NamedGraph,
    k: int,
    most: int | None,
    arguments: argparse.Namespace,
    recorder: Recorder,
    budget: Budget,
) -> None:
    problem = Problem(named.graph, k)
    sample = Sample(problem)
    budget.print(f"{named.name}, k={k}: made, and a sample solved in float64")
    mean = named.graph.edge_count // named.graph.vertex_count
    listed = candidates(k, mean, most)
    contenders: dict[str, Any] = {"chosen": {}, "torch product": None, **listed}
    for contender, fields in contenders.items():
        if not budget.allows(contender):
            continue
        given = problem, sample, fields, arguments.repeat
        about = {"k": k, "graph": named.describe()}
        line = recorder.record(contender, _time_one, *given, **about)
        if recorder.lines[-1].get("is_cuda_error"):
            return
        ms, checked = line.get("median_ms"), line.get("checks", {}).get("ok")
        budget.print(f"{named.name} k={k} {contender}: {ms} ms, right: {checked}")


def _time_one(
    problem: Problem, sample: Sample, fields: dict[str, int] | None, repeat: int
) -> tuple[list[float], dict[str, Any]]:
    if fields is None:
        product, check = TorchProduct(problem, 32), sample.check_aggregate
        return time_product(problem, product, check, repeat, BATCH_MS)
    options: dict[str, Any] = {"direction": "pull"}
    if fields:
        options["_mapping"] = fields
    superstep, _, first_s = first_superstep(problem, options)
    checks = sample.check(problem.state["label"])
    problem.state["epsilon"] = -1.0  # all commit, however little they move
    superstep.run()
    trials, more = time_in_batches(superstep.run, repeat, BATCH_MS)
    return trials, {
        "work": "superstep", **more, "first_s": first_s, "checks": checks,
        "bytes": problem.compulsory_bytes(),
        "mapping": superstep.plan.phases[0].describe_mapping(),
    }  # fmt: skip


class Sample:
    """One superstep in float64 for some vertices, those of highest degree among them.

    Parameters
    ----------
    problem : Problem
    """

    def __init__(self, problem: Problem) -> None:
        count, degree = problem.graph.vertex_count, problem.graph.in_degree
        rng = np.random.default_rng(5)
        top = np.argpartition(degree, -20)[-20:] if count > 20 else np.arange(count)
        some = rng.choice(count, min(SAMPLE, count), replace=False)
        self.vertices = np.unique(np.concatenate([top, some]))
        rows = problem.matrix[self.vertices]
        sources = np.unique(rows.indices)
        rows, labels = rows[:, sources].astype(np.float64), problem.initial
        self.aggregate = rows @ labels[sources].astype(np.float64)
        self.own = labels[self.vertices].astype(np.float64)
        self.moved, change = proposed(self.aggregate, self.own)
        self.passes = (change > EPSILON)[:, None]
        self.either = (np.abs(change - EPSILON) <= MARGIN * EPSILON)[:, None]

    def check(self, labels: Any) -> dict[str, Any]:
        """Compare labels after one superstep.

        Vertices that move so far as the tolerance, nearly, may have moved or not.
        """
        actual = labels[self.vertices]
        is_nearer = np.abs(actual - self.own) >= np.abs(actual - self.moved)
        has_moved = np.where(self.either, is_nearer, self.passes)
        return self._compared(actual, np.where(has_moved, self.moved, self.own))

    def check_aggregate(self, aggregate: Any) -> dict[str, Any]:
        """Compare with the gather alone."""
        return self._compared(aggregate[self.vertices], self.aggregate)

    def _compared(self, actual: Any, expected: Any) -> dict[str, Any]:
        return {**compared(actual, expected), "vertices": len(self.vertices)}


# -- kernels compiled ahead, in processes of their own


def _compile_ahead(
    named: NamedGraph, most: int | None, arguments: argparse.Namespace, budget: Budget
) -> None:
    """Fill the disk cache with all kernels for a graph; failures are left for later."""
    from featgraph.fold.plan.traits import graph_traits

    if arguments.workers < 1:
        return
    traits = graph_traits(named.graph)
    mean = named.graph.edge_count // named.graph.vertex_count
    jobs = [
        (k, fields, traits)
        for k in arguments.k
        for fields in candidates(k, mean, most).values()
    ]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(arguments.workers, context) as pool:
        failed = [error for error in pool.map(_compile_one, jobs) if error]
    budget.print(f"{len(jobs)} kernels compiled, {len(failed)} failed: {failed[:1]}")


def _compile_one(job: tuple[int, dict[str, int], Any]) -> str:
    k, fields, traits = job
    try:
        compile_for(k, fields, traits)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def compile_for(k: int, fields: dict[str, int], traits: Any) -> None:
    """Compile the kernels of a mapping into Numba's disk cache."""
    from featgraph.fold.compiling.signatures import entry_signature
    from featgraph.fold.folder import fold
    from featgraph.fold.plan.options import parse_options

    tiny = fg.Graph.from_edges([0], [1], directed=not traits.undirected)
    given: dict[str, Any] = {"direction": "pull"}
    if fields:
        given["_mapping"] = fields
    options = parse_options("cuda", False, given)
    signature = Problem(tiny, k).state.signature
    kernel = fold(step.program, signature, options, traits)
    for entry in kernel.entries:
        types = entry_signature(kernel.kernel_source, entry, kernel.module)
        kernel.function(entry).compile(types)
