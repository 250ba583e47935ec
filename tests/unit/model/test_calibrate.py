"""Constants of this machine are measured once, kept, and shared by ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.model import calibrate as module
from featgraph.model.links import LINKS
from featgraph.model.machine import H200


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(module.SMALL, "cpu", (64, 4))
    monkeypatch.setitem(module.LARGE, "cpu", {1: (512, 8), 8: (256, 8)})
    monkeypatch.setattr(module, "MESSAGES", (0, 64, 4096))
    monkeypatch.setattr(fg.config, "cache_dir", tmp_path)
    return tmp_path / "model"


def test_constants_are_measured_once(small: Path) -> None:
    machine = fg.distributed.calibrate("cpu")
    (kept,) = small.glob("*.json")
    assert fg.distributed.calibrate("cpu") == machine
    for curve in (machine.pull, machine.push, machine.row):
        assert 0 < curve.at(1) <= curve.at(8) < curve.at(16)
    assert machine.fixed_s > 0
    assert not machine.links
    kept.write_text(kept.read_text()[:50])
    again = fg.distributed.calibrate("cpu")
    assert kept.read_text() == again.to_json(), "a damaged file is written anew"


def test_ranks_have_one_machine_and_measure_their_link(small: Path) -> None:
    def on_a_rank(engine: Any) -> Any:
        return fg.distributed.calibrate("cpu", engine=engine)

    one, other = fg.distributed.run_ranks(2, on_a_rank)
    assert one == other
    (link,) = one.links
    assert link.name == "loopback"
    assert [size for size, _ in link.points] == [0, 64, 4096]
    graph = fg.Graph.from_edges([0, 1], [1, 0], vertex_count=40)
    found = fg.distributed.forecast(graph, [1, 2], on=(one, ["loopback", "nvlink"]))
    assert found.links[0] is link
    names = ["load ms", "work ms", "update ms", "loopback ms", "loopback push"]
    assert [n for n in found.rows()[1] if " " in n][-7:-2] == names
    assert found.times(0, link).latency == 0 < found.times(1, link).latency


def test_a_forecast_without_a_machine_has_no_times() -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 0], vertex_count=40)
    found = fg.distributed.forecast(graph, [1])
    assert not [name for name in found.rows()[0] if name.endswith(" ms")]
    with pytest.raises(fg.FeatGraphError, match="calibrate"):
        found.times(0, LINKS["gloo"])


def test_what_ranks_are_is_said_in_one_way_or_in_several() -> None:
    graph, forecast = fg.Graph.from_edges([0, 1], [1, 0]), fg.distributed.forecast
    for links in ("gloo", LINKS["gloo"], ["gloo"], (LINKS["gloo"],)):
        assert forecast(graph, [2], on=(H200, links)).links == (LINKS["gloo"],)
    wrong: Any
    for wrong in (H200, (H200,), ("gloo", H200), "gloo"):
        with pytest.raises(fg.ArgumentError, match="pair"):
            forecast(graph, [2], on=wrong)
    for size in (0, -4, True):
        with pytest.raises(fg.ArgumentError, match="row_bytes"):
            forecast(graph, [2], row_bytes=size)
