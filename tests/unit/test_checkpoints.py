"""Runs that are broken anywhere and gone on with, and checkpoints that are damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms import bfs
from featgraph.base import files
from featgraph.distributed import run_ranks
from featgraph.runtime.checkpoints import folder as folders
from featgraph.runtime.checkpoints.public import Session
from tests.bank import BANK
from tests.programs.common import BankProgram
from tests.ranks.test_options import (
    GRAPHS,
    V,
    halve,
    make_state,
    search,
    step,
)
from tests.strategies import examples

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
WITHIN = np.arange(0, V, 2)
#: Writes and syncs that try a folder.
PROBE = 2
Calls = list[tuple[Any, dict[str, Any]]]


class BrokenError(Exception):
    """Stands for the end of a process."""


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_sync", lambda handle: None)


def broken(call: Callable[[], Any], at: int) -> Any:
    """Run something that breaks behind a number of supersteps of all ranks, or None."""
    plain, left = Session.look, [at]

    def look(self: Session, *given: Any) -> None:
        plain(self, *given)
        left[0] -= 1
        if left[0] == 0:
            raise BrokenError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "look", look)
        try:
            return call()
        except BrokenError:
            return None


def raise_base(run: fg.Run, state: fg.State) -> list[int] | None:
    """Begin again where nothing is due, a few times."""
    if state["base"] > 3:
        return None
    state["base"] = state["base"] + 1
    return [int(state["base"]) * 5]


def note_sums(run: fg.Run, state: fg.State) -> bool:
    run.notes.setdefault("sums", []).append(float(state["x"].sum()))
    return len(run.notes["sums"]) == 8


#: Foldmaps and options of runs; those of reals that are patched are not exact.
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one": (step, {"max_supersteps": 9}),
    "in turn": ([step, halve, search], {"max_supersteps": 11}),
    "the same twice": (
        [search.on(WITHIN), search.on(WITHIN + 1 - (WITHIN == V - 1))],
        {"active": [3, 50]},
    ),
    "kept": ([search, halve], {"change_driven": True, "max_supersteps": 9}),
    "recorded": (search, {"active": [3, 50], "record_active": True}),
    "asynchronous": (search, {"asynchronous": True}),
    "near and far": (search, {"near_far": fg.NearFar("y", delta=2.5), "active": [4]}),
    "then": (search, {"then": raise_base, "active": [3]}),
    "callback": (step, {"callback": note_sums}),
    "until": (step, {"until": lambda state: state.superstep == 7}),
    "restricted": (step.on(WITHIN), {"max_supersteps": 6}),
}


def results_of(graph: fg.Graph, name: str, seed: int, **kept: Any) -> list[Any]:
    """Return all results of a run, and the record of a later one."""
    foldmaps, options = RUNS[name]
    state = make_state(graph, seed)
    run = fg.iterate(foldmaps, state, target="cpu", **options, **kept)
    sets = [found.mask for found in run.active_sets or []]
    found = [run.supersteps, run.converged, run.notes, run.thresholds, *sets]
    found += [run.active_counts] if name != "asynchronous" else []
    found += [state.superstep] + [state[n] for n in ("x", "y", "weight", "base")]
    rest = fg.iterate(search, state, max_supersteps=3, target="cpu")
    return [*found, rest.active_counts, state["y"]]


def require_same(found: list[Any], wanted: list[Any], name: str) -> None:
    if name == "asynchronous":  # only the fixpoint is promised
        found, wanted = found[-5:-2], wanted[-5:-2]
    assert len(found) == len(wanted)
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_equal(one, other, err_msg=f"{name}: the value at {place}")


@pytest.mark.slow
@examples(16, 40)
@given(
    name=st.sampled_from(list(RUNS)),
    directed=st.booleans(),
    seed=st.integers(0, 3),
    ranks=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    at=st.integers(1, 14),
)
def test_a_run_goes_on_on_any_number_of_ranks(
    name: str, directed: bool, seed: int, ranks: list[int], at: int
) -> None:
    graph = GRAPHS[directed]
    wanted = results_of(graph, name, seed)
    with tempfile.TemporaryDirectory() as folder:
        kept = {"checkpoint": f"{folder}/kept", "every": 0}

        def on_a_rank(engine: Any) -> list[Any]:
            cuts = {1: None, 2: [0, 32, V], 3: [0, 7, 40, V]}[engine.size]
            mine = graph if cuts is None else fg.distribute(graph, cuts=cuts)
            return results_of(mine, name, seed, **kept)

        found = broken(lambda: run_ranks(ranks[0], on_a_rank), at)
        found = found or run_ranks(ranks[1], on_a_rank)
        for values in [*found, *run_ranks(1, on_a_rank)]:
            require_same(values, wanted, name)


def run_of_the_bank(program: BankProgram, folder: Path | None) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    graph = fg.Graph.from_edges(
        *rng.integers(0, 45, (2, 120)),
        vertex_count=45,
        directed=not program.undirected,
    )
    state = fg.State(graph, **program.make_state(graph, program.widths[0], rng))
    fg.iterate(
        list(program.foldmaps), state, max_supersteps=5, target="cpu",
        checkpoint=folder, every=0,
    )  # fmt: skip
    return {name: state[name] for name in state}


@pytest.mark.drawn(6)
@pytest.mark.parametrize(
    "program", [p for p in BANK if p.iterable], ids=lambda program: program.name
)
def test_a_program_of_the_bank_goes_on(program: BankProgram, tmp_path: Path) -> None:
    wanted = run_of_the_bank(program, None)
    broken(lambda: run_of_the_bank(program, tmp_path / "kept"), 2)
    found = run_of_the_bank(program, tmp_path / "kept")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# -- what is written


def go(
    folder: Any, graph: fg.Graph = GRAPHS[True], seed: int = 0, **options: Any
) -> Any:
    state = make_state(graph, seed)
    run = fg.iterate(
        search,
        state,
        active=[3, 50],
        target="cpu",
        checkpoint=folder,
        every=0,
        **options,
    )
    return run, state["y"]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a folder with two checkpoints of a broken run."""
    broken(lambda: go(tmp_path / "kept"), 4)
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == [
        "00000003", "00000004",
    ]  # fmt: skip
    return tmp_path / "kept"


