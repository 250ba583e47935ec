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
import statistics
import time
from typing import Any

import numpy as np
import scipy.sparse

import featgraph as fg
from bench.baselines.sparse_products import TorchProduct
from bench.graphs import NamedGraph, make_graph
from bench.programs import ALPHA, EPSILON, Problem, normalized, step
from bench.record import Recorder
from bench.timing import Budget, time_batches
from featgraph.fold.schedules.mapping import WARP, power_of_two
from featgraph.runtime.devices.choose import choose_device

DEFAULTS = {
    "graph": ["kron21", "grid2048", "rmat-21-16"],
    "k": [32, 4, 8, 128, 16, 64],
    "repeat": 5,
    "budget": 215.0,
    "workers": 14,
}
SAMPLE = 4000
LIMIT = 1e-5
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
    contenders: dict[str, Any] = candidates(k, mean, most)
    contenders["torch product"] = None
    order = ["chosen", "torch product"]
    order += [contender for contender in contenders if contender not in order]
    for contender in order:
        if not budget.allows(contender):
            continue
        given = problem, sample, named, contender, contenders[contender]
        about = {"k": k, "graph": named.describe()}
        recorder.attempt(
            contender, _time_one, *given, arguments.repeat, recorder, **about
        )
        line = recorder.lines[-1]
        if line.get("is_cuda_error"):
            return
        ms = line.get("median_ms")
        checked = line.get("checks", {}).get("ok")
        budget.print(f"{named.name} k={k} {contender}: {ms} ms, right: {checked}")


def _time_one(
    problem: Problem,
    sample: Sample,
    named: NamedGraph,
    contender: str,
    fields: dict[str, int] | None,
    repeat: int,
    recorder: Recorder,
) -> None:
    more: dict[str, Any] = {}
    if fields is None:
        product = TorchProduct(problem, 32)
        product()
        checks = sample.check_aggregate(np.asarray(product.result()))
        call: Any = product
    else:
        device = choose_device("cuda")
        options: dict[str, Any] = {"direction": "pull"}
        if fields:
            options["_mapping"] = fields
        problem.reset()
        superstep = step.prepare(problem.state, device, options)
        started = time.perf_counter()
        superstep.run()
        device.synchronize()
        more["first_s"] = round(time.perf_counter() - started, 3)
        checks = sample.check(problem.state["label"])
        phase = superstep.plan.phases[0]
        more["mapping"] = phase.describe_mapping()
        problem.state["epsilon"] = -1.0  # all commit, however little they move
        superstep.run()

        def call() -> None:
            superstep.run()

    device_ms, host_ms, launches = time_batches(call, repeat, BATCH_MS, least=3)
    recorder.add(
        contender,
        device_ms,
        k=problem.k,
        work="product alone" if fields is None else "superstep",
        launches=launches,
        host_ms=round(statistics.median(host_ms), 5),
        bytes=problem.compulsory_bytes(aggregate_only=fields is None),
        checks=checks,
        graph=named.describe(),
        **more,
    )


class Sample:
    """One superstep in float64 for some vertices, those of highest degree among them.

    Parameters
    ----------
    problem : Problem
    """

    def __init__(self, problem: Problem) -> None:
        ins, count = problem.graph.in_edges, problem.graph.vertex_count
        degree = problem.graph.in_degree
        rng = np.random.default_rng(5)
        top = np.argpartition(degree, -20)[-20:] if count > 20 else np.arange(count)
        some = rng.choice(count, min(SAMPLE, count), replace=False)
        self.vertices = np.unique(np.concatenate([top, some]))
        offsets = ins.row_offsets.astype(np.int64)
        first, length = offsets[self.vertices], degree[self.vertices].astype(np.int64)
        ends = np.cumsum(length)
        slots = np.arange(ends[-1]) + np.repeat(first - (ends - length), length)
        sources, inverse = np.unique(ins.column_indices[slots], return_inverse=True)
        matrix = scipy.sparse.csr_array(
            (
                problem.weights[slots].astype(np.float64),
                inverse,
                np.concatenate([[0], ends]),
            ),
            shape=(len(self.vertices), len(sources)),
        )
        self.aggregate = matrix @ problem.initial[sources].astype(np.float64)
        own = problem.initial[self.vertices].astype(np.float64)
        moved = ALPHA * normalized(self.aggregate) + (1 - ALPHA) * own
        moved = normalized(moved)
        change = np.abs(moved - own).max(axis=1, keepdims=True)
        self.either = np.abs(change - EPSILON) <= 1e-2 * EPSILON
        self.moved, self.own = moved, own
        self.expected = np.where(change > EPSILON, moved, own)

    def check(self, labels: Any) -> dict[str, Any]:
        """Compare labels after one superstep.

        Vertices that move so far as the tolerance, nearly, may have moved or not.
        """
        actual = labels[self.vertices]
        stayed = np.abs(actual - self.own) < np.abs(actual - self.moved)
        either = np.where(stayed, self.own, self.moved)
        return _compare(actual, np.where(self.either, either, self.expected))

    def check_aggregate(self, aggregate: Any) -> dict[str, Any]:
        """Compare with the gather alone."""
        return _compare(aggregate[self.vertices], self.aggregate)


def _compare(actual: Any, expected: Any) -> dict[str, Any]:
    error = float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
    return {"ok": bool(error <= LIMIT), "error": error, "vertices": len(expected)}


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
