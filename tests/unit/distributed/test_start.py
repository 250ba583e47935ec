"""Variables of launchers that `init` reads, and the ranks' handshake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import current_engine
from featgraph.ranks.engines import meeting, torch_engine
from featgraph.ranks.engines.processes import (
    INLINE_BYTES,
    RECORD_BYTES,
    Record,
    pack,
    unpack,
)
from featgraph.ranks.engines.shared_memory import SharedEngine
from featgraph.ranks.engines.torch_engine import TorchEngine
from featgraph.ranks.launching import start

ROOT = Path(__file__).parents[3]
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def not_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    start._process.clear()
    start.engine_of_process.clear()


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("variables", [{}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_one_rank_imports_nothing(variables: dict[str, str]) -> None:
    code = (
        "import sys, featgraph as fg\n"
        "before = set(sys.modules)\n"
        "engine = fg.distributed.init()\n"
        "assert fg.distributed.current_engine() is engine\n"
        "assert (engine.rank, engine.size) == (0, 1)\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    done = run_python(code, **variables)
    assert done.returncode == 0, done.stderr


def test_once_is_enough() -> None:
    engine = fg.distributed.init()
    assert current_engine() is engine
    with pytest.raises(fg.DistributedError, match="a second time"):
        fg.distributed.init()
    start._process[0] += 1  # as a child would see it
    with pytest.raises(fg.DistributedError, match=r"forked child.*\n.*a child of"):
        fg.distributed.init()


def test_loopback_ranks_have_an_engine() -> None:
    with pytest.raises(fg.DistributedError, match="that run_ranks started"):
        fg.distributed.run_ranks(2, lambda engine: fg.distributed.init())


@pytest.mark.parametrize(
    ("variables", "name", "got", "expected"),
    [
        ({"RANK": "0"}, "WORLD_SIZE", "nothing", "a number from 1 on"),
        ({"WORLD_SIZE": "2"}, "RANK", "nothing", "from 0 to 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK", "'2'", "from 0 to 1"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK", "'-1'", "from 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE", "'two'", "from 1 on"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE", "'0'", "from 1 on"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT", "nothing", "1 to 65535"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "70000"},
            "MASTER_PORT",
            "'70000'",
            "1 to 65535",
        ),
    ],
)
def test_variables_without_a_value(
    variables: dict[str, str],
    name: str,
    got: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    with pytest.raises(fg.ArgumentError) as raised:
        fg.distributed.init()
    shown = str(raised.value)
    assert f"the variable {name} " in shown
    assert f"got:      {got}" in shown
    assert expected in shown
    assert "torchrun" in shown


@pytest.mark.parametrize(
    ("timeout", "what"),
    [
        (0, "not a timeout"),
        (-1, "not a timeout"),
        (float("nan"), "timeout out of range"),
        (float("inf"), "timeout out of range"),
        ("30", "not a number"),
        (True, "not a number"),
    ],
)
def test_what_is_no_timeout(timeout: Any, what: str) -> None:
    with pytest.raises(fg.ArgumentError, match=f"timeout=: {what}\n"):
        fg.distributed.init(timeout=timeout)


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name, text in zip(VARIABLES, ("0", "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, text)
    with pytest.raises(fg.DistributedError, match=r"featgraph\[distributed\]"):
        fg.distributed.init(engine="gloo")


@pytest.mark.parametrize(
    ("address", "variables", "engine"),
    [
        ("127.0.0.1", {}, SharedEngine),
        ("localhost", {}, SharedEngine),
        ("::1", {}, SharedEngine),
        ("10.0.0.7", {}, TorchEngine),
        ("host7", {"LOCAL_WORLD_SIZE": "4"}, SharedEngine),
        ("host7", {"LOCAL_WORLD_SIZE": "2"}, TorchEngine),
        # Several hosts, whose ranks reach the first through a tunnel.
        ("127.0.0.1", {"LOCAL_WORLD_SIZE": "2"}, TorchEngine),
    ],
)
def test_ranks_of_one_host_share_memory(
    address: str,
    variables: dict[str, str],
    engine: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert start.engine_class("auto", 4, address) is engine
    assert start.engine_class("shared", 4, address) is SharedEngine
    assert start.engine_class("gloo", 4, address) is TorchEngine


def test_nccl_goes_with_the_engine_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    for way, engine in (("host", SharedEngine), ("engine", TorchEngine)):
        monkeypatch.setattr(fg.config, "gpu_links", way)
        assert start.engine_class("auto", 4, "127.0.0.1") is engine


def test_what_is_no_engine() -> None:
    with pytest.raises(fg.ArgumentError, match=r"no engine.*\n.*'mpi'.*\n.*auto, sh"):
        fg.distributed.init(engine="mpi")


def test_where_memory_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting.sys, "platform", "darwin")
    assert start.engine_class("auto", 2, "127.0.0.1") is TorchEngine
    with pytest.raises(fg.DistributedError, match=r"Linux only\n.*engine='gloo'"):
        SharedEngine(0, 2, "127.0.0.1", 1, 1.0)


@pytest.mark.parametrize(
    ("address", "listens_at"),
    [
        ("127.0.0.1", "lo"),
        ("::1", "lo"),
        ("localhost", "lo"),
        ("10.0.0.7", None),
        ("host7", None),
    ],
)
def test_ranks_of_one_host_listen_there_alone(
    address: str, listens_at: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = torch_engine.os.environ
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with torch_engine._listening_at(address):
        assert environment.get("GLOO_SOCKET_IFNAME") == listens_at
    assert "GLOO_SOCKET_IFNAME" not in environment
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth3")
    with torch_engine._listening_at(address):
        assert environment["GLOO_SOCKET_IFNAME"] == "eth3"


WORDS = st.text(max_size=400).filter(lambda text: "\0" not in text)


@given(
    st.sampled_from(["call", "ended", "failed"]),
    st.integers(0, 2**40),
    st.lists(WORDS, min_size=3, max_size=3),
    st.integers(0, 2 * INLINE_BYTES),
)
def test_records_keep_the_messages(
    kind: str, number: int, words: list[str], size: int
) -> None:
    text, about, given = words
    record = Record(kind, number, text, about, rank=number % 7 - 1, given=given)
    message = np.arange(size).astype(np.uint8)
    data = pack(record, message)
    assert data.size == RECORD_BYTES
    found, inline = unpack(data, 1)
    assert (found.kind, found.number, found.rank) == (kind, number, record.rank)
    assert found.nbytes == size
    assert inline.tolist() == (message.tolist() if size <= INLINE_BYTES else [])
    if len("".join(words).encode()) < 250:
        assert [found.text, found.about, found.given] == words
    for changed in (
        Record(kind, number, text, about + ".", given=given),
        Record(kind, number, text, about, given=given + "."),
    ):
        other = unpack(pack(changed, message), 1)[0]
        assert other.call != found.call  # however long


@given(st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_records_that_cannot_be_read_are_refused(seed: int, at: int) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, RECORD_BYTES).astype(np.uint8)
    with pytest.raises(fg.DistributedError, match="a record from rank 4 cannot"):
        unpack(noise, 4)
    data = pack(Record("call", 3, "barrier()"), np.arange(9, dtype=np.uint8))
    data[at] ^= 1 << rng.integers(8)
    try:
        found, inline = unpack(data, 4)
    except fg.DistributedError:
        return
    assert inline.size in (0, found.nbytes)
