"""Constants of this machine are measured once, kept, and shared by ranks."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.ranks.cost import calibrate as module
from featgraph.ranks.cost.machine import H200
from featgraph.ranks.engines.links import LINKS


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


@pytest.fixture
def place(small: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of constants, which nothing measures."""
    monkeypatch.setattr(module, "_measure_whole", lambda *_: H200)
    fg.distributed.calibrate("cpu")
    (kept,) = small.glob("*.json")
    return kept


def test_constants_that_others_can_write_are_measured_again(place: Path) -> None:
    other = replace(H200, name="another")
    place.write_text(other.to_json())
    assert fg.distributed.calibrate("cpu") == other
    for path in (place, place.parent, place.parent.parent):
        mode = path.stat().st_mode
        path.chmod(0o777)
        with pytest.warns(fg.CacheWarning, match="measured again"):
            assert fg.distributed.calibrate("cpu") == H200
        path.chmod(mode)
        place.write_text(other.to_json())
        place.chmod(0o600)


@pytest.mark.parametrize("kind", ["fifo", "zeros", "link", "deep", "long"])
def test_files_that_are_no_constants_are_measured_again(
    place: Path, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    place.unlink()
    {
        "fifo": lambda: os.mkfifo(place, 0o600),
        "zeros": lambda: place.symlink_to("/dev/zero"),
        "link": lambda: place.symlink_to(tmp_path / "precious"),
        "deep": lambda: place.write_text("[" * 100_000),
        "long": lambda: place.write_text(" " * (module._MOST_BYTES + 1)),
    }[kind]()
    is_plain = kind in {"deep", "long"}
    with nullcontext() if is_plain else pytest.warns(fg.CacheWarning):
        assert fg.distributed.calibrate("cpu") == H200
    assert place.read_text() == H200.to_json()
    assert not place.is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


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


def test_ranks_are_described_in_one_way_or_in_several() -> None:
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
