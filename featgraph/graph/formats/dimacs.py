"""Shortest path files of the 9th DIMACS implementation challenge (``.gr``)."""

from __future__ import annotations

import numpy as np

from featgraph.graph.building.edges import EdgeList
from featgraph.graph.formats.matrix_market import check_claims, check_range, is_count
from featgraph.graph.formats.text import Text, scan_table

__all__ = ["parse_dimacs", "problem_line"]


def parse_dimacs(text: Text) -> EdgeList:
    """Read arcs ``a u v w`` after a line ``p sp V E``; see `read_dimacs`."""
    vertices, arcs, start = problem_line(text)
    table = scan_table(
        text,
        start,
        "iii",
        comments="c",
        prefix="a",
        field_count=3,
        row_count=arcs,
    )
    check_range(table, vertices)
    sources, targets, weights = table.integers
    return EdgeList(
        (sources - 1).astype(np.int32),
        (targets - 1).astype(np.int32),
        weights.copy(),
        vertices,
        directed=True,
    )


def problem_line(text: Text) -> tuple[int, int, int]:
    """Return V, the number of arcs, and the byte at which they begin."""
    for begin, end, line in text.lines():
        if not line or line.startswith("c"):
            continue
        words = line.split()
        is_problem = len(words) == 4 and words[:2] == ["p", "sp"]
        if not is_problem or not all(is_count(word) for word in words[2:]):
            text.fail(
                "malformed problem line",
                begin,
                expected="p sp VERTICES ARCS, before the first arc",
            )
        vertices, arcs = int(words[2]), int(words[3])
        check_claims(text, begin, end, vertices, arcs, len("a 1 1 1\n"))
        return vertices, arcs, end
    text.fail("no problem line", len(text.data), got="the end of the file")
