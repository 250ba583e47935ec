"""Atomic transactions of a pushed superstep, counted by Nsight Compute.

`count` runs this module under ``ncu``: one superstep for each k and mapping, each
behind a marker kernel, so that one profiled process gives all counts.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from bench.record import ROOT, child_environment

__all__ = ["METRICS", "command", "count", "parse"]

MARKER = "atomics_marker"
#: Warp instructions; requests of the first-level cache; sectors of the second level.
#: "red" is an atomic whose old value is not read, "atom" the other kind.
METRICS = (
    "smsp__inst_executed_op_global_red.sum",
    "smsp__inst_executed_op_global_atom.sum",
    "l1tex__t_set_accesses_pipe_lsu_mem_global_op_red.sum",
    "l1tex__t_set_accesses_pipe_lsu_mem_global_op_atom.sum",
    "lts__t_sectors_op_red.sum",
    "lts__t_sectors_op_atom.sum",
)
#: Tried where ncu does not know one of the above.
FEWER = ("smsp__inst_executed_op_global_red.sum", "lts__t_sectors_op_red.sum")
MAPPINGS = {"FA": True, "NFA": False}


def command(graph: str, features: list[int], metrics: tuple[str, ...]) -> list[str]:
    """Return the command line that counts."""
    return [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw",
        "--print-units", "base", "--metrics", ",".join(metrics),
        sys.executable, "-m", "bench.learning.atomics",
        "--graph", graph, "--k", ",".join(map(str, features)),
    ]  # fmt: skip


def count(graph: str, features: list[int], limit: float) -> list[dict[str, Any]]:
    """Return a record for each k and mapping: counts of one superstep by metric.

    Raises
    ------
    RuntimeError
        If ncu is not there, fails or takes longer than `limit` seconds.
    """
    if shutil.which("ncu") is None:
        raise RuntimeError("Nsight Compute's ncu is not on PATH")
    said, environment = "", child_environment()
    for metrics in (METRICS, FEWER):
        line = command(graph, features, metrics)
        with tempfile.TemporaryFile("w+") as out:
            try:
                done = subprocess.run(
                    line, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                    timeout=limit, check=False, env=environment,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"ncu took over {limit:.0f} s") from None
            out.seek(0)
            said = out.read()
        if done.returncode == 0 and '"ID"' in said:
            # The interpreter's path is the machine's own business.
            shown = " ".join(["python" if a == sys.executable else a for a in line])
            return [found | {"ncu": shown} for found in parse(said, features, metrics)]
    raise RuntimeError(f"ncu failed: {said[-1500:]}")


def parse(
    said: str, features: list[int], metrics: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return the records from what ncu printed, kernels between markers added up."""
    lines = said.splitlines()
    begin = next(i for i, text in enumerate(lines) if text.startswith('"ID"'))
    table = [text for text in lines[begin:] if text.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(table))))
    records: list[dict[str, Any]] = []
    cases = [(k, mapping) for k in features for mapping in MAPPINGS]
    for row in rows:
        if not row["ID"]:  # the row of units
            continue
        if MARKER in row["Kernel Name"]:
            if len(records) == len(cases):
                break
            k, mapping = cases[len(records)]
            counts = dict.fromkeys((m for m in metrics if m in row), 0)
            if not counts:
                raise RuntimeError(f"ncu has none of {', '.join(metrics)}")
            records.append({"k": k, "mapping": mapping, "kernels": 0, "counts": counts})
        elif records:
            records[-1]["kernels"] += 1
            for metric in records[-1]["counts"]:  # a chip may lack some
                value = row[metric].replace(",", "")
                records[-1]["counts"][metric] += int(float(value))
    if len(records) != len(cases):
        raise RuntimeError(f"ncu saw {len(records)} of {len(cases)} markers")
    return records


def main() -> None:
    """Run one superstep behind a marker for each case; the profiled process."""
    import numpy as np

    from bench.graphs import make_graph
    from bench.learning.problems import make_problem
    from featgraph import _cuda
    from featgraph.runtime.devices.choose import choose_device

    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", required=True)
    parser.add_argument("--k", required=True)
    arguments = parser.parse_args()
    device = choose_device("cuda")
    graph = make_graph(arguments.graph).graph

    def atomics_marker(array):  # type: ignore[no-untyped-def]
        array[0] += 1

    marker = _cuda.launcher(_cuda.kernel(atomics_marker), 1, 1)
    array = device.upload(np.zeros(1, np.int32))
    for k in map(int, arguments.k.split(",")):
        problem = make_problem("LP", graph, k)
        for fa in MAPPINGS.values():
            problem.reset(device)
            options = {
                "direction": "push", "feature_parallel": fa, "change_driven": False
            }  # fmt: skip
            superstep = problem.steps[0].prepare(problem.state, device, options)
            marker(array)
            superstep.run()
            device.synchronize()


if __name__ == "__main__":
    main()
