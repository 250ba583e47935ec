"""Components whose vertices read the result of a reduce, so that its change matters."""

from __future__ import annotations

import featgraph as fg

__all__ = ["adopt", "crest", "lowest"]


@fg.reduce(into="wave", combine="max")
def crest(f, v, d):  # type: ignore[no-untyped-def]
    return d.label[v] // d.height


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.label[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    d.runs[v] = d.runs[v] + 1
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v] and v != d.wave[0]
