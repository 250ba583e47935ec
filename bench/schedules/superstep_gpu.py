"""One fused superstep of label propagation on the GPU against sparse products alone.

featgraph under its options (FA and NFA, pull and push, folded and not) does the whole
superstep; cuSPARSE through PyTorch and CuPy do the product alone. Each contender is
checked against float64 on the host, then timed: by events around supersteps launched
back to back, with the host's time that is not hidden; the host's time to submit one;
and the wall time of a superstep within `fg.iterate`, which waits for each.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import featgraph as fg
from bench.baselines.sparse_products import CupyProduct, TorchProduct
from bench.graphs import NamedGraph, make_graph
from bench.programs import Problem, step
from bench.record import Recorder
from bench.timing import Budget, time_batches, time_events
from featgraph.runtime.devices.choose import choose_device

DEFAULTS = {
    "graph": ["kron21"], "k": [4, 8, 32], "repeat": 11, "budget": 330.0, "only": "",
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "FA pull folded": {"direction": "pull"},
    "FA pull unfolded": {"direction": "pull", "folding": False},
    "FA push": {"direction": "push"},
    "NFA pull": {"direction": "pull", "feature_parallel": False},
    "NFA push": {"direction": "push", "feature_parallel": False},
}
PEERS: dict[str, Callable[[Problem], Any]] = {
    "torch product, int32": lambda problem: TorchProduct(problem, 32),
    "torch product, int64": lambda problem: TorchProduct(problem, 64),
    "CuPy product": CupyProduct,
}
SUPERSTEPS = 20
#: A batch of launches between two events takes at most about so long.
BATCH_MS = 300.0


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Check and time every contender; record errors, and go on."""
    budget = Budget(arguments.budget)
    recorder.require_gpu()
    recorder.attempt("device copy", _copy, recorder)
    for name in arguments.graph:
        named = make_graph(name)
        print(named.describe(), flush=True)
        for k in arguments.k:
            problem = Problem(named.graph, k)
            _ = problem.expected
            budget.print(f"k={k}: made and solved in float64 on the host")
            timers: dict[str, Callable[..., None]] = dict.fromkeys(PEERS, _time_peer)
            timers |= dict.fromkeys(VARIANTS, _time_featgraph)
            for contender, timer in timers.items():
                if arguments.only not in contender:
                    continue
                if not budget.allows(f"{name}, k={k}, {contender}"):
                    continue
                given = problem, named, contender, arguments.repeat, recorder
                about = {"k": k, "graph": named.describe()}
                recorder.attempt(contender, timer, *given, **about)
                if recorder.lines[-1].get("is_cuda_error"):
                    # A context that faulted gives no figures.
                    print("a CUDA error ends this run")
                    return
                _free_memory()
                budget.print(f"done with {contender}")


def _time_featgraph(
    problem: Problem, named: NamedGraph, contender: str, repeat: int, recorder: Recorder
) -> None:
    options = VARIANTS[contender]
    device = choose_device("cuda")
    superstep = step.prepare(problem.state, device, options)
    problem.reset()
    started = time.perf_counter()
    outcome = superstep.run()
    device.synchronize()
    first_s = time.perf_counter() - started
    words = np.array(device.download(outcome))
    committed = fg.ActiveSet.from_words(problem.graph.vertex_count, words).mask
    checks = problem.check(problem.state["label"], committed)

    def once() -> None:
        superstep.run()

    device_ms, host_ms, launches = time_batches(
        once, repeat, BATCH_MS, least=3, reset=problem.reset_dense
    )
    recorder.add(
        contender,
        device_ms,
        k=problem.k,
        work="superstep",
        options=options,
        launches=launches,
        host_ms=round(statistics.median(host_ms), 5),
        first_s=round(first_s, 3),
        **_time_iterate(problem, options),
        phases=len(superstep.plan.phases),
        mappings=[p.describe_mapping() for p in superstep.plan.phases],
        bytes=problem.compulsory_bytes(),
        gathered_bytes=problem.gathered_bytes(),
        checks=checks,
        graph=named.describe(),
    )


def _time_iterate(problem: Problem, options: dict[str, Any]) -> dict[str, Any]:
    """Return a superstep's wall time within `fg.iterate`; whole: with the uploads."""
    problem.reset_dense()
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        run = fg.iterate(
            step, problem.state, max_supersteps=SUPERSTEPS, target="cuda", **options
        )
    whole = time.perf_counter() - started
    return {
        "iterate_ms": round(1e3 * statistics.median(run.seconds[1:]), 5),
        "iterate_whole_ms": round(1e3 * whole / run.supersteps, 5),
    }


def _time_peer(
    problem: Problem, named: NamedGraph, contender: str, repeat: int, recorder: Recorder
) -> None:
    product = PEERS[contender](problem)
    product()
    checks = problem.check_aggregate(product.result())
    device_ms, host_ms, launches = time_batches(product, repeat, BATCH_MS, least=3)
    recorder.add(
        contender,
        device_ms,
        k=problem.k,
        work="product alone",
        launches=launches,
        host_ms=round(statistics.median(host_ms), 5),
        bytes=problem.compulsory_bytes(aggregate_only=True),
        checks=checks,
        graph=named.describe(),
    )


def _copy(recorder: Recorder) -> None:
    """Time a copy from device memory to device memory: the ceiling for bandwidth."""
    from featgraph.cuda.dialect import cuda

    size = 1 << 31
    source = cuda.to_device(np.ones(size // 4, np.float32))
    target = cuda.device_array(size // 4, np.float32)
    target.copy_to_device(source)
    taken = [
        time_events(lambda: target.copy_to_device(source), 5)[0] for _ in range(11)
    ]
    recorder.add("device copy", taken, work="copy", bytes=2 * size)


def _free_memory() -> None:
    """Give back the pools of PyTorch and CuPy."""
    import gc
    import sys

    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