@pytest.fixture
def wanted() -> Any:
    state = make_state(GRAPHS[True], 0)
    return fg.iterate(search, state, active=[3, 50], target="cpu"), state["y"]


def require_run(found: Any, wanted: Any) -> None:
    assert found[0].active_counts == wanted[0].active_counts
    np.testing.assert_array_equal(found[1], wanted[1])


@contextmanager
def opened(path: Path) -> Iterator[folders.CheckpointFolder]:
    found = folders.CheckpointFolder(path)
    try:
        yield found
    finally:
        found.close()


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_there_is(kept: Path, wanted: Any) -> None:
    found = fg.newest_checkpoint(kept)
    assert found is not None
    assert (found.supersteps, found.ended, found.function) == (4, False, "iterate")
    manifest = json.loads((found.path / "checkpoint.json").read_bytes())
    assert (manifest["format"], manifest["version"]) == ("featgraph checkpoint", 1)
    assert manifest["manifests"].keys() == {"state", "record"}
    require_run(go(kept), wanted)
    found = fg.newest_checkpoint(str(kept))
    assert found is not None
    assert found.ended
    assert found.supersteps == wanted[0].supersteps
    before = files_of(kept)
    require_run(go(kept), wanted)  # at once
    assert files_of(kept) == before
    assert fg.newest_checkpoint(kept / "nowhere") is None


