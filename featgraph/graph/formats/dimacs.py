"""Shortest path files of the 9th DIMACS implementation challenge (``.gr``)."""

from __future__ import annotations

from featgraph.graph.formats.layout import Layout, check_claims, is_count
from featgraph.graph.formats.text import Text

__all__ = ["dimacs_layout"]


def dimacs_layout(text: Text) -> Layout:
    """Return the layout of arcs ``a u v w`` below a line ``p sp V E``."""
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
        known = {"base": 1, "vertex_count": vertices, "entries": arcs}
        return Layout.of(text, end, "iii", "c", prefix="a", **known)
    text.fail("no problem line", len(text.data), got="the end of the file")
