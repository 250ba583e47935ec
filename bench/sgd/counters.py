"""Counters of sweeps of SGD on a GPU, which explain the times of schedules.

Attempts to take the locks of an edge are counted by a `hold` in place of the kernels'
own, in words of `COUNTERS` vertices without edges. All else is counted by Nsight
Compute, over one sweep of each schedule. Both are over the edges. Of the cycles that a
warp takes for an instruction, stalls are those of waiting for one reason.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

import numpy as np

import featgraph as fg
from bench.ncu import behind_markers, make_marker, ncu_command, profile, shown
from bench.record import Recorder
from bench.sgd import sweeps
from bench.sgd.shapes import make_matrix

DEFAULTS = {"graph": ["STACK", "CAL"], "limit": 100.0}
COUNTERS, K, SCHEDULES = 4096, 16, sweeps.DEFAULTS["schedules"]
#: Of these, attempts to lock are counted.
LOCKED = [s for s in SCHEDULES if "locked" in s or "hybrid" in s]
_STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
#: Column of a row -> the counter of ncu, over the edges.
PER_EDGE = {
    "warp_instructions": "smsp__inst_executed.sum",
    "atomic_sectors": "lts__t_sectors_op_atom.sum",
    "reduction_sectors": "lts__t_sectors_op_red.sum",
    "read_sectors": "lts__t_sectors_op_read.sum",
    "dram_bytes": "dram__bytes.sum",
}
#: The same of all columns.
METRICS = PER_EDGE | {
    "cycles_an_instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    **{f"stalled_{why}": _STALLED.format(why)
       for why in ("barrier", "membar", "long_scoreboard")},
}  # fmt: skip
#: Run in the emulator, too; vertices 0 to `COUNTERS` - 1 have no edges, and are the
#: first by degree.
HOLD = """
from featgraph.cuda.dialect import cuda, device_function, int32
from featgraph.device import queue_cuda as queues

plain = queues.hold


@device_function
def hold(locks, first, second):
    cuda.atomic.add(locks, int32(cuda.grid(1) & {last}), int32(1))
    return plain(locks, first, second)
"""


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Count all that can be of each schedule on each matrix."""
    from featgraph.device import queue_cuda

    recorder.use("cuda")
    # Kernels of this process count: none is taken from disk that does not.
    fg.config.cache, made = False, {}
    exec(HOLD.format(last=COUNTERS - 1), made)  # noqa: S102
    queue_cuda.hold = made["hold"]
    for name in arguments.graph:
        line = ncu_command((*METRICS.values(),), "bench.sgd.counters", name)
        shape, graph = make_matrix(name)
        given = line, arguments.limit, shape["edges"]
        for schedule, found in (recorder.attempt("ncu", counted, *given) or {}).items():
            recorder.add(schedule, [], **found, graph=shape, ncu=shown(line))
        state = sweeps.state_of(with_counters(graph, COUNTERS), K)
        for schedule in LOCKED:
            tries = recorder.attempt(schedule, attempts, state, COUNTERS, schedule)
            if tries is not None:
                recorder.add(schedule, [], attempts=tries / shape["edges"], graph=shape)


def with_counters(graph: fg.Graph, count: int) -> fg.Graph:
    """Return a matrix with so many rows without entries in front."""
    rows, columns = graph.sides
    ends = (end + np.int32(count) for end in (graph.sources, graph.targets))
    return fg.Graph.from_edges(*ends, sides=(rows + count, columns))


def attempts(state: fg.State, count: int, schedule: str) -> int:
    """Return how often a sweep has tried to take the locks of an edge."""
    sweeps.step(state, **sweeps.options_of(schedule), target="cuda")
    buffers, size = state.residency, (state.graph.vertex_count,)
    words = buffers.device.download(buffers.temporary("locks", "int32", size))
    return int(words[:count].view(np.uint32).sum(dtype=np.int64))


def counted(line: list[str], limit: float, edges: int) -> dict[str, dict[str, float]]:
    """Return the counters of ncu for each schedule, of those that the GPU has.

    Raises
    ------
    RuntimeError
        If ncu is not there, fails, takes too long, or saw another number of schedules.
    """
    groups = behind_markers(profile(line, limit) or '"ID"')
    if len(groups) != len(SCHEDULES):
        raise RuntimeError(f"ncu saw {len(groups)} of {len(SCHEDULES)} schedules")
    found: dict[str, dict[str, float]] = {schedule: {} for schedule in SCHEDULES}
    for values, kernels in zip(found.values(), groups, strict=True):
        row = next(r for r in kernels[::-1] if "exclusive" in r["Kernel Name"])
        for name, metric in METRICS.items():
            with suppress(KeyError, ValueError):  # a chip may lack some
                value = float(row[metric].replace(",", ""))
                values[name] = value / edges if name in PER_EDGE else value
    return found


def main() -> None:
    """Run one sweep behind a marker for each schedule; the profiled process."""
    from featgraph.runtime.devices.choose import choose_device

    device = choose_device("cuda")
    mark, state = make_marker(device), sweeps.state_of(make_matrix(sys.argv[1])[1], K)
    for schedule in SCHEDULES:
        mark()
        sweeps.step(state, **sweeps.options_of(schedule), target="cuda")
        device.synchronize()


if __name__ == "__main__":
    main()
