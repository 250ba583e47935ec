"""The tables of the learning benches in Markdown, from result lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["markdown"]

Line = dict[str, Any]
#: What the paper measured on a Tesla P4, to print beside: the range over its graphs.
PAPER = {
    "FA/CD": "1.6-20.3x",
    "FA/NCD": "1.1-3.2x",
    "NFA/CD": "1.1-9.3x",
    "folding": "1.2-1.7x",
}
BASE, BY_HAND = "NFA/NCD", "hand-written NFA/NCD"
FASTER = ("FA/NCD", "NFA/CD", "FA/CD", "auto")


def markdown(lines: Iterable[Line]) -> str:
    """Return all tables that `lines` have anything for.

    A later line of the same cell takes the place of an earlier one.
    """
    cells: dict[tuple[str, ...], Line] = {}
    for line in lines:
        if "cell" in line or line["contender"] == "atomics":
            key = (line["bench"], line.get("cell", ""), line["contender"])
            more = (str(line.get("k")), str(line.get("mapping")))
            cells[key + (more if line["contender"] == "atomics" else ())] = line
    found = list(cells.values())
    tables = (_variants(found), _features(found), _folding(found), _algorithms(found))
    return "\n\n".join(table for table in tables if table)


def _of(lines: list[Line], bench: str) -> list[Line]:
    return [line for line in lines if line["bench"] == bench]


def _table(title: str, head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    parts = [f"### {title}", "", f"| {' | '.join(head)} |"]
    parts.append(f"|{' --- |' * len(head)}")
    parts += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(parts)


def _ms(line: Line | None) -> str:
    if line is None:
        return ""
    if "error" in line:
        return "failed"
    median = line.get("median_ms")
    if median is None:
        return ""
    wrong = "" if line.get("checks", {}).get("ok", True) else " (wrong)"
    cut = (
        ""
        if line.get("converged", True)
        else f" ({line['supersteps']} supersteps, cut)"
    )
    return f"{median:.4g}{wrong}{cut}"


def _ratio(slow: Line | None, fast: Line | None, name: str = "median_ms") -> str:
    """Return how many times faster; nothing where a run was cut short of the end."""
    if not slow or not fast or not slow.get(name) or not fast.get(name):
        return _ms(fast) if fast and "error" in fast else ""
    is_cut = slow.get("converged", True) != fast.get("converged", True)
    if is_cut and name == "median_ms":
        return "cut"
    wrong = "" if fast.get("checks", {}).get("ok", True) else " (wrong)"
    return f"{slow[name] / fast[name]:.2f}x{wrong}"


def _variants(lines: list[Line]) -> str:
    rows = []
    groups: dict[tuple[str, str, int], dict[str, Line]] = {}
    for line in _of(lines, "variants-gpu"):
        key = (line["graph"]["name"], line["program"], line["k"])
        groups.setdefault(key, {})[line["contender"]] = line
    for (graph, program, k), own in groups.items():
        base, by_hand = own.get(BASE), own.get(BY_HAND)
        apart = [
            line["checks"]["epsilons_apart"]
            for line in own.values()
            if "epsilons_apart" in line.get("checks", {})
        ]
        rows.append(
            [
                graph, program, str(k), _ms(base),
                str((base or {}).get("supersteps", "")),
                *(_ratio(base, own.get(name)) for name in FASTER),
                _ms(by_hand),
                _ratio(base, by_hand, "per_superstep_ms"),
                f"{max(apart):.2g}" if apart else "",
            ]
        )  # fmt: skip
    shown = [
        f"{name} (paper {PAPER[name]})" if name in PAPER else name for name in FASTER
    ]
    head = ["graph", "algorithm", "k", "NFA/NCD ms", "supersteps", *shown]
    head += ["by hand NFA/NCD ms", "ours / by hand, a superstep", "epsilons apart"]
    return _table("Time to convergence, and what each variant gains", head, rows)


def _features(lines: list[Line]) -> str:
    own = _of(lines, "features-gpu")
    times = [line for line in own if line["contender"] != "atomics" and "k" in line]
    names = list(dict.fromkeys(line["contender"] for line in times))
    by: dict[tuple[str, int], dict[str, Line]] = {}
    for line in times:
        by.setdefault((line["graph"]["name"], line["k"]), {})[line["contender"]] = line
    rows = [
        [graph, str(k), *(_ms(by[graph, k].get(name)) for name in names)]
        for graph, k in sorted(by)
    ]
    title = "Label propagation by number of features, ms to convergence"
    first = _table(title, ["graph", "k", *names], rows)

    counts = [line for line in own if line["contender"] == "atomics"]
    rows = []
    for k in sorted({line["k"] for line in counts}):
        found = {line["mapping"]: line["counts"] for line in counts if line["k"] == k}
        for metric in next(iter(found.values())):
            fa, nfa = (found.get(m, {}).get(metric, 0) for m in ("FA", "NFA"))
            if fa or nfa:
                gain = f"{nfa / fa:.2f}x" if fa else ""
                rows.append([str(k), f"`{metric}`", f"{fa:,}", f"{nfa:,}", gain])
    title = "Atomic transactions of one pushed superstep"
    second = _table(title, ["k", "metric", "FA", "NFA", "NFA / FA"], rows)
    return "\n\n".join(table for table in (first, second) if table)


def _folding(lines: list[Line]) -> str:
    rows = []
    groups: dict[tuple[str, str, int], dict[str, Line]] = {}
    for line in _of(lines, "folding-gpu"):
        key = (line["graph"]["name"], line["program"], line["k"])
        groups.setdefault(key, {})[line["contender"]] = line
    for (graph, program, k), own in sorted(groups.items()):
        folded, unfolded = own.get("folded"), own.get("unfolded")
        by_hand = own.get("hand-written")
        rows.append(
            [
                graph, program, str(k), _ms(folded), _ms(unfolded), _ms(by_hand),
                _ratio(unfolded, folded), _ratio(folded, by_hand),
            ]
        )  # fmt: skip
    head = ["graph", "algorithm", "k", "folded ms", "unfolded ms", "by hand ms"]
    head += [f"folding gains (paper {PAPER['folding']})", "folded / by hand"]
    return _table("A superstep over all vertices", head, rows)


def _algorithms(lines: list[Line]) -> str:
    own = [line for line in _of(lines, "algorithms-cpu") if "program" in line]
    ours = {
        (line["program"], line["comparison"]): line
        for line in own
        if line["contender"] == "featgraph" and "comparison" in line
    }
    rows = []
    for line in own:
        if line["contender"] == "featgraph":
            continue
        mine = ours.get((line["program"], line.get("comparison", "")))
        rows.append(
            [
                line["program"], line.get("comparison", ""), line["contender"],
                _ms(mine), _ms(line), _ratio(line, mine),
                str(line.get("note", "")),
            ]
        )  # fmt: skip
    head = ["algorithm", "on", "peer", "featgraph ms", "peer ms", "gain", "note"]
    return _table("On the CPU, beside its peers", head, rows)
