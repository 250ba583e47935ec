"""Tables of the study in Markdown: ``python -m bench.sgd.report FILE...``.

For each target and K, from the lines of ``sgd-sweeps``: ms of a sweep, and how many
times as long as `edge_locked` that is, with geometric means by class (Table II); and
the preparation, the sweeps in which it pays back, the best serialisable sweep over the
larger of its bounds, and predicted over measured times. A later line of a cell takes
the place of an earlier one.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bench.report import lines_of, markdown_table

Line = dict[str, Any]
Cells = dict[tuple[str, str], Line]
BASE, RACY = "edge_locked", "racy"
#: Copy bandwidth of an NVIDIA H200.
COPY_GB_PER_S = 4257.0


def tables(lines: Iterable[Line]) -> str:
    """Return the tables of all targets, devices and K among lines."""
    found: dict[Any, Cells] = defaultdict(dict)
    for line in lines:
        if line["bench"] == "sgd-sweeps" and "shape" in line:
            where = line["device"] or line["cpu"], line["target"], line["k"]
            cell = line["shape"]["name"], line["schedule"]
            # None for a cell that was not run.
            found[where][cell] = line | {"ms": min(line["trials_ms"], default=None)}
    parts = []
    for (device, target, k), cells in found.items():
        parts.append(f"### {device}, target {target}, K = {k}")
        parts += [_sweeps(cells), _details(cells), _bounds(cells)]
    return "\n\n".join(part for part in parts if part)


def _table(head: Sequence[str], rows: list[list[Any]]) -> str:
    """Return a table of numbers and words; "" without rows."""
    shown = ([f"{c:.4g}" if isinstance(c, float) else c for c in row] for row in rows)
    return markdown_table(head, shown) if rows else ""


def _sweeps(cells: Cells) -> str:
    """Return ms of a sweep, and the ratio to `BASE`, of shapes by schedules."""
    shapes, schedules = (list(dict.fromkeys(part)) for part in zip(*cells, strict=True))
    rows, ratios = [], defaultdict(lambda: defaultdict(list))
    for shape in shapes:
        own = {s: line for (name, s), line in cells.items() if name == shape}
        base, texts = own.get(BASE, {}).get("ms"), dict.fromkeys(schedules, "")
        for schedule, line in own.items():
            ms, described = line["ms"], line["shape"]
            texts[schedule] = f"{ms:.4g}" if ms else "not run"
            if ms and base:
                texts[schedule] += f" ({ms / base:.2f})"
                ratios[described["kind"]][schedule].append(ms / base)
        size = f"{described['edges'] / 1e6:.3g}M", described["degree"]
        rows.append([shape, *size, *texts.values()])
    for kind, of in ratios.items():
        means = [statistics.geometric_mean(of[s]) if of[s] else "" for s in schedules]
        rows.append([f"geometric mean, {kind}", "", "", *means])
    return _table(["ms (of edge_locked)", "E", "d", *schedules], rows)


def _details(cells: Cells) -> str:
    """Return a table of preparation, groups, and predicted times by cell."""
    rows = []
    for (shape, schedule), line in cells.items():
        ms, base, pays = line["ms"], cells.get((shape, BASE), line), ""
        if ms and base["ms"] and schedule != BASE and "prepare_ms" in line:
            # Beside the order, which edges with locks have, too.
            more = max(line["prepare_ms"] - base["prepare_ms"], 0.0)
            pays = more / (base["ms"] - ms) if ms < base["ms"] else "never"
        names = "gb_per_s", "prepare_ms", "groups", "passes", "predicted_ms"
        rate, prepared, groups, passes, guess = (line.get(n) or "" for n in names)
        over = guess / ms if guess and ms else ""
        row = [shape, schedule, ms or line["reason"], rate, prepared, pays]
        rows.append([*row, groups, passes, guess, over])
    head = ["shape", "schedule", "ms", "GB/s", "prepared in ms", "sweeps to pay back"]
    head += ["groups", "passes", "predicted ms", "predicted / measured"]
    return _table(head, rows)


def _bounds(cells: Cells) -> str:
    """Return the best serialisable schedule of each shape over its bounds (CUDA)."""
    found: dict[str, dict[str, Line]] = defaultdict(dict)
    for (shape, schedule), line in cells.items():
        if line["ms"] and "chain_ms" in line and schedule != RACY:
            found[shape][schedule] = line
    rows = []
    for shape, own in found.items():
        schedule, line = min(own.items(), key=lambda item: item[1]["ms"])
        moved = line["shape"]["edges"] * (12 + 16 * line["k"]) / COPY_GB_PER_S / 1e6
        chain = min(other["chain_ms"] for other in own.values())
        over = line["ms"] / max(moved, chain)
        rows.append([shape, schedule, line["ms"], moved, chain, over])
    head = ["shape", "best", "ms", "bytes, ms", "chain, ms", "over the larger"]
    return _table(head, rows)


if __name__ == "__main__":
    print(tables(lines_of(sys.argv[1:])))
