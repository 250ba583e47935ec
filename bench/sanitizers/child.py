"""A process that runs cases on the GPU, under one of the tools or under none.

Started by `bench.sanitizers.session`. Reads a task from the file that its argument
names and prints a JSON line for each case: its launches, or the reason why it did not
run. Answers of programs are not compared: tests with the marker `gpu` do that.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.sanitizers.planted import Fault, kernel_name, plant

#: Small enough that small graphs have hubs and long rows.
HUB_DEGREE, LONG_ROW = 24, 6
#: 65 vertices: no multiple of those of a block, and a word with one bit.
VERTICES, SUPERSTEPS = 65, 3


def use_small_bounds(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have small graphs treated as large ones are, and both directions run.

    Modules import a bound by name, and each has it for itself. `put` replaces an
    attribute, as `setattr` does.
    """
    from featgraph.base.config import config
    from featgraph.fold.plan import traits
    from featgraph.fold.schedules import thread
    from featgraph.runtime.superstep import directions

    importlib.import_module("featgraph.runtime.devices.cuda_device")
    put(config, "compile_behind", False)
    put(thread, "FEW_EDGES", 0)
    put(directions, "FEWEST_TO_SKIP", 0)
    own = [m for name, m in sys.modules.items() if name.startswith("featgraph.")]
    for bound, small in (("HUB_DEGREE", HUB_DEGREE), ("LONG_ROW", LONG_ROW)):
        large = getattr(traits, bound)
        for module in own:  # one of them has another `LONG_ROW`
            if vars(module).get(bound) == large:
                put(module, bound, small)


class Launched:
    """Counts launches."""

    def __init__(self) -> None:
        from featgraph.cuda.launch import Launches

        self.kernels: Counter[str] = Counter()
        self.shares: set[str] = set()
        launch = Launches.__call__

        def counted(own: Any, kernel: Any, *arguments: Any, **options: Any) -> None:
            function = kernel.py_func
            name = kernel_name(function.__module__, function.__name__)
            self.kernels[name] += 1
            if "shared.array" in inspect.getsource(function):
                self.shares.add(name)
            launch(own, kernel, *arguments, **options)

        Launches.__call__ = counted  # type: ignore[method-assign]

    def take(self) -> tuple[dict[str, int], bool]:
        """Return launches since the last time, and whether any had shared memory."""
        found = dict(self.kernels), bool(self.shares)
        self.kernels, self.shares = Counter(), set()
        return found


