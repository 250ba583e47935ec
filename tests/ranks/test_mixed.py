"""Ranks of several hosts, on an emulated GPU: windows within, messages between them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect
from featgraph.distributed import current_engine, run_ranks

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.cuda.driver import IpcMemory
from featgraph.ranks.exchange import window_channel, windows
from featgraph.ranks.exchange.gpu_transport import MixedRows, near_ranks
from featgraph.ranks.exchange.host_rows import HostRows
from featgraph.ranks.exchange.vertex_sets import packed
from featgraph.runtime.devices.choose import choose_device
from tests.ranks.test_overlap_messages import lowered
from tests.ranks.test_overlap_windows import V, make_graph
from tests.simt.gpu import Gpu

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")


@contextmanager
def on_hosts(hosts: str) -> Iterator[None]:
    """Have ranks be on hosts of some names."""

    def place() -> str:
        return f"{hosts[current_engine().rank]}\n1\nemulated"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "place_of_rank", place)
        yield


def program(graph: fg.Graph, target: str) -> tuple[fg.Run, Any]:
    return lowered(graph, target, 2)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("hosts", "ways"),
    [
        ("aab", {"windows", "messages"}),
        pytest.param("abab", {"windows", "messages"}, marks=pytest.mark.slow),
        pytest.param("aaa", {"windows"}, marks=pytest.mark.slow),
        pytest.param("abc", {"messages"}, marks=pytest.mark.slow),
    ],
)
def test_programs_run_on_ranks_of_several_hosts(
    gpu: Gpu, hosts: str, ways: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cuts = make_graph(), [0, *[12, 32, 50][: len(hosts) - 1], V]
    meant, wanted = program(whole, "cpu")
    used: set[str] = set()
    post = window_channel.Channel.post

    def posts(self: Any, parts: Any, **given: Any) -> Any:
        used.add("windows")
        return post(self, parts, **given)

    monkeypatch.setattr(window_channel.Channel, "post", posts)

    def on_a_rank(engine: Any) -> Any:
        run, labels = program(fg.distribute(whole, cuts=cuts), "cuda")
        return run.active_counts, labels, sum(run.forms.values())

    with on_hosts(hosts):
        for counts, labels, messages in run_ranks(len(hosts), on_a_rank):
            assert counts == meant.active_counts
            np.testing.assert_array_equal(labels, wanted)
            used |= {"messages"} if messages else set()
    assert used == ways


def test_rows_reach_ghosts_as_on_the_host(gpu: Gpu) -> None:
    """Near ranks get an announcement of no message: 16 bytes."""
    shards = make_graph().partition(cuts=[0, 12, 32, V])

    def on_a_rank(engine: Any) -> None:
        shard, rng = shards[engine.rank], np.random.default_rng(engine.rank)
        cpu, device = choose_device("cpu"), choose_device("cuda")
        near, rows = near_ranks(engine, device), device.rows
        mixed = MixedRows(shard, engine, device, near, Counter())
        array = rng.random((shard.numbers.size, 3))
        changed = packed(rng.random(shard.numbers.size) < 0.5)
        held = rows.held(rows.upload(array.copy()), array.shape)
        words = device.sets.upload(changed)
        for _ in range(2):
            before = engine.traffic.copy()
            ghosts = mixed.share([held], words)
            sent = (engine.traffic - before).sent
        meant = HostRows(shard, engine, cpu).share([array], changed)
        np.testing.assert_array_equal(device.download(ghosts), meant)
        np.testing.assert_array_equal(rows.download(held.array, array.shape), array)
        for rank in {0, 1, 2} - {engine.rank}:
            assert (sent[rank] == 16) == near[engine.rank, rank]
        stored = mixed.numbers.stored(engine.size).read(engine.rank)["vr-list"]
        others = near[engine.rank] & (np.arange(3) != engine.rank)
        np.testing.assert_array_equal(stored > 0, others)

    with on_hosts("aab"):
        run_ranks(3, on_a_rank)


def test_a_pair_that_cannot_be_mapped_sends_messages(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the GPUs of one host, those of ranks 0 and 2 do not reach each other."""
    whole, opened = make_graph(), [0] * 3
    wanted = program(whole, "cpu")[1]
    open_ = IpcMemory.open

    def opens(self: Any, described: bytes) -> Any:
        """Refuse, when all are tried in turn, what rank 2 has of rank 0."""
        rank = current_engine().rank
        opened[rank] += 1
        if (rank, opened[rank]) == (2, 1):
            raise fg.DeviceError("no peer access")
        return open_(self, described)

    monkeypatch.setattr(IpcMemory, "open", opens)

    def on_a_rank(engine: Any) -> Any:
        labels = program(fg.distribute(whole, cuts=[0, 9, 50, V]), "cuda")[1]
        return near_ranks(engine, choose_device("cuda")), labels

    for near, labels in run_ranks(3, on_a_rank):
        assert np.argwhere(~near).tolist() == [[0, 2], [2, 0]]
        np.testing.assert_array_equal(labels, wanted)


def test_a_near_rank_that_posts_nothing_is_named(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "timeout_of", lambda engine: 1e-3)
    whole = make_graph()

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(whole, cuts=[0, 12, 32, V])
        exchange = graph.ranks.exchange(choose_device("cuda"))
        words = exchange.own(None)
        exchange.share([], words)
        if engine.rank == 1:  # it does what others wait for, but stores nothing
            engine.barrier(about="rows of ghosts of this host")
            exchange.transport._ghosts._far.share([], words)
        elif engine.rank == 2:
            exchange.share([], words)
        else:
            with pytest.raises(fg.WorkerLostError, match="rank 1 of 3 was") as found:
                exchange.share([], words)
            assert found.value.rank == 1

    with on_hosts("aab"):
        run_ranks(3, on_a_rank)


def test_windows_are_given_back_when_no_rank_uses_them(gpu: Gpu) -> None:
    def on_a_rank(engine: Any) -> None:
        device = choose_device("cuda")
        boxes = windows.Mailboxes(engine, device, [64] * 2, "numbers")
        registry = windows._registry_of(engine)
        if engine.rank == 0:
            del boxes
            gc.collect()
        windows.Mailboxes(engine, device, [64] * 2, "numbers")
        # The other one still has it.
        assert 1 in registry._windows
        if engine.rank == 1:
            del boxes
        gc.collect()
        kept = windows.Mailboxes(engine, device, [64] * 2, "numbers")
        assert set(registry._windows) == {3}
        del kept

    run_ranks(2, on_a_rank)


@pytest.mark.parametrize(
    ("places", "near"),
    [
        (["a 1 x", "a 1 x"], {(0, 1)}),  # threads of a process
        (["a 1 x", "a 2 y"], {(0, 1)}),
        (["a 1 x", "a 2 x"], set()),  # one GPU
        (["a 1 x", "b 2 y"], set()),  # two hosts
        (["a 1 x", "a 1 x", "a 2 y"], set()),
        (["a 1 x", "a 2 y", "b 1 x", "b 2 y"], {(0, 1), (2, 3)}),
        (["a 1 x", "b 1 x", "a 2 y", "b 2 x"], {(0, 2)}),
    ],
)
def test_windows_are_for_a_process_or_gpus_of_a_host(
    places: list[str], near: set[tuple[int, int]]
) -> None:
    found = windows._may_reach([place.split() for place in places])
    assert found.diagonal().all()
    assert (found == found.T).all()
    assert {(r, o) for r, o in np.argwhere(found).tolist() if r < o} == near
