"""Which rows kernels store in windows, in each form, and the bytes that they count."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms as al
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.row_messages import Sending

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.config import config
from featgraph.ranks.exchange.gpu_transport import WindowRows
from featgraph.ranks.exchange.host_rows import HostRows
from featgraph.ranks.exchange.vertex_sets import packed, unpacked
from featgraph.runtime.devices.choose import choose_device
from tests.ranks.test_emulated import V, make_graph
from tests.ranks.test_windows import rows_of
from tests.simt.gpu import Gpu


@pytest.mark.parametrize("form", ["auto", "all", "ms", "vr", "vr-list"])
def test_forms_record_which_rows_are_stored(gpu: Gpu, form: str) -> None:
    """Those of all vertices, ghosts, or what changed; bytes are counted exactly.

    The second time slots are used that forms have left as they found them.
    """
    shards = make_graph(500).partition(cuts=[0, 40, 90, V])

    def on_a_rank(engine: Engine) -> None:
        shard, device = shards[engine.rank], choose_device("cuda")
        count, rows = shard.numbers.size, device.rows
        transport = WindowRows(shard, engine, device)
        array = np.full(count, 0x77, np.uint8)
        values = rows.held(rows.upload(array), array.shape)
        changed = np.zeros(count, np.bool_)
        changed[: shard.own : 7] = True
        sending = Sending("auto" if form == "auto" else form)
        words = device.sets.upload(packed(changed))
        for _ in range(3):
            ghosts = transport.share([values], words, sending)
        came = int(device.sets.count(ghosts))
        owned = [range(a, b) for a, b in itertools.pairwise([0, 40, 90, V])]
        first = {v for r in owned for v in list(r)[::7]}
        assert came == sum(v in first for v in shard.numbers[shard.own :])
        channel: Any = transport._rows(sending)
        slots = channel._boxes._window.memory
        stored = int((device.download(slots) == 0x77).sum())
        meant = {"all": V - shard.own, "ms": count - shard.own}.get(form, came)
        assert stored == 2 * meant
        counted = transport.numbers.stored(engine.size).read(engine.rank)
        name = "vr-list" if form == "auto" else form
        for rank, listed in enumerate(shard.send_lists):
            marked = changed[: shard.own] if form == "all" else changed[listed]
            if rank == engine.rank:
                marked = marked[:0]
            octets = np.packbits(marked)
            bits = 4 * -(-marked.size // 32)
            size = {
                "all": bits + marked.size,
                "ms": bits + marked.size,
                "vr": bits + marked.sum(),
                "vr-list": np.count_nonzero(octets) + marked.sum(),
            }[name]
            assert counted[name][rank] == 3 * size
        assert {n for n, sent in counted.items() if sent.any()} == {name}

    run_ranks(3, on_a_rank)


def test_forms_of_a_channel_follow_each_other(gpu: Gpu) -> None:
    """With other rows and numbers each time, which move what stands in a slot."""
    order = np.random.default_rng(1).permutation(V)
    shards = make_graph(500).partition(cuts=[0, 40, 90, V], order=order)
    forms = ("vr", "auto", "ms", "vr-list", "all", "auto", "vr-list", "vr", "all")
    # The first ones are as wide as any: the window stays, with what is left there.
    wide = [(form, 3, 8) for form in ("auto", "all")]
    sizes = np.random.default_rng(0).integers(1, (4, 9), (len(forms), 2)).tolist()
    cases = [*wide, *((f, *two) for f, two in zip(forms, sizes, strict=True))]

    def on_a_rank(engine: Engine) -> None:
        shard, rng = shards[engine.rank], np.random.default_rng(engine.rank)
        cpu, device = choose_device("cpu"), choose_device("cuda")
        transport, host = (
            WindowRows(shard, engine, device),
            HostRows(shard, engine, cpu),
        )
        count = shard.numbers.size
        for number, (form, width, entries) in enumerate(cases):
            share = (0.6, 0.05, 0.0)[number % 3]
            array = rng.random((count, width)).astype(np.float32)
            changed = packed(rng.random(count) < share)
            result = device.upload(np.ones(entries))
            transport.numbers.add(result, "sum")
            values = rows_of(device, array.copy())
            sets = device.sets.upload(changed)
            ghosts = transport.share([values], sets, Sending(form))
            meant = host.share([array], changed)
            np.testing.assert_array_equal(device.download(ghosts), meant)
            found = device.rows.download(values.array, array.shape)
            np.testing.assert_array_equal(found, array)
            np.testing.assert_array_equal(device.download(result), [3.0] * entries)
        stored = transport.numbers.stored(engine.size).read(engine.rank)["numbers"]
        total = 8 * sum(entries for _, _, entries in cases)
        assert stored.tolist() == [total * (r != engine.rank) for r in range(3)]

    run_ranks(3, on_a_rank)


def test_ghosts_of_all_vertices_may_begin_anywhere(gpu: Gpu) -> None:
    """Numbers follow each other from where vertices that are no ghosts have -1."""
    whole = fg.Graph.from_edges([3, 4], [0, 0], vertex_count=40)
    shards = whole.partition(cuts=[0, 1, 40])

    def on_a_rank(engine: Engine) -> list[int]:
        shard, device = shards[engine.rank], choose_device("cuda")
        count = shard.numbers.size
        changed = device.sets.upload(packed(np.arange(count) < shard.own))
        ghosts = WindowRows(shard, engine, device).share([], changed, Sending("all"))
        return np.flatnonzero(unpacked(device.download(ghosts))[:count]).tolist()

    # Rank 0 has vertex 0, and 3 and 4 behind it.
    assert run_ranks(2, on_a_rank) == [[1, 2], []]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("form", ["all", "auto"])
def test_a_run_records_what_it_has_sent(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Replays and the host send equal bytes, counted from the sets of the run."""
    ends = np.arange(39)
    whole = fg.Graph.from_edges(ends, ends + 1, vertex_count=40, directed=False)
    name = "vr-list" if form == "auto" else form

    def on_a_rank(_: Engine) -> Any:
        graph = fg.distribute(whole, cuts=[0, 32, 40])
        run = al.bfs(graph, 26, target="cuda", exchange=form).run
        assert f"as {name!r}" in run.explain()
        # Bytes before the first exchange of a graph are not of the run.
        sent = {kind: run.sent_bytes[kind] for kind in (name, "numbers")}
        return run.supersteps, sent

    found: dict[bool, Any] = {}
    for replays in (False, True):
        monkeypatch.setattr(config, "replay", replays)
        found[replays] = run_ranks(2, on_a_rank)
    assert found[True] == found[False]
    for rank, (supersteps, sent) in enumerate(found[True]):
        assert supersteps == 27
        # One vertex of each rank is a ghost, and changes once, by a float32.
        own = (32, 8)[rank]
        whole_range = supersteps * (4 * -(-own // 32) + 4 * own)
        assert sent[name][1 - rank] == (5 if form == "auto" else whole_range)
        assert sent["numbers"][1 - rank] == 8 * supersteps
        assert sent[name][rank] == sent["numbers"][rank] == 0
