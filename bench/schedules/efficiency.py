"""Warp execution efficiency: how many of a warp's 32 lanes an instruction works for.

Nsight Compute counts the instructions of threads and of warps over the first supersteps
of a run, in the kernels that were generated for it; those of the runtime, which finds
due vertices and counts, are the same whatever the schedule.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from bench.ncu import behind_markers, make_marker, ncu_command, profile

__all__ = ["efficiencies", "measure_efficiency"]

THREADS, WARPS = "smsp__thread_inst_executed.sum", "smsp__inst_executed.sum"
#: Supersteps that are profiled; of programs that begin at one vertex most of the edges
#: are gone through by then.
SUPERSTEPS = 4
#: Parts of the names of the runtime's own kernels.
OF_THE_RUNTIME = ("cuda_loops", "cuda_lists")


def measure_efficiency(
    graph: str, program: str, schedules: dict[str, Any], limit: float
) -> list[tuple[float, int]]:
    """Return for each schedule its efficiency, and how many instructions warps ran.

    Raises
    ------
    RuntimeError
        If Nsight Compute counts nothing.
    """
    given = "--graph", graph, "--program", program, "--schedules", json.dumps(schedules)
    said = profile(
        ncu_command((THREADS, WARPS), "bench.schedules.efficiency", *given), limit
    )
    if not said:
        raise RuntimeError("ncu counted nothing")
    found = efficiencies(said)
    if len(found) != len(schedules):
        raise RuntimeError(f"ncu saw {len(found)} of {len(schedules)} schedules")
    return found


def efficiencies(output: str) -> list[tuple[float, int]]:
    """Return efficiency and warp instructions behind each marker."""
    out = []
    for rows in behind_markers(output):
        own = [
            row for row in rows
            if not any(part in row["Kernel Name"] for part in OF_THE_RUNTIME)
        ]  # fmt: skip
        threads, warps = (
            sum(int(float(row[name].replace(",", ""))) for row in own)
            for name in (THREADS, WARPS)
        )
        out.append((threads / (32 * max(warps, 1)), warps))
    return out


def main() -> None:
    """Run the first supersteps behind a marker for each schedule."""
    from bench.graphs import make_graph
    from bench.schedules.eight import Inputs, capture
    from featgraph.runtime.devices.choose import choose_device

    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--schedules", required=True)
    arguments = parser.parse_args()
    device = choose_device("cuda")

    mark = make_marker(device)
    inputs = Inputs(make_graph(arguments.graph).graph)
    base = {"target": "cuda", "direction": "pull"}
    captured = capture(arguments.program, inputs, **base)
    for schedule in json.loads(arguments.schedules).values():
        mark()
        captured.iterate(max_supersteps=SUPERSTEPS, **base, **schedule)
        device.synchronize()


if __name__ == "__main__":
    main()
