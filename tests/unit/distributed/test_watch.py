"""Messages between a rank and its launcher."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.base.activity import PLACE_BYTES, Activity, doing, place_in
from featgraph.graph.formats.readers import read_edge_list
from featgraph.ranks.launching.agent import INHERITED
from featgraph.ranks.launching.roll import Loss
from featgraph.ranks.launching.start import Watch, watch_of_process

LOSS = Loss(1, "node1", "was ended by SIGKILL", 7, "0 (vertex: mix)")


class Launcher:
    """The other end of a rank's socket."""

    def __init__(self) -> None:
        self.end, given = socket.socketpair()
        self.activity = Activity()
        self.watch = Watch(0, 3, 30.0, given, self.activity)
        self.given = given
        self._file = self.end.makefile("r")

    def hear(self, kind: str) -> dict[str, Any]:
        """Return the rank's next message of a kind."""
        for line in self._file:
            message: dict[str, Any] = json.loads(line)
            if message["is"] == kind:
                return message
        raise EOFError

    def send(self, **fields: Any) -> None:
        self.end.sendall(json.dumps(fields).encode() + b"\n")


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    made.send(**{"is": "present"})
    made.watch.start()
    assert made.hear("hello")["timeout"] == 30.0
    yield made
    made.end.shutdown(socket.SHUT_RDWR)
    for thread in threading.enumerate():
        if thread.name == "featgraph watch":
            thread.join(20)
    for end in (made.given, made._file, made.end):
        end.close()


def test_what_a_rank_does_is_reported(launcher: Launcher, tmp_path: Path) -> None:
    launcher.activity.enter(4, "1 (reduce: largest)")
    launcher.activity.checkpoints = str(tmp_path)
    while (beat := launcher.hear("beat"))["superstep"] is None:
        pass
    assert (beat["doing"], beat["call"]) == ("computing", "")
    assert (beat["superstep"], beat["phase"]) == (4, "1 (reduce: largest)")
    assert beat["checkpoints"] == str(tmp_path)
    with launcher.activity.doing("loading", tmp_path / "web.mtx"):
        while (beat := launcher.hear("beat"))["doing"] != "loading":
            pass
    assert beat["what"] == str(tmp_path / "web.mtx")
    with launcher.watch.waiting("barrier(), its exchange 3"):
        while (beat := launcher.hear("beat"))["doing"] != "waiting":
            pass
    assert beat["call"] == "barrier(), its exchange 3"


def test_what_else_is_waited_for_is_reported(launcher: Launcher) -> None:
    awaited = ["what rank 1 stores"]
    end = launcher.watch.watch_also(lambda: awaited[0])
    with launcher.activity.doing("compiling"):
        while (beat := launcher.hear("beat"))["doing"] != "waiting":
            pass
        assert beat["call"] == "what rank 1 stores"
        awaited[0] = ""
        while (beat := launcher.hear("beat"))["doing"] != "compiling":
            pass
        assert beat["call"] == ""
        awaited[0] = "more"
        end()
        assert [launcher.hear("beat")["doing"] for _ in range(3)][-1] == "compiling"


def test_the_compiler_is_reported(launcher: Launcher) -> None:
    from numba.core.compiler_lock import global_compiler_lock

    assert launcher.activity.kind == "computing"
    with global_compiler_lock, global_compiler_lock:
        assert launcher.activity.kind == "compiling"
    assert launcher.activity.kind == "computing"


def test_readers_report_what_they_load(tmp_path: Path) -> None:
    path = tmp_path / "web.txt"
    path.write_text("0 1\n")
    assert read_edge_list(path=path).edge_count == 1
    activity = Activity()
    with activity.doing("writing", "a"), activity.doing("loading", "b"):
        assert (activity.kind, activity.what) == ("loading", "b")
    assert activity.kind == "computing"
    with pytest.raises(ZeroDivisionError), doing("loading"):
        _ = 1 / 0


def test_a_place_is_read_from_outside() -> None:
    activity, page = Activity(), bytearray(PLACE_BYTES)
    assert place_in(page) is None
    activity.page = memoryview(page)
    for superstep, phase in ((3, "1 (edge: ä)"), (0, "0"), (7, "x" * 1000)):
        activity.enter(superstep, phase)
        found = place_in(page)
        assert found is not None
        assert found[0] == superstep
        assert phase.startswith(found[1])
        assert found[1] == phase or len(found[1]) > 400


def test_the_lost_rank_is_raised(
    launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "00000003").mkdir()
    (tmp_path / "00000010").mkdir()
    (tmp_path / ".new-1").mkdir()
    woken = threading.Event()
    launcher.watch.when_lost(woken.set)
    launcher.watch.raise_lost()
    launcher.send(**LOSS.message() | {"checkpoints": str(tmp_path)})
    assert woken.wait(20)
    with pytest.raises(fg.WorkerLostError) as raised:
        launcher.watch.raise_lost()
    error = raised.value
    assert (error.rank, error.host, error.superstep) == (1, "node1", 7)
    assert error.phase == "0 (vertex: mix)"
    assert error.checkpoint == str(tmp_path / "00000010")
    for part in ("rank 1 of 3 on node1 was lost", "SIGKILL", "superstep 7, phase 0"):
        assert part in str(error)
    assert "rank 1 of 3 on node1 was lost" in capsys.readouterr().err
    known = launcher.watch.find_loss()
    assert str(known) == str(error)
    late = threading.Event()
    launcher.watch.when_lost(late.set)
    assert late.is_set()


def test_what_a_rank_offers_all_can_await(launcher: Launcher) -> None:
    launcher.watch.offer("meeting", "1234")
    offer = launcher.hear("offer")
    launcher.send(**offer)
    assert launcher.watch.await_offer("meeting") == "1234"
    launcher.send(**LOSS.message())
    with pytest.raises(fg.WorkerLostError):
        launcher.watch.await_offer("nothing")


def test_a_launcher_that_has_gone(launcher: Launcher) -> None:
    launcher.end.shutdown(socket.SHUT_RDWR)
    with pytest.raises(fg.DistributedError, match="the launcher has ended"):
        launcher.watch.await_offer("meeting")


def test_how_a_rank_ends(launcher: Launcher) -> None:
    launcher.watch.fail("ValueError: row 7 is bad")
    assert launcher.hear("failed")["text"] == "ValueError: row 7 is bad"
    launcher.watch.end()
    assert launcher.hear("ending") == {"is": "ending"}


def test_a_forked_child_sends_nothing(launcher: Launcher) -> None:
    launcher.watch._process += 1
    launcher.watch.fail("the child's")
    launcher.watch._process -= 1
    launcher.watch.fail("the rank's")
    assert launcher.hear("failed")["text"] == "the rank's"


@pytest.mark.parametrize("descriptors", ["", "7", "x,y", "1000000,1000001"])
def test_a_socket_that_is_not_open(
    descriptors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INHERITED, descriptors)
    with pytest.raises(fg.DistributedError, match="socket to the launcher") as raised:
        watch_of_process(0, 2, 30.0)
    assert "keep open files" in str(raised.value)


def test_without_a_launcher_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INHERITED, raising=False)
    assert watch_of_process(0, 2, 30.0) is None


def test_how_often_ranks_were_started(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("FEATGRAPH_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert fg.distributed.restart_count() == 0
    monkeypatch.setitem(os.environ, names[1], "2")
    assert fg.distributed.restart_count() == 2
    monkeypatch.setitem(os.environ, names[0], "-3")
    with pytest.raises(fg.ArgumentError, match="FEATGRAPH_RESTART_COUNT"):
        fg.distributed.restart_count()
