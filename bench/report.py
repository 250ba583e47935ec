"""Tables from result lines: ``python -m bench.report FILE...``.

A table for each bench and command, a row for each line. Its columns are the fields that
are numbers or words; those that are the same on all lines stand above it. Long
lists and nested fields are in the files alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]

#: Fields that are no columns: place, command and versions of a run, and keys of cells.
HIDDEN = {
    "bench", "command", "commit", "time", "device", "cpu", "cores", "versions",
    "trials_ms", "cell", "error", "is_cuda_error", "ncu",
}  # fmt: skip
#: Fields of bytes that are shown as a rate, over the median.
RATES = {"bytes": "compulsory GB/s", "gathered_bytes": "uncached GB/s"}
#: Columns that come first, and the last one.
FIRST, LAST = ("graph", "contender", "k", "median ms", "range ms"), "check"
#: Longest text of a cell, and values of a list that is shown.
WIDEST, SHORTEST = 60, 4


def print_report(lines: list[Line]) -> None:
    """Print a table for each bench among `lines` and place that it was measured on."""
    tables: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line in lines:
        tables.setdefault((line["bench"], _place(line)), []).append(_cells(line))
    for (bench, place), rows in tables.items():
        print(f"{bench}: {place}")
        columns = list(dict.fromkeys((*FIRST, *(name for row in rows for name in row))))
        same = {
            name: rows[0][name]
            for name in columns
            if name not in (*FIRST, LAST)
            and len({row.get(name) for row in rows}) == 1 < len(rows)
        }
        if same:
            print("  ", ", ".join(f"{name} {value}" for name, value in same.items()))
        shown = [
            n for n in columns if n not in {*same, LAST} and any(n in r for r in rows)
        ]
        shown += [LAST] * any(LAST in row for row in rows)
        print_table([shown, *([row.get(name, "") for name in shown] for row in rows)])
        print()


def print_table(rows: list[list[str]]) -> None:
    """Print rows of text, of which the first has the headings, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    every = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in every)


def _place(line: Line) -> str:
    where = line["device"] or f"{line['cpu']}, {line['cores']} cores"
    commit, changed = line["commit"][:12], "+" * line["commit"].endswith("+")
    return f"{where}, commit {commit}{changed}, {line['command']}"


def _cells(line: Line) -> dict[str, str]:
    """Return the cells of a line by the headings of their columns."""
    found: dict[str, str] = {}
    flat = {
        **line,
        **line.get("stages", {}),
        "graph": line.get("graph", {}).get("name"),
    }
    median = line.get("median_ms")
    for name, value in flat.items():
        if isinstance(value, list) and len(value) <= SHORTEST:
            value = " / ".join(map(str, value))
        if name in RATES and median:
            found[RATES[name]] = f"{value / median / 1e6:.0f}"
        elif name not in HIDDEN and isinstance(value, str | int | float):
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            found[name.replace("_", " ")] = text[:WIDEST]
    if trials := line.get("trials_ms"):
        found["range ms"] = f"{min(trials):.4g}-{max(trials):.4g}"
    if "error" in line:
        found[LAST] = "RAISED"
    elif line.get("checks") is not None:
        found[LAST] = "right" if line["checks"]["ok"] else "WRONG"
    return found


def lines_of(files: Iterable[str]) -> list[Line]:
    """Return the result lines of files."""
    texts = (Path(file).read_text(encoding="utf-8") for file in files)
    return [json.loads(line) for text in texts for line in text.splitlines() if line]


if __name__ == "__main__":
    print_report(lines_of(sys.argv[1:]))
