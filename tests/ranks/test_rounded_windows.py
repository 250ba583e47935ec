"""Rows that an emulated GPU rounds on their way into windows of others."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.row_loops import widen
from featgraph.ranks.exchange.row_messages import Sending

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.ranks.exchange.gpu_transport import WindowRows
from featgraph.ranks.exchange.host_rows import HostRows
from featgraph.ranks.exchange.vertex_sets import packed
from featgraph.runtime.devices.choose import choose_device
from tests.ranks import test_rounded
from tests.ranks.test_emulated import V, make_graph
from tests.ranks.test_partitions import GRAPHS
from tests.simt.gpu import Gpu


def any_reals(dtype: str, wire_dtype: str) -> Any:
    """Return reals of all kinds, halfway ones and those that are no number too."""
    rng, unsigned = np.random.default_rng(3), f"u{np.dtype(dtype).itemsize}"
    narrow = rng.integers(0, 1 << 16, 64).astype(np.uint16)
    narrow[:6] = 0, 0x8000, 1, 0x8001, 0x7BFF if wire_dtype == "float16" else 0x7F7F, 7
    exact = widen(narrow, np.dtype(dtype), wire_dtype)
    fraction, own = {"float16": 10, "bfloat16": 7}[wire_dtype], np.finfo(dtype).nmant
    half = 1 << (own - fraction - 1)
    with np.errstate(invalid="ignore"):
        off = [exact.view(unsigned) + np.array(n, unsigned) for n in (half, half - 1)]
        off += [exact.view(unsigned) + np.array(half + 1, unsigned)]
        near = np.concatenate([exact, *(one.view(dtype) for one in off)])
        least = np.finfo(dtype).smallest_subnormal
        near = np.concatenate([near, [np.nan, np.inf, -np.inf, 0, -0.0, least, 1e-6]])
        most = 65519.0 if wire_dtype == "float16" else 3.3e38
        return np.where(np.isfinite(near), np.clip(near, -most, most), near).astype(
            dtype
        )


@pytest.mark.parametrize("wire_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reals_are_rounded_as_on_the_host(
    gpu: Gpu, dtype: str, wire_dtype: str
) -> None:
    """Values that are not real stay as they are; one that is too large ends the run."""
    shards = make_graph(500).partition(cuts=[0, 64, V])
    reals = np.resize(any_reals(dtype, wire_dtype), (V, 3))

    def on_a_rank(engine: Engine) -> None:
        shard, device = shards[engine.rank], choose_device("cuda")
        transports = (
            WindowRows(shard, engine, device),
            HostRows(shard, engine, choose_device("cpu")),
        )
        count, rows, sending = (
            shard.numbers.size,
            device.rows,
            Sending("auto", wire_dtype),
        )
        changed = packed(np.arange(count) % 5 > 0)
        marked = device.sets.upload(changed)
        arrays = [reals[shard.numbers].copy(), np.arange(count, dtype=np.int16)]
        values = [rows.held(rows.upload(a.copy()), a.shape) for a in arrays]
        transports[0].share(values, marked, sending)
        transports[1].share(arrays, changed, sending)
        for value, array in zip(values, arrays, strict=True):
            found = rows.download(value.array, array.shape)
            assert found.tobytes() == array.tobytes()
        if engine.rank == 1:
            large = np.full((count, 3), 3.4e38, dtype)
            values[0] = rows.held(rows.upload(large), large.shape)
        for is_announced in (True, False):
            announced = marked, values if is_announced else values[1:]
            posted = transports[0].post_active(announced, None, sending)
            active, _ = transports[0].receive_active(posted)
            assert transports[0].leave_known(active)
            error = transports[0].rounding_error(device.read_counts(0, 0)[0])
            if not is_announced:
                assert error is None
                continue
            where = {0: "another rank than rank 0", 1: "vertex [0-9]+, on rank 1"}
            assert re.search(f"does not fit into {wire_dtype}", str(error))
            assert re.search(where[engine.rank], str(error))

    run_ranks(2, on_a_rank)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_runs_round_as_on_the_cpu(gpu: Gpu) -> None:
    """Ghosts are rounded once; nothing that does not fit is passed over."""
    whole = GRAPHS[True]

    def on_a_rank(target: str) -> Any:
        state = test_rounded.make_state(fg.distribute(whole, cuts=[0, 40, 97]), 1)
        run = fg.iterate(
            test_rounded.step, state, max_supersteps=3, wire_dtype="float16",
            target=target,
        )  # fmt: skip
        assert "ghosts in float16" in repr(run)
        view = np.array(state.view("x"))
        state["x"] = state["x"] + np.float32(1e6)
        committed = None
        if target == "cuda":
            with pytest.raises(fg.DivergenceError, match="does not fit into float16"):
                test_rounded.step(state, wire_dtype="float16", target=target)
            state["x"] = np.zeros_like(state["x"])
            committed = len(
                test_rounded.step(state, wire_dtype="float16", target=target)
            )
        return view, committed

    found, meant = (
        run_ranks(2, lambda _, target=target: on_a_rank(target))
        for target in ("cuda", "cpu")
    )
    for (view, committed), (right, _) in zip(found, meant, strict=True):
        np.testing.assert_allclose(view, right, rtol=1e-3)
        assert committed == 97
