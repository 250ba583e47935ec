"""Atomic transactions of a pushed superstep, counted by Nsight Compute.

`count` runs this module under ``ncu``: one superstep for each k and mapping, each
behind a marker kernel, so that one profiled process gives all counts.
"""

from __future__ import annotations

import argparse
from typing import Any

from bench.ncu import behind_markers, make_marker, ncu_command, profile, shown

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
#: Counted where ncu lacks one of the above.
FEWER = ("smsp__inst_executed_op_global_red.sum", "lts__t_sectors_op_red.sum")
MAPPINGS = {"FA": True, "NFA": False}


def command(graph: str, features: list[int], metrics: tuple[str, ...]) -> list[str]:
    """Return the command line that counts."""
    given = "--graph", graph, "--k", ",".join(map(str, features))
    return ncu_command(metrics, "bench.learning.atomics", *given)


def count(graph: str, features: list[int], limit: float) -> list[dict[str, Any]]:
    """Return a record for each k and mapping: counts of one superstep by metric.

    Raises
    ------
    RuntimeError
        If ncu is not there, fails or takes longer than `limit` seconds.
    """
    for metrics in (METRICS, FEWER):
        line = command(graph, features, metrics)
        said = profile(line, limit)
        if said:
            known = parse(said, features, metrics)
            return [found | {"ncu": shown(line)} for found in known]
    raise RuntimeError("ncu failed")


def parse(
    said: str, features: list[int], metrics: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return records of ncu's output, kernels between markers added up."""
    cases = [(k, mapping) for k in features for mapping in MAPPINGS]
    groups = behind_markers(said)
    if len(groups) != len(cases):
        raise RuntimeError(f"ncu saw {len(groups)} of {len(cases)} markers")
    records: list[dict[str, Any]] = []
    for (k, mapping), rows in zip(cases, groups, strict=True):
        # A chip may lack some.
        counts = {m: 0 for m in metrics if any(m in row for row in rows)}
        if not counts:
            raise RuntimeError(f"ncu has none of {', '.join(metrics)}")
        for row in rows:
            for metric in counts:
                counts[metric] += int(float(row[metric].replace(",", "")))
        record = {"k": k, "mapping": mapping, "kernels": len(rows), "counts": counts}
        records.append(record)
    return records


def main() -> None:
    """Run one superstep behind a marker for each case; the profiled process."""
    from bench.graphs import make_graph
    from bench.learning.problems import make_problem
    from featgraph.runtime.devices.choose import choose_device

    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", required=True)
    parser.add_argument("--k", required=True)
    arguments = parser.parse_args()
    device = choose_device("cuda")
    graph = make_graph(arguments.graph).graph

    mark = make_marker(device)
    for k in map(int, arguments.k.split(",")):
        problem = make_problem("LP", graph, k)
        for fa in MAPPINGS.values():
            problem.reset(device)
            options = {
                "direction": "push", "feature_parallel": fa, "change_driven": False
            }  # fmt: skip
            superstep = problem.steps[0].prepare(problem.state, device, options)
            mark()
            superstep.run()
            device.synchronize()


if __name__ == "__main__":
    main()
