"""Tables of the study in Markdown: ``python -m bench.sgd.report FILE...``.

For each target and K, from the lines of ``sgd-sweeps``: ms of a sweep, and how many
times as long as `edge_locked` that is, with geometric means by class (Table II); and
the preparation, the sweeps in which it pays back, the best serialisable sweep over the
larger of its bounds, and predicted over measured times. A later line of a cell takes
the place of an earlier one.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.report import markdown_table

__all__ = ["tables"]

Line = dict[str, Any]
BASE, RACY = "edge_locked", "racy"
#: Copy bandwidth of an NVIDIA H200.
COPY_GB_PER_S = 4257.0


def tables(lines: Iterable[Line], copy_gb_per_s: float = COPY_GB_PER_S) -> str:
    """Return the tables of all targets, devices and K among lines."""
    found: dict[Any, dict[tuple[str, str], Line]] = {}
    for line in lines:
        if line["bench"] == "sgd-sweeps" and "shape" in line:
            where = line["device"] or line["cpu"], line["target"], line["k"]
            cell = line["shape"]["name"], line["schedule"]
            found.setdefault(where, {})[cell] = line
    parts = []
    for (device, target, k), cells in found.items():
        parts.append(f"### {device}, target {target}, K = {k}")
        parts += [_sweeps(cells), _details(cells), _bounds(cells, copy_gb_per_s)]
    return "\n\n".join(part for part in parts if part)


def _ms(line: Line | None) -> float | None:
    """Return the least time of a cell; None for one that was not run."""
    return min(line["trials_ms"]) if line and line["trials_ms"] else None


def _names(cells: dict[tuple[str, str], Line], place: int) -> list[str]:
    return list(dict.fromkeys(cell[place] for cell in cells))


def _sweeps(cells: dict[tuple[str, str], Line]) -> str:
    """Return ms of a sweep, and the ratio to `BASE`, of shapes by schedules."""
    shapes, schedules = _names(cells, 0), _names(cells, 1)
    rows, ratios = [], {}
    for shape in shapes:
        base, row = _ms(cells.get((shape, BASE))), []
        for schedule in schedules:
            line = cells.get((shape, schedule))
            ms = _ms(line)
            text = "not run" if line else ""
            if ms is not None:
                text = f"{ms:.4g}"
            if ms is not None and base:
                text += f" ({ms / base:.2f})"
                kind = line["shape"]["kind"]
                ratios.setdefault((kind, schedule), []).append(ms / base)
            row.append(text)
        some = next(line["shape"] for cell, line in cells.items() if cell[0] == shape)
        rows.append([shape, f"{some['edges'] / 1e6:.3g}M", some["degree"], *row])
    for kind in dict.fromkeys(kind for kind, _ in ratios):
        means = (ratios.get((kind, schedule)) for schedule in schedules)
        shown = [f"{statistics.geometric_mean(m):.2f}" if m else "" for m in means]
        rows.append([f"geometric mean, {kind}", "", "", *shown])
    return markdown_table(["ms (of edge_locked)", "E", "d", *schedules], rows)


def _details(cells: dict[tuple[str, str], Line]) -> str:
    """Return a table of preparation, groups, and predicted times by cell."""
    rows = []
    for (shape, schedule), line in cells.items():
        ms, base = _ms(line), _ms(cells.get((shape, BASE)))
        cell = [shape, schedule, f"{ms:.4g}" if ms else line.get("reason", "")]
        prepared, pays = line.get("prepare_ms"), ""
        if ms and base and prepared:
            # Beside the order, which edges with locks have, too.
            more = prepared - cells[shape, BASE].get("prepare_ms", 0)
            pays = "never" if ms >= base else f"{max(more, 0) / (base - ms):.3g}"
            pays = "" if schedule == BASE else pays
        guess = line.get("predicted_ms")
        ratio = f"{guess / ms:.2f}" if guess and ms else ""
        cell += [line.get("gb_per_s", ""), f"{prepared:.4g}" if prepared else "", pays]
        groups, passes = line.get("groups"), line.get("passes")
        cell += [groups or "", passes or "", f"{guess:.4g}" if guess else "", ratio]
        rows.append(cell)
    head = ["shape", "schedule", "ms", "GB/s", "prepared in ms", "sweeps to pay back"]
    head += ["groups", "passes", "predicted ms", "predicted / measured"]
    return markdown_table(head, rows)


def _bounds(cells: dict[tuple[str, str], Line], copy_gb_per_s: float) -> str:
    """Return the best serialisable schedule of each shape over its bounds (CUDA)."""
    rows = []
    for shape in _names(cells, 0):
        own = {s: line for (n, s), line in cells.items() if n == shape and s != RACY}
        times = {s: ms for s, line in own.items() if (ms := _ms(line))}
        chains = [line["chain_ms"] for line in own.values() if "chain_ms" in line]
        if not (times and chains):
            continue
        best = min(times, key=times.__getitem__)
        moved = own[best]["shape"]["edges"] * (12 + 16 * own[best]["k"])
        moved_ms = moved / copy_gb_per_s / 1e6
        over = times[best] / max(chains[0], moved_ms)
        shown = [f"{n:.4g}" for n in (times[best], moved_ms, chains[0], over)]
        rows.append([shape, best, *shown])
    head = ["shape", "best", "ms", "bytes, ms", "chain, ms", "over the larger"]
    return markdown_table(head, rows) if rows else ""


def main() -> None:
    """Print the tables of the files named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.sgd.report")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--copy", type=float, default=COPY_GB_PER_S, help="GB/s")
    arguments = parser.parse_args()
    texts = (path.read_text(encoding="utf-8") for path in arguments.files)
    lines = [json.loads(line) for text in texts for line in text.splitlines() if line]
    print(tables(lines, arguments.copy))


if __name__ == "__main__":
    main()
