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
from bench.programs import Problem, problems, step
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
    for problem, about in problems(arguments):
        place = f"{about['graph']['name']}, k={problem.k}"
        _ = problem.expected
        budget.print(f"{place}: made and solved in float64 on the host")
        for contender in (*PEERS, *VARIANTS):
            if arguments.only not in contender:
                continue
            if not budget.allows(f"{place}, {contender}"):
                continue
            time_one = _time_peer if contender in PEERS else _time_featgraph
            given = problem, contender, arguments.repeat
            recorder.record(contender, time_one, *given, **about)
            if recorder.lines[-1].get("is_cuda_error"):
                # A context that faulted gives no figures.
                print("a CUDA error ends this run")
                return
            _free_memory()
            budget.print(f"done with {contender}")


def first_superstep(
    problem: Problem, options: dict[str, Any]
) -> tuple[Any, Any, float]:
    """Return a superstep, the committed vertices of its first run, and s of that."""
    device = choose_device("cuda")
    superstep = step.prepare(problem.state, device, options)
    problem.reset()
    started = time.perf_counter()
    outcome = superstep.run()
    device.synchronize()
    first_s = round(time.perf_counter() - started, 3)
    words = np.array(device.download(outcome))
    mask = fg.ActiveSet.from_words(problem.graph.vertex_count, words).mask
    return superstep, mask, first_s


def time_in_batches(
    call: Callable[[], Any], repeat: int, batch_ms: float, **how: Any
) -> tuple[list[float], dict[str, Any]]:
    """Return device ms of a call, and the fields of its batches."""
    trials, host_ms, launches = time_batches(call, repeat, batch_ms, least=3, **how)
    host = round(statistics.median(host_ms), 5)
    return trials, {"launches": launches, "host_ms": host}


def _time_featgraph(
    problem: Problem, contender: str, repeat: int
) -> tuple[list[float], dict[str, Any]]:
    options = VARIANTS[contender]
    superstep, committed, first_s = first_superstep(problem, options)
    checks = problem.check(problem.state["label"], committed)
    reset = problem.reset_dense
    trials, fields = time_in_batches(superstep.run, repeat, BATCH_MS, reset=reset)
    return trials, {
        "work": "superstep", "options": options, **fields, "first_s": first_s,
        **_time_iterate(problem, options), "phases": len(superstep.plan.phases),
        "mappings": [p.describe_mapping() for p in superstep.plan.phases],
        "bytes": problem.compulsory_bytes(),
        "gathered_bytes": problem.gathered_bytes(), "checks": checks,
    }  # fmt: skip


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
    problem: Problem, contender: str, repeat: int
) -> tuple[list[float], dict[str, Any]]:
    product = PEERS[contender](problem)
    return time_product(problem, product, problem.check_aggregate, repeat, BATCH_MS)


def time_product(
    problem: Problem, product: Any, check: Callable[[Any], Any], repeat: int,
    batch_ms: float,
) -> tuple[list[float], dict[str, Any]]:  # fmt: skip
    """Return device ms of a product, and the fields of its line."""
    product()
    fields = {"work": "product alone", "checks": check(product.result())}
    fields["bytes"] = problem.compulsory_bytes(aggregate_only=True)
    trials, more = time_in_batches(product, repeat, batch_ms)
    return trials, fields | more


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
