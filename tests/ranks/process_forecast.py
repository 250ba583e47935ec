"""Runs a program on this rank in each form, and prints what it sent and was foretold.

``python -m tests.ranks.process_forecast``, with a launcher's variables.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import featgraph as fg
from bench.distributed.works import works_of
from featgraph.graph import uniform
from tests.ranks.test_forms import Links

V = 400
K = 3
#: Bytes of the row of a vertex, and of what ends a message.
ROW, FORM = 4 * K, 1


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.label[u, f]


@fg.vertex
def lower(f, v, d):
    if d.low[v, f] < d.label[v, f]:
        d.label_next[v, f] = d.low[v, f]
        return True
    return False


lowering = fg.foldmap(lowest, lower)


def sent_and_foretold(engine: Any) -> list[list[Any]]:
    """Return for "all", "ms" and "vr" the bytes of each superstep, twice.

    Those that the engine has counted, of rows; and those of the forecast, and of the
    sets that the run has recorded.
    """
    whole = uniform(V, 900, seed=3, directed=False)
    foretold = fg.distributed.forecast(whole, [engine.size], row_bytes=ROW)
    counts, partition = foretold.counts[0], foretold.partitions[0]
    graph = fg.distribute(whole)
    if engine.size == 1:
        assert counts.sent.tolist() == counts.received.tolist() == [0]
        return []
    shard = graph.shard  # type: ignore[attr-defined]
    assert partition.cuts.tolist() == shard.partition.cuts.tolist()
    listed = [link.size for link in shard.send_lists]
    peers = sum(size > 0 for size in listed)
    found = []
    for form in ("all", "ms", "vr"):
        links = Links(engine)
        labels = np.random.default_rng(1).random((V, K)).astype(np.float32)
        state = fg.State(
            graph,
            label=fg.vertex_property(labels, iterated=True),
        )
        run = fg.iterate(
            lowering, state, exchange=form, record_active=True, overlap=False,
            target="cpu",
        )  # fmt: skip
        sizes = [sum(one) for one in links.sizes]
        works = works_of(whole, run, partition)
        rows = {
            "all": [counts.own[engine.rank] * peers] * len(works),
            "ms": [counts.sent[engine.rank]] * len(works),
            "vr": [work.sent[engine.rank] for work in works],
        }[form]
        # Beside the rows, a bit for each listed one, where not all changed.
        beside = [sum(_beside(links.sizes, listed, form, n)) for n in range(len(sizes))]
        meant = [ROW * int(n) + more for n, more in zip(rows, beside, strict=True)]
        found.append([form, sizes, meant])
        engine.begin_bytes = links._begin_bytes
    return found


def _beside(
    sizes: list[list[int]], listed: list[int], form: str, number: int
) -> list[int]:
    """Return the bytes of a superstep's messages that are no rows, by rank."""
    found = []
    for size, count in zip(sizes[number], listed, strict=True):
        bits = -(-count // 8)
        is_full = form != "vr" and size % ROW == FORM
        found.append(0 if size == 0 else FORM + (0 if is_full else bits))
    return found


if __name__ == "__main__":
    engine = fg.distributed.init(timeout=60, engine="shared")
    print(json.dumps(sent_and_foretold(engine)))