@pytest.mark.parametrize("how", ["cut", "flipped", "gone", "fifo", "link"])
def test_a_damaged_one_is_passed_by(how: str, kept: Path, wanted: Any) -> None:
    for path in files_of(kept / "00000004"):
        text = path.read_bytes()
        if how in {"gone", "fifo", "link"}:
            path.unlink()
        if how == "fifo":
            os.mkfifo(path)
        elif how == "link":
            path.symlink_to("/dev/zero")
        elif how == "gone":
            pass
        elif how == "cut":
            path.write_bytes(text[: len(text) // 2])
        else:
            middle = len(text) // 2
            changed = bytes([text[middle] ^ 1])
            path.write_bytes(text[:middle] + changed + text[middle + 1 :])
        with (
            opened(kept) as folder,
            pytest.warns(fg.CheckpointWarning, match="an older one is used"),
        ):
            found = folder.newest()
        assert found is not None
        assert found[0].name == "00000003"
        newest = fg.newest_checkpoint(kept)  # which looks at no array
        assert newest is not None
        path.unlink(missing_ok=True)
        path.write_bytes(text)
    files_of(kept / "00000004")[-1].write_bytes(b"")
    with pytest.warns(fg.CheckpointWarning, match="an older one is used"):
        require_run(go(kept), wanted)


def test_without_a_whole_one_nothing_is_begun(kept: Path) -> None:
    for path in kept.glob("*/checkpoint.json"):
        path.write_bytes(b"{}")
    before = files_of(kept)
    with pytest.raises(fg.FileFormatError, match="no checkpoint is whole") as caught:
        go(kept)
    assert "begin anew" in str(caught.value)
    assert files_of(kept) == before


def test_one_of_a_newer_featgraph_is_no_damage(kept: Path) -> None:
    path = kept / "00000004" / "checkpoint.json"
    body = json.loads(path.read_bytes())
    path.write_bytes(json.dumps(body | {"version": 99}).encode())
    with pytest.raises(fg.FileFormatError, match="newer featgraph"):
        go(kept)


@fg.vertex
def adopt_more(f, v, d):
    d.y_next[v] = min(d.y[v], d.near[v] + 0)
    return d.near[v] < d.y[v]


OTHERS: dict[str, Callable[[Path], Any]] = {
    "another graph": lambda kept: go(kept, GRAPHS[False]),
    "other values to begin with: .*x": lambda kept: go(kept, seed=1),
    "other options: direction": lambda kept: go(kept, direction="pull"),
    "other functions": lambda kept: fg.iterate(
        fg.foldmap(search.program.functions[0], adopt_more),
        make_state(GRAPHS[True], 0), checkpoint=kept, target="cpu",
    ),
    "another function": lambda kept: bfs(
        GRAPHS[True], 0, checkpoint=kept
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_another_run_is_refused(what: str, kept: Path, wanted: Any) -> None:
    before = files_of(kept)
    with pytest.raises(fg.StateError, match=what) as caught:
        OTHERS[what](kept)
    assert "to begin anew" in str(caught.value)
    assert files_of(kept) == before
    require_run(go(kept, max_supersteps=77, progress=False), wanted)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("cut", [False, True])
def test_the_old_or_the_new_one_loads(
    cut: bool, tmp_path: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write, sync and rename fails, one at a time; or all behind it, too."""
    plain = {name: getattr(files, name) for name in ("_write", "_sync", "_rename")}
    left = [-1]

    def make(name: str) -> Any:
        def call(*given: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 or (cut and left[0] < 0 and not is_off[0]):
                if name == "_write":
                    os.write(given[0], given[1][: len(given[1]) // 2])
                raise OSError(28, "No space left on device")
            return plain[name](*given)

        return call

    is_off = [True]
    for name in plain:
        monkeypatch.setattr(files, name, make(name))
    failing, is_failing = 0, True
    while is_failing:
        failing += 1
        path = tmp_path / f"{failing}"
        broken(lambda path=path: go(path), 2)  # type: ignore[misc]
        before = fg.newest_checkpoint(path)
        assert before is not None
        left[0], is_off[0] = PROBE + failing, False
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            broken(lambda path=path: go(path, max_supersteps=4), 2)  # type: ignore[misc]
        is_failing, is_off[0] = left[0] <= 0, True
        left[0] = -1
        assert len([w for w in seen if w.category is fg.CheckpointWarning]) <= 1
        with opened(path) as folder:
            found = folder.newest()
        assert found is not None
        assert found[1]["supersteps"] >= before.supersteps
        require_run(go(path), wanted)
    assert failing > 20


def test_the_run_goes_on_where_a_write_fails(
    tmp_path: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.CheckpointFolder, "finish", fail)
    with pytest.warns(fg.CheckpointWarning, match="No space left") as seen:
        require_run(go(tmp_path / "kept"), wanted)
    assert len(seen) == 1
    assert not list((tmp_path / "kept").iterdir())


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "a" * 300, "\ud800"):
        with pytest.raises(fg.ArgumentError, match="checkpoint="):
            go(path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("")
    with pytest.raises(fg.StateError, match=r"other files[\s\S]*mine"):
        go(tmp_path / "notes")
    for wrong, where in (({"checkpoint": 3}, "checkpoint="), ({"every": -1}, "every=")):
        with pytest.raises(fg.ArgumentError, match=where):
            fg.iterate(
                search, make_state(GRAPHS[True], 0), **{"checkpoint": "x"} | wrong
            )


def test_one_run_at_a_time(tmp_path: Path) -> None:
    def look(run: fg.Run, state: fg.State) -> None:
        with pytest.raises(fg.StateError, match="another run writes"):
            go(tmp_path / "kept")

    go(tmp_path / "kept", callback=look)


def test_what_is_iterated_in_callbacks_is_not_counted(tmp_path: Path) -> None:
    def nested(run: fg.Run, state: fg.State) -> None:
        fg.iterate(halve, state.copy(), max_supersteps=2, target="cpu")

    def both() -> Iterator[Any]:
        with fg.Checkpoints(tmp_path / "kept", every=0):
            state = make_state(GRAPHS[True], 0)
            for foldmap in (search, halve, step):
                fg.iterate(
                    foldmap, state, max_supersteps=3, callback=nested, target="cpu"
                )
                yield {name: state[name] for name in state}

    wanted = list(both())
    for at in (2, 5, 8):
        for path in files_of(tmp_path / "kept"):
            path.unlink()
        for path in sorted((tmp_path / "kept").rglob("*"), reverse=True):
            path.rmdir()
        assert broken(lambda: list(both()), at) is None
        np.testing.assert_equal(list(both())[-1], wanted[-1])


SCRIPT = """
import sys, numpy as np, featgraph as fg
sys.path.insert(0, {root!r})
from tests.unit.test_checkpoints import go
def slow(run, state):
    if run.supersteps == 3:
        print("there", flush=True)
        sys.stdin.read()
go({folder!r}, callback=slow)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_process(tmp_path: Path, wanted: Any) -> None:
    root = str(Path(__file__).parents[2])
    script = SCRIPT.format(root=root, folder=str(tmp_path / "kept"))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=root,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGKILL)
    found = fg.newest_checkpoint(tmp_path / "kept")
    assert found is not None
    assert found.supersteps in {1, 2}
    require_run(go(tmp_path / "kept", callback=lambda run, state: None), wanted)
