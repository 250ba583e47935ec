"""Messages about compiling in the log and on a terminal: `store.Compilation`."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import featgraph as fg
from featgraph.base import store
from featgraph.base.interrupts import BACKGROUND
from featgraph.base.store import Compilation
from featgraph.fold.compiling import compile as compiling

LINE = (
    "featgraph: compiling kernels of test_messages for the CPU "
    "(once per machine; kept in {})\n"
)


@fg.vertex
def doubled(f: Any, v: Any, d: Any) -> bool:
    d.y[v, f] = 2 * d.x[v, f]
    return False


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    """Stand for stderr; nothing is stored, and any compiling is long."""
    monkeypatch.setattr(fg.config, "cache", True)
    monkeypatch.setattr(fg.config, "cache_dir", tmp_path)
    compilation = Compilation()
    for module in (store, compiling):
        monkeypatch.setattr(module, "COMPILATION", compilation)
    monkeypatch.setattr(store, "_PATIENCE_S", 0.0)
    stream = Terminal()  # pytest sets the stream of `sys` itself
    monkeypatch.setattr(store, "sys", SimpleNamespace(**vars(sys) | {"stderr": stream}))
    return stream


def call(features: int) -> None:
    """Compile a kernel for a number of features, or load it."""
    names = [n for n in sys.modules if n.startswith("featgraph_kernel_doubled_")]
    for name in names:  # as in another process
        del sys.modules[name]
    state = fg.State(
        fg.Graph.from_edges([0], [1]),
        x=fg.vertex_property(1.0, shape=(features,)),
        y=fg.vertex_property(0.0, shape=(features,)),
    )
    fg.foldmap(doubled)(state, target="cpu")


def test_a_terminal_gets_one_line(terminal: Terminal, tmp_path: Path) -> None:
    call(1)
    call(2)
    assert terminal.getvalue() == LINE.format(tmp_path)


def test_a_store_at_home_is_named_from_there(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    call(1)
    assert terminal.getvalue() == LINE.format(f"~/{tmp_path.name}")


def test_without_a_store_none_is_named(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fg.config, "cache", False)
    call(1)
    assert terminal.getvalue().endswith("for the CPU (for this process only)\n")


@pytest.mark.parametrize("why", ["a file", "no stream", "turned off", "not long"])
def test_no_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    stream: io.StringIO | None = terminal
    if why == "a file":
        stream = io.StringIO()
        monkeypatch.setattr("featgraph.base.store.sys.stderr", stream)
    elif why == "no stream":  # as in a program without a console
        monkeypatch.setattr("featgraph.base.store.sys.stderr", stream := None)
    elif why == "turned off":
        monkeypatch.setattr(fg.config, "messages", False)
    else:
        monkeypatch.setattr(store, "_PATIENCE_S", 1e9)
    call(1)
    assert stream is None or not stream.getvalue()


def test_the_log_names_what_is_compiled_and_loaded(
    terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "featgraph")
    call(1)
    [compiled] = caplog.records
    assert compiled.levelno == logging.INFO
    assert re.fullmatch(
        r"compiled doubled\.sweep_0 for the CPU in \d+\.\d\d s", compiled.getMessage()
    )
    assert compiled.name == "featgraph"
    caplog.clear()
    call(1)
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.DEBUG, "loaded doubled.sweep_0 for the CPU")
    ]


class File(store.CheckedFile):
    """The name of a function, without files."""

    def __init__(self, name: str) -> None:
        self.name, self.target, self.folder = name, "GPU", Path("/")


def test_seconds_count_once(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function is compiled within another; both begin before either ends."""
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr(store, "_PATIENCE_S", 2.0)
    compilation = Compilation()
    outer, inner, behind = File("outer"), File("inner"), File("behind")
    compilation.begin(outer, "")
    compilation.begin(inner, "")
    now = 1.0
    compilation.end(inner, "")
    now = 1.5
    compilation.end(outer, "")
    assert compilation.seconds == 1.5
    compilation.end(outer, "another type")  # was found in the process
    assert compilation.seconds == 1.5

    def compile_behind() -> None:
        nonlocal now
        compilation.begin(behind, "")
        now += 10
        compilation.end(behind, "")

    for seconds in (1.5, 5.0):  # before the message is due, and behind that
        compilation.seconds = seconds
        thread = threading.Thread(target=compile_behind, name=BACKGROUND)
        thread.start()
        thread.join()
        assert compilation.seconds == seconds
        assert not terminal.getvalue(), "nobody waits"
    compilation.seconds = 1.5
    compilation.begin(outer, "")
    assert not terminal.getvalue()
    now += 0.5
    compilation.begin(inner, "")
    assert "kernels of a program for the GPU" in terminal.getvalue()
    assert compilation.is_announced


def test_failed_compiling_is_forgotten(terminal: Terminal) -> None:
    """A failed call leaves no open compilation for another thread."""
    compilation = Compilation()
    thread = threading.Thread(target=compilation.begin, args=(File("failed"), ""))
    thread.start()
    thread.join()
    compilation.end(File("failed"), "")
    assert compilation.seconds == 0


@pytest.mark.parametrize(("text", "expected"), [("0", False), ("1", True)])
def test_the_variable(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: bool
) -> None:
    monkeypatch.setenv("FEATGRAPH_MESSAGES", text)
    assert type(fg.config)().messages is expected