def make_graph(case: dict[str, Any], directed: bool) -> Any:
    """Return a graph whose grids have a place more than it has vertices."""
    import featgraph as fg

    rng = np.random.default_rng(case["seed"])
    count = VERTICES
    ends = rng.integers(0, count - 2, (2, count * case["degree"] // (2 - directed)))
    if case["graph"] == "hubs":
        ends[0, :40], ends[1, 40:80] = 7, 11
    duplicates = "first" if case["kind"] == "triangles" else "keep"
    return fg.Graph.from_edges(
        *ends, vertex_count=count, directed=directed, duplicates=duplicates
    )


def run_case(case: dict[str, Any]) -> None:
    """Run a few supersteps of a case."""
    import featgraph as fg
    from featgraph.runtime.devices import cuda_device

    if case["kind"] in ("loops", "batches"):
        run_loops() if case["kind"] == "loops" else run_batches(case)
        return
    rng = np.random.default_rng(case["seed"])
    options = dict(case["options"])
    if case["kind"] == "triangles":
        steps, state = _triangles(case, rng)
    else:
        program = _program(case)
        directed = not getattr(program, "undirected", case["seed"] % 3 == 0)
        graph = make_graph(case, directed)
        state = fg.State(graph, **program.make_state(graph, case["k"], rng))
        steps = list(program.foldmaps)
    if case["on"]:
        steps = [step.on(rng.random(VERTICES) < 0.5) for step in steps]
    if case["near_far"]:
        options["near_far"] = fg.NearFar(case["near_far"])
    bounds = cuda_device._PACKED_ALONE, cuda_device._PACKED_SHARED
    if case["packed"]:
        cuda_device._PACKED_ALONE = cuda_device._PACKED_SHARED = 0
    active = None if case["variant"] == "swept" else rng.random(VERTICES) < 0.4
    was, fg.config.checked = fg.config.checked, case["checked"]
    try:
        fg.iterate(
            steps,
            state,
            active=active,
            max_supersteps=SUPERSTEPS * len(steps),
            target="cuda",
            **options,
        )
    finally:
        cuda_device._PACKED_ALONE, cuda_device._PACKED_SHARED = bounds
        fg.config.checked = was


def _program(case: dict[str, Any]) -> Any:
    if case["kind"] == "monotone":
        from tests.programs.monotone import BY_NAME
    else:
        from tests.bank import BY_NAME
    return BY_NAME[case["program"]]


def _triangles(case: dict[str, Any], rng: Any) -> Any:
    import featgraph as fg
    from tests.programs import triangles

    graph = make_graph(case | {"degree": 12}, False)
    state = fg.State(graph, **triangles.make_state(graph, rng))
    return [triangles.PROGRAMS[case["program"]]], state


def run_loops() -> None:
    """Run every kernel that the runtime launches between generated ones."""
    import featgraph as fg
    from featgraph.program.active import ActiveSet
    from featgraph.runtime.devices.cuda_device import cuda_device
    from featgraph.runtime.memory.graph_arrays import graph_arrays

    device, rng = cuda_device(), np.random.default_rng(3)
    count = 300
    sources, targets = rng.integers(0, count, (2, 1500))
    sources[:60], targets[60:120] = 3, 11
    graph = fg.Graph.from_edges(sources, targets, vertex_count=count)
    arrays, even = graph_arrays(graph, device), _without_hubs(count, 1500)
    for share in (0.02, 0.6):
        masks = rng.random((3, count)) < share
        a, b, c = (device.upload(ActiveSet(count, mask).words) for mask in masks)
        for name in ("union", "intersection", "without"):
            getattr(device.sets, name)(a, b)
        device.sets.settle(a, b, c)
        device.sets.leave_out(a, b, c)
        device.sets.count(a)
        device.sets.edges_of(a, arrays, "out")
        for along in ("in", "out", "both"):
            for active in (None, int(masks[0].sum())):
                device.sets.expand(a, arrays, active, along)
        rows = device.upload(rng.random((count, 3)))
        device.keys.near(a, rows, 3, 1.0, 0.5)
        device.keys.first(a, rows, 3, 1.0)
        others = device.upload(rng.random((count, 3)))
        device.sets.refresh_vertices(a, rows, others)
        device.sets.refresh_vertices(a, rows, others, b)
        edges = [device.upload(rng.random((1500, 3))) for _ in range(2)]
        device.sets.refresh_edges(a, *edges, arrays)
        device.sets.refresh_edges(a, *edges, graph_arrays(even, device))
        state = device.upload(rng.integers(0, 3, 1500).astype(np.uint8))
        device.sets.targets(state, arrays)
    many = device.upload(np.ones(5000, np.uint32))  # more than one block counts
    device.sets.count(many)
    device.fill(device.empty((33,), "float64"), 0.5)


def run_batches(case: dict[str, Any]) -> None:
    """Apply batches to graphs on both targets, and compare these; count triangles."""
    from bench.sanitizers.cases import BATCHES
    from featgraph.cuda import arrays
    from featgraph.dynamic import gpu_pools
    from tests.dynamic.pairs import check_batches, check_long_rows, check_triangles

    of, rng = BATCHES[case["variant"]], np.random.default_rng(case["seed"])
    was = gpu_pools.FEW, arrays.multiprocessors
    gpu_pools.FEW, arrays.multiprocessors = of.few, lambda: of.blocks
    try:
        with redirect_stdout(sys.stderr):  # lines of stdout are outcomes
            check_batches(rng, of.vertices, 4, [*of.sizes])
            if of.long_rows:
                copies = ("all", "last")[case["seed"] % 2]
                check_long_rows(rng, *of.long_rows, copies)
                check_triangles(rng, 60, 40, chunk=20, part=9)
    finally:
        gpu_pools.FEW, arrays.multiprocessors = was


def _without_hubs(count: int, edge_count: int) -> Any:
    """Return a graph whose vertices have about as many edges each."""
    import featgraph as fg

    each = np.arange(edge_count)
    return fg.Graph.from_edges(each % count, (7 * each) % count, vertex_count=count)


def run_and_print(
    launched: Launched, place: int, call: Callable[[], None], fault: Fault | None = None
) -> bool:
    """Run a case and print its outcome.

    Returns
    -------
    bool
        False if a fault was planted, and no kernel and no call that ran has it.
    """
    import featgraph as fg

    print(json.dumps({"begun": place}), flush=True)
    began, outcome = time.perf_counter(), {"outcome": "ran"}
    try:
        call()
        _wait()
    except (fg.PlanError, fg.UserFunctionError) as error:
        outcome = {"outcome": "refused", "error": str(error)[:300]}
    except Exception as error:  # a tool may end the context
        last = "".join(traceback.format_exception(error)[-4:])
        outcome = {"outcome": "raised", "error": last[-1500:]}
    kernels, shares = launched.take()
    is_met = fault is None or fault.is_met(kernels)
    if not is_met:
        outcome |= {"outcome": "not planted"}
    line: dict[str, Any] = {"case": place, **outcome, "kernels": kernels}
    seconds = round(time.perf_counter() - began, 2)
    print(json.dumps(line | {"shares": shares, "seconds": seconds}), flush=True)
    return is_met


def _wait() -> None:
    from featgraph.runtime.devices.cuda_device import cuda_device

    cuda_device().synchronize()


def main() -> None:
    """Run the task of a file."""
    from bench.sanitizers.cases import import_tests
    from featgraph.runtime.devices.cuda_device import cuda_device

    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    warnings.simplefilter("ignore")
    import_tests()
    use_small_bounds()
    planted = task.get("planted")
    fault = plant(planted) if planted else None
    launch = None if fault is None else fault.launch
    calls = [partial(run_case, case) for case in task["cases"]]
    if launch is not None:
        calls = [lambda: launch(cuda_device())]
    launched = Launched()
    are_met = [run_and_print(launched, *call, fault) for call in enumerate(calls)]
    if not all(are_met):
        sys.exit(f"no kernel and no call that ran has the fault {planted!r}")


if __name__ == "__main__":
    main()
