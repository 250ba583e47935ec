"""Tables from result lines: ``python -m bench.report [--markdown] FILE...``.

``--markdown`` prints the tables of the learning benches, a row a graph and algorithm.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["print_report"]

Line = dict[str, Any]
Columns = dict[str, Callable[[Line], str]]


def _spread(line: Line) -> str:
    trials = line["trials_ms"]
    return f"{min(trials):.4g}-{max(trials):.4g}" if trials else ""


def _number(name: str, digits: int = 4) -> Callable[[Line], str]:
    def show(line: Line) -> str:
        value = line.get(name)
        return "" if value is None else f"{value:.{digits}g}"

    return show


def _text(name: str) -> Callable[[Line], str]:
    return lambda line: str(line.get(name, "") if line.get(name) is not None else "")


def _graph(line: Line) -> str:
    return str(line.get("graph", {}).get("name", ""))


def _check(line: Line) -> str:
    if "error" in line:
        return "RAISED"
    checks = line.get("checks")
    return "" if checks is None else "right" if checks["ok"] else "WRONG"


def _planted(line: Line) -> int:
    """Return how many faults that were planted a tool has found."""
    return sum(fault["found"] for fault in line["planted"].values())


def _rate(name: str) -> Callable[[Line], str]:
    """Return GB/s of the bytes in a field over the median."""

    def show(line: Line) -> str:
        has_both = line.get(name) and line.get("median_ms")
        return f"{line[name] / line['median_ms'] / 1e6:.0f}" if has_both else ""

    return show


def _edge_ns(line: Line) -> str:
    edges = line.get("graph", {}).get("edges")
    return (
        f"{line['median_ms'] * 1e6 / edges:.3f}"
        if edges and "median_ms" in line
        else ""
    )


def _edges(line: Line) -> str:
    edges = line.get("graph", {}).get("edges")
    return f"{edges / 1e6:.2f}M" if edges else ""


def _stage(name: str) -> Callable[[Line], str]:
    return lambda line: f"{line.get('stages', {}).get(name, float('nan')):.3f}"


def _microseconds(line: Line) -> str:
    return f"{line['median_ms'] * 1e3:.1f}" if "median_ms" in line else ""


COMMON: Columns = {"contender": _text("contender"), "k": _text("k")}
TIME: Columns = {
    "median ms": _number("median_ms"),
    "range ms": lambda line: _spread(line) if "trials_ms" in line else "",
}
CHECK: Columns = {"check": _check}
#: For benches without columns of their own.
PLAIN: Columns = {"graph": _graph, **COMMON, **TIME, **CHECK}
TABLES: dict[str, Columns] = {
    "superstep-cpu": {
        "graph": _graph,
        **COMMON,
        "threads": _text("threads"),
        **TIME,
        "compulsory GB/s": _rate("bytes"),
        **CHECK,
    },
    "growth-cpu": {
        "series": _text("series"),
        "graph": _graph,
        "edges": _edges,
        **COMMON,
        **TIME,
        "ns an edge": _edge_ns,
        **CHECK,
    },
    "change-driven": {
        "graph": _graph,
        **COMMON,
        "target": _text("target"),
        "active": _text("active"),
        **TIME,
        "supersteps": _text("supersteps"),
        **CHECK,
    },
    "fusing-cpu": {
        "graph": _graph,
        **COMMON,
        "modalities": _text("modalities"),
        **TIME,
        **CHECK,
    },
    "traffic": {
        "graph": _graph,
        "order": _text("order"),
        "grid": _text("grid"),
        **{
            name: _number(key)
            for name, key in {
                "edges max/mean": "uneven_edges",
                "vertices max/mean": "uneven_vertices",
                "all / V": "all_v",
                "ms / V": "ms_v",
                "largest halo P/V": "largest_halo",
                "MB max": "most_memory_mb",
                "MB mean": "mean_memory_mb",
            }.items()
        },
        "choosing ms": _text("choosing_ms"),
        "counting ms": _number("median_ms"),
        **CHECK,
    },
    "networkx-cpu": {
        "function": _text("function"),
        "graph": _graph,
        "nodes + edges": _text("size"),
        "contender": COMMON["contender"],
        **TIME,
        **CHECK,
    },
    "superstep-gpu": {
        "graph": _graph,
        **COMMON,
        "work": _text("work"),
        **TIME,
        "host ms": _number("host_ms"),
        "iterate ms": _number("iterate_ms"),
        "compulsory GB/s": _rate("bytes"),
        "uncached GB/s": _rate("gathered_bytes"),
        "first s": _number("first_s", 3),
        **CHECK,
    },
    "reduce-gpu": {
        "graph": _graph,
        **COMMON,
        "work": _text("work"),
        "blocks": _text("blocks"),
        **TIME,
        "read GB/s": _rate("bytes"),
        **CHECK,
    },
    "sanitizers-gpu": {
        "tool": COMMON["contender"],
        "version": _text("tool_version"),
        "cases": _text("cases"),
        "kernels": _text("kernels"),
        "launches": _text("launches"),
        "errors": _text("errors"),
        "planted": lambda line: f"{_planted(line)} of {len(line['planted'])} found",
        "not run": _text("not_run"),
        "s": _text("seconds"),
        **CHECK,
    },
    "compile": {
        **COMMON,
        "target": _text("target"),
        "launched": _text("launched"),
        **TIME,
        "fold s": _stage("fold_s"),
        "compile + run s": _stage("compile_and_first_run_s"),
        "2nd run s": _stage("second_run_s"),
        "import fg s": _stage("import_featgraph_s"),
        "import compiler s": _stage("import_compiler_s"),
        "setup s": _stage("setup_s"),
    },
    "als-accuracy": {
        "graph": _graph,
        **COMMON,
        "lambda": _text("regularization"),
        "RMSE": _number("rmse", 4),
        "ndcg": _number("ndcg", 4),
        **TIME,
    },
    "als-cpu": {
        "graph": _graph,
        **COMMON,
        **TIME,
        "squared error": _number("squared_error", 6),
    },
    "als-gpu": {"graph": _graph, **COMMON, **TIME, **CHECK},
    "sgd-accuracy": {
        "graph": _graph,
        **COMMON,
        "rate": _text("rate"),
        "decay": _text("decay"),
        "ridge": _text("regularization"),
        "epochs": _text("epochs"),
        "RMSE": _number("rmse", 4),
        **TIME,
        **CHECK,
    },
    "sgd-convergence": {
        "graph": _graph,
        **COMMON,
        "seed": _text("seed"),
        "best RMSE": _number("best_rmse", 5),
        "from serial": _number("far", 2),
        "3 epochs later": _number("late", 2),
        "s an epoch": _number("s_per_epoch", 3),
        **CHECK,
    },
    "sgd-cpu": {
        "graph": _graph,
        **COMMON,
        "threads": _text("threads"),
        **TIME,
        "M updates/s": _number("m_updates_per_s", 3),
        "of CPU time": _number("m_updates_per_cpu_s", 3),
        **CHECK,
    },
    "bp-accuracy": {
        "model": _text("contender"),
        "K": _text("k"),
        "damping": _text("damping"),
        "converged": _text("converged"),
        "supersteps": _text("supersteps"),
        "largest error": _number("largest_error", 2),
        "mean error": _number("mean_error", 2),
        **CHECK,
    },
    "overhead": {
        "target": _text("target"),
        "graph": _graph,
        **COMMON,
        "median us": _microseconds,
        "range ms": TIME["range ms"],
    },
}


LEARNING: Columns = {
    "graph": _graph,
    "program": _text("program"),
    **COMMON,
    **TIME,
    "supersteps": _text("supersteps"),
    "a superstep ms": _number("per_superstep_ms"),
    **CHECK,
}
TABLES["sum-accuracy"] = {
    **COMMON,
    "target": _text("target"),
    "terms": _text("terms"),
    "of": _text("kind"),
    "error": _number("relative_error", 2),
    **TIME,
    **CHECK,
}
TABLES["any-order"] = {
    "graph": _graph,
    "program": _text("program"),
    "contender": _text("contender"),
    "target": _text("target"),
    **TIME,
    "supersteps": _text("supersteps"),
    "edges evaluated / E": _text("edges_evaluated"),
    **CHECK,
}
TABLES |= dict.fromkeys(
    ("variants-gpu", "features-gpu", "folding-gpu", "bounds-gpu"), LEARNING
)
TABLES["algorithms-cpu"] = {
    "on": _text("comparison"),
    **LEARNING,
    "note": _text("note"),
}

TABLES["ranks-cpu"] = {
    **COMMON,
    "program": _text("program"),
    "ranks": _text("contender"),
    **TIME,
    "bytes a rank sent": _text("sent_bytes"),
    **CHECK,
}
TABLES["ranks-gpu"] = TABLES["ranks-cpu"] | {"supersteps": _text("supersteps")}
TABLES["forms-gpu"] = {
    "graph": _graph,
    "program": _text("program"),
    "links": _text("link"),
    "form": _text("contender"),
    **TIME,
    "supersteps": _text("supersteps"),
    "bytes a rank sent": _text("sent_bytes"),
    "useful share": _text("useful"),
    "in exchanges": _text("waited_share"),
    **CHECK,
}
TABLES["repartition-gpu"] = {
    "graph": _graph,
    **COMMON,
    "ranks": _text("ranks"),
    **TIME,
    "moves": _text("moves"),
    "before ms": _text("before_ms"),
    "after ms": _text("after_ms"),
    "of even": _text("of_even"),
    "overhead": _text("overhead"),
    **CHECK,
}
TABLES["lux-gpu"] = {
    "graph": _graph,
    "program": _text("program"),
    "k": _text("k"),
    "ranks": _text("ranks"),
    **TIME,
    "supersteps": _text("supersteps"),
    "edges/s a rank": _text("edges_s_rank"),
    "efficiency": _number("efficiency", 3),
    "bound": _number("bound", 3),
    "wire ms": _number("wire_ms", 3),
    "call ms": _number("call_ms", 4),
    "first s": _number("first_s", 3),
    **CHECK,
}
TABLES["overlap-cpu"] = TABLES["overlap-gpu"] = {
    "graph": _graph,
    "k": _text("k"),
    "rows go": _text("contender"),
    **TIME,
    "sweep ms": _number("sweep_ms"),
    "wire ms": _number("wire_ms"),
    "pieces": _text("pieces"),
    "hidden": _number("hidden", 2),
    **CHECK,
}
TABLES["forms-cpu"] = {
    **COMMON,
    "program": _text("program"),
    "form": _text("contender"),
    **TIME,
    "supersteps": _text("supersteps"),
    "bytes a rank sent": _text("sent_bytes"),
    "useful share": _text("useful"),
    "in exchanges": _text("waited_share"),
    **CHECK,
}
TABLES["links-gpu"] = {
    "what": _text("contender"),
    "rows": _text("rows"),
    "k": _text("k"),
    "share": _text("share"),
    "bytes": _text("nbytes"),
    **TIME,
    **CHECK,
}
TABLES["nccl-gpu"] = {
    "what": _text("contender"),
    "bytes": _text("nbytes"),
    **TIME,
    "what it says": _text("said"),
    "group": _text("group"),
    **CHECK,
}
TABLES["loading-cpu"] = {
    **COMMON,
    "from": _text("contender"),
    **TIME,
    "CPU ms": _text("cpu_ms"),
    "reading the bytes, ms": _text("read_ms"),
    "bytes that stay": _text("final_bytes"),
    "most bytes over these": _text("peak_over_final"),
    **CHECK,
}
TABLES["readers-cpu"] = {
    "from": _text("contender"),
    **TIME,
    "CPU ms": _text("cpu_ms"),
    "bytes": _text("file_bytes"),
    **CHECK,
}
TABLES["large-gpu"] = {
    "graph": _graph,
    "call": _text("contender"),
    **TIME,
    "supersteps": _text("supersteps"),
    "directions": _text("directions"),
    "in supersteps ms": _number("superstep_ms", 4),
    "reached": _text("reached"),
    **CHECK,
}
TABLES["loading-gpu"] = {
    "graph": _graph,
    "ranks": _text("ranks"),
    "what": _text("contender"),
    **TIME,
    "bytes of files": _text("file_bytes"),
    "of reading the bytes": _text("of_read"),
    "by threads": _text("of_read_by_threads"),
    "first ms": _text("first_ms"),
    **CHECK,
}
TABLES["checkpoints"] = {
    "graph": _graph,
    "ranks": _text("ranks"),
    "checkpoints": _text("contender"),
    **TIME,
    "written": _text("written"),
    "ms longer for each": _text("each_ms"),
    "of 60 s": _text("of_a_minute"),
    **CHECK,
}
TABLES["out-of-core-gpu"] = {
    "graph": _graph,
    "under": _text("contender"),
    **TIME,
    "link GB/s": _text("gb_s"),
    "bytes copied": _text("copied_bytes"),
    "of link": _text("of_link"),
    "of edges": _text("of_edges"),
    **CHECK,
}
TABLES["faults-cpu"] = TABLES["faults-gpu"] = {
    "fault": _text("contender"),
    "ranks": _text("ranks"),
    "went on": _text("again"),
    **TIME,
    **CHECK,
}
TABLES["repartition-cpu"] = {
    **COMMON,
    "case": _text("contender"),
    "ranks": _text("ranks"),
    "load": _text("load"),
    "moves": _text("moves"),
    "before": _text("before"),
    "after": _text("after"),
    "overhead": _text("overhead"),
    **CHECK,
}
TABLES["forecasts"] = {
    "graph": _graph,
    "of": _text("contender"),
    "uneven": _number("uneven", 3),
    "ghosts/V": _number("ghosts", 3),
    "MB": _number("rank_mb", 4),
    "all/V": _number("all_rows", 3),
    "ms/V": _number("ms_rows", 3),
    "k = 1, ms": _text("ms_k1_ms"),
    "k = 32, ms": _text("ms_k32_ms"),
    "search, vr": _text("search_vr_ms"),
}
TABLES["model-blocks"] = {
    **COMMON,
    "ranks": _text("ranks"),
    "link": _text("link"),
    "layout": _text("contender"),
    "work ms": _number("work_ms"),
    "wire ms": _number("wire_ms"),
    "ms": _number("median_ms"),
    "gain of blocks": _text("gain"),
}
TABLES["rows-cpu"] = {
    **COMMON,
    "changed": _text("density"),
    "form": _text("form"),
    "bytes": _text("message_bytes"),
    **TIME,
    "rows GB/s": _text("rows_gb_per_s"),
    **CHECK,
}

TABLES["classics-cpu"] = {
    "graph": _graph,
    "program": _text("program"),
    "contender": _text("contender"),
    **TIME,
    **CHECK,
}
TABLES["classics-gpu"] = {
    "graph": _graph,
    "program": _text("program"),
    "contender": _text("contender"),
    **TIME,
    "cuGraph ms": _text("cugraph_ms"),
    "supersteps": _text("supersteps"),
    "directions": _text("directions"),
    "in supersteps ms": _number("superstep_ms"),
    "beside ms": _number("beside_ms"),
    **CHECK,
}
TABLES["schedules-gpu"] = {
    "cell": _text("cell"),
    "K": _text("k"),
    "contender": _text("contender"),
    **TIME,
    **CHECK,
}
TABLES["widths-gpu"] = {
    "graph": _graph,
    **COMMON,
    "work": _text("work"),
    "padded to": _text("multiple"),
    "stride": _text("stride"),
    "blocks of hubs": _text("hub_blocks"),
    **TIME,
    **CHECK,
}
TABLES["answers-gpu"] = {
    "graph": _graph,
    "program": _text("program"),
    "given": _text("given"),
    **TIME,
    "supersteps": _text("supersteps"),
    "inside ms": _text("inside_ms"),
    "call / inside": _text("ratio"),
    **CHECK,
}
TABLES["sgd-sweeps"] = {
    "cell": _text("cell"),
    "K": _text("k"),
    **TIME,
    "predicted ms": _number("predicted_ms"),
    "prepare ms": _number("prepare_ms"),
    "groups": _text("groups"),
    "GB/s": _text("gb_per_s"),
    "not run": _text("reason"),
    **CHECK,
}
TABLES["sgd-locks"] = {
    "of": _text("contender"),
    "K": _text("k"),
    "threads": _text("threads"),
    "us": _number("us"),
    "M/s": _number("m_per_s"),
}
TABLES["sgd-counters"] = {
    "graph": _graph,
    "schedule": _text("contender"),
    **{
        name.replace("_", " "): _number(name, 3)
        for name in (
            "attempts", "atomic_sectors", "read_sectors", "dram_bytes",
            "warp_instructions", "cycles_an_instruction",
            "stalled_barrier", "stalled_membar", "stalled_long_scoreboard",
        )
    },
}  # fmt: skip
TABLES["dynamic-batches"] = {
    "graph": _graph,
    "updates": _text("size"),
    "kind": _text("kind"),
    "operation": _text("operation"),
    **COMMON,
    **TIME,
    "updates/ms": _number("updates_per_ms", 3),
    **CHECK,
}
TABLES["dynamic-tables"] = {
    **TABLES["dynamic-batches"],
    "over static": _number("ratio", 3),
    "share of compactions": _number("compaction_share", 2),
    "names ms": _number("names_ms", 3),
    "slots": _number("slots_per_edge", 3),
    "used": _number("used_per_edge", 3),
    "most": _number("most_used_per_edge", 3),
}
TABLES["dynamic-following"] = {
    "graph": _graph,
    "updates": _text("size"),
    "kind": _text("kind"),
    "operation": _text("operation"),
    **COMMON,
    **TIME,
    "processor ms": _number("processor_ms"),
    "edges evaluated": _text("evaluated"),
    "began anew": _text("anew"),
    **CHECK,
}
TABLES["dynamic-stream"] = {
    "window": _text("window"),
    "what": _text("what"),
    **COMMON,
    **TIME,
    "processor ms": _number("processor_ms"),
    "updates a step": _number("updates", 3),
    "edges": _number("edges", 6),
    **CHECK,
}
TABLES["values-gpu"] = {
    "graph": _graph,
    "of": _text("kind"),
    **COMMON,
    **TIME,
    **CHECK,
}


def print_report(lines: list[Line]) -> None:
    """Print a table for each bench among `lines`, under what they were measured on."""
    for bench in dict.fromkeys(line["bench"] for line in lines):
        own = [line for line in lines if line["bench"] == bench]
        for place in dict.fromkeys(_place(line) for line in own):
            here = [line for line in own if _place(line) == place]
            print(f"{bench}: {place}")
            if bench.startswith("agreement"):
                _print_agreement(here)
            else:
                _print_table(TABLES.get(bench, PLAIN), here)
            print()


def _place(line: Line) -> str:
    where = line["device"] or f"{line['cpu']}, {line['cores']} cores"
    commit, changed = line["commit"][:12], "+" * line["commit"].endswith("+")
    return f"{where}, commit {commit}{changed}, {line['command']}"


def _print_table(columns: Columns, lines: list[Line]) -> None:
    rows = [list(columns)] + [
        [show(line) for show in columns.values()] for line in lines
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        print(
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            )
        )


def _print_agreement(lines: list[Line]) -> None:
    """Print graphs and, where there are any, failures: program x combination."""
    combinations = list(
        dict.fromkeys(c for line in lines for c in line.get("table", {}))
    )

    def cell(line: Line, combination: str) -> str:
        found = line.get("table", {}).get(combination)
        if found is None:
            return "-"
        text = str(found["graphs"])
        text += f" FAIL {found['failures']}" if found["failures"] else ""
        return text + (" NOT RUN" if found["not_run"] else "")

    columns: Columns = {"program": _text("contender"), "k": _text("widths")}
    for combination in combinations:
        columns[combination] = lambda line, c=combination: cell(line, c)
    _print_table(columns, lines)
    tables = [line.get("table", {}) for line in lines]
    cells = [found for table in tables for found in table.values()]
    graphs = [max((f["graphs"] for f in t.values()), default=0) for t in tables]
    counts = {
        "programs": len(lines),
        "graphs": sum(graphs),
        "runs": sum(f["graphs"] for f in cells),
        "supersteps compared": sum(line.get("supersteps", 0) for line in lines),
        "failures": sum(f["failures"] for f in cells),
        "combinations not run": sum(f["not_run"] for f in cells),
    }
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


def main() -> None:
    """Print the tables of the files named on the command line."""
    names = [name for name in sys.argv[1:] if name != "--markdown"]
    lines = []
    for name in names:
        text = Path(name).read_text(encoding="utf-8")
        lines += [json.loads(line) for line in text.splitlines() if line]
    if len(names) < len(sys.argv) - 1:
        from bench.learning.tables import markdown

        print(markdown(lines))
    else:
        print_report(lines)


if __name__ == "__main__":
    main()
