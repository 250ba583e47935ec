"""The benches of graphs that change: every contender is right, and faults are seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.dynamic import batches, contenders, following, stream
from bench.record import Recorder

BENCHES: dict[str, Any] = {
    "dynamic-batches": batches,
    "dynamic-following": following,
    "dynamic-stream": stream,
}


def run(name: str, **given: Any) -> Recorder:
    recorder = Recorder(name, [name], None)
    module = BENCHES[name]
    module.run(SimpleNamespace(**{**module.DEFAULTS, **given}), recorder)
    return recorder


def test_batches_are_right_by_every_contender() -> None:
    recorder = run(
        "dynamic-batches",
        graph=["rmat-7-4"],
        sizes=[20],
        repeat=1,
        rounds=1,
        mixed=True,
    )
    assert not recorder.has_failures
    made = {(line["contender"], line["operation"]) for line in recorder.lines}
    operations = ["initialise", "insert", "delete", "protocol", "stacked"]
    on_host = contenders.CONTENDERS.keys() - {"dynamic, batches on the GPU"}
    assert made >= {(c, o) for c in on_host for o in operations}
    assert made >= {("dynamic", "mixed"), ("dynamic", "two batches")}


def test_a_contender_that_loses_edges_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = contenders.Sorted.insert

    def losing(self: Any, batch: Any) -> None:
        insert(self, batch.split(2)[0] if self.keys.size else batch)

    monkeypatch.setattr(contenders.Sorted, "insert", losing)
    recorder = run(
        "dynamic-batches", graph=["rmat-7-4"], sizes=[20], repeat=1, only=["sort all"]
    )
    assert recorder.has_failures


def test_updates_and_streams_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = run(
        "dynamic-following", graph=["kron-7"], sizes=[1, 0.01], repeat=1,
        only=["pagerank", "triangle_count"], kinds=["both"],
    )  # fmt: skip
    assert not recorder.has_failures
    assert len(recorder.lines) == 8
    rng = np.random.default_rng(0)
    events = stream.fg.TemporalEdges(
        *rng.integers(0, 40, (2, 900)), rng.integers(0, 60 * stream.DAY, 900)
    )
    monkeypatch.setattr(stream, "read_events", lambda: (events, "drawn here"))
    recorder = run("dynamic-stream", days=[20, 2], skip=0, repeat=4)
    assert not recorder.has_failures
    parts = {(line["contender"], line["what"]) for line in recorder.lines}
    assert ("following", "step") in parts
    assert ("anew", "triangles") in parts
