"""The store: private, content-addressed, and right whatever lies in it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import featgraph as fg
from featgraph.base import store
from featgraph.fold.compiling import compile as compiling

TEXT = "x = 1\n"
ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
import numpy as np
import featgraph as fg

@fg.gather(into="t", combine="sum")
def total(f, u, v, e, d):
    return d.x[u, f] * 3.5

@fg.vertex
def keep(f, v, d):
    d.y[v, f] = d.t[v, f] + 1
    return True

step = fg.foldmap(total, keep)

def run():
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    state = fg.State(graph, x=fg.vertex_property(x), y=fg.vertex_property(x * 0))
    step(state, target="cpu")
    return state["y"]

if __name__ == "__main__":
    print(run().tolist())
    module = next(iter(step._kernels.values())).module
    print(module.__file__, file=sys.stderr)
"""
EXPECTED = [[15.0, 18.5], [1.0, 4.5], [8.0, 11.5]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fg.config, "cache_dir", tmp_path / "cache")
    monkeypatch.setattr(fg.config, "cache", True)
    return tmp_path / "cache"


def test_place_and_contents(cache: Path) -> None:
    path = compiling.module_path(TEXT, "relax")
    assert path.parent == cache / "kernels"
    assert path.name.startswith("relax_")
    assert path.read_text() == TEXT
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert compiling.module_path(TEXT, "relax") == path
    found = {p.name for p in path.parent.iterdir()}
    assert found == {path.name, "__pycache__"}, "no leftovers"
    assert compiling.module_path(TEXT + "\n", "relax") != path


@pytest.mark.parametrize(
    "damage", [b"", b"x", b"x = 2\n", b"\xff\xfe", TEXT.encode() * 2, b"\0"]
)
def test_damaged_modules(cache: Path, damage: bytes) -> None:
    path = compiling.module_path(TEXT, "relax")
    kept = path.parent / "__pycache__" / f"{path.stem}.kernel-1.py311.nbi"
    other = path.parent / "__pycache__" / "other.kernel-1.py311.nbi"
    kept.write_bytes(b"index")
    other.write_bytes(b"index")
    path.write_bytes(damage)
    with pytest.warns(fg.CacheWarning, match="was damaged and is written again"):
        assert compiling.module_path(TEXT, "relax") == path
    assert path.read_text() == TEXT
    assert not kept.exists(), "Numba's files are of the damaged module"
    assert other.exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_directories_that_others_write(cache: Path, mode: int) -> None:
    (cache / "kernels").mkdir(parents=True)
    (cache / "kernels").chmod(mode)
    trap = cache / "kernels" / compiling.module_path.__name__
    with pytest.warns(fg.CacheWarning, match="can be written by others"):
        path = compiling.module_path(TEXT, "relax")
    assert cache not in path.parents
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_text() == TEXT
    assert not trap.exists()
    assert [p.name for p in (cache / "kernels").iterdir()] == ["__pycache__"]


def test_directories_that_others_replace(cache: Path) -> None:
    (cache / "kernels").mkdir(parents=True, mode=0o700)
    cache.chmod(0o777)
    with pytest.warns(fg.CacheWarning, match="can be replaced by others"):
        assert cache not in compiling.module_path(TEXT, "relax").parents
    cache.chmod(0o1777)  # as /tmp
    assert cache in compiling.module_path(TEXT, "relax").parents


def test_directories_of_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.store_directory()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(fg.CacheWarning, match="belongs to another user"):
        assert cache not in compiling.module_path(TEXT, "relax").parents


def test_links_and_files(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.mkdir()
    (cache / "kernels").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(fg.CacheWarning, match="is a link"):
        assert cache not in compiling.module_path(TEXT, "relax").parents
    (cache / "kernels").unlink()
    (cache / "kernels").write_text("a file")
    with pytest.warns(fg.CacheWarning, match="kernels are not stored"):
        assert cache not in compiling.module_path(TEXT, "relax").parents
    shutil.rmtree(cache)
    cache.write_text("a file")
    with pytest.warns(fg.CacheWarning, match="cannot be made"):
        assert compiling.module_path(TEXT, "relax").read_text() == TEXT


def test_full_disks(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compiling._write_whole

    def refuse(path: Path, text: str) -> None:
        if cache in path.parents:
            raise OSError(28, "No space left on device")
        whole(path, text)

    monkeypatch.setattr(compiling, "_write_whole", refuse)
    with pytest.warns(fg.CacheWarning, match="No space left"):
        path = compiling.module_path(TEXT, "relax")
    assert cache not in path.parents
    assert path.read_text() == TEXT


def test_half_a_write_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.store_directory()

    def refuse(self: Path, target: Any) -> Path:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="Input/output"):
        compiling._write_whole(folder / "x.py", TEXT)
    assert [p.name for p in folder.iterdir()] == ["__pycache__"]


def test_without_a_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fg.config, "cache", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = compiling.module_path(TEXT, "relax")
    assert not cache.exists()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# Numba's files, in processes of their own


def start(
    script: Path, cache: Path, *, code: str = "", **variables: str
) -> subprocess.Popen[str]:
    environment = os.environ | {
        "FEATGRAPH_CACHE_DIR": str(cache),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{script.parent}",
        "PYTHONWARNINGS": "always",
        **variables,
    }
    command = [sys.executable, "-c", code] if code else [sys.executable, str(script)]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=script.parent,
    )


def finish(process: subprocess.Popen[str]) -> tuple[Any, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip(), err


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Compile a program in two processes at once; return the script and the cache."""
    folder = tmp_path_factory.mktemp("compiled")
    script = folder / "stored_program.py"
    script.write_text(PROGRAM)
    processes = [start(script, folder / "cache") for _ in range(2)]
    for process in processes:
        out, err = finish(process)
        assert out == str(EXPECTED)
        assert "Warning" not in err
    kernels = folder / "cache" / "kernels"
    assert len(list(kernels.glob("*.py"))) == 1
    assert len(list(kernels.glob("__pycache__/*.nbi"))) == 1
    assert len(list(kernels.glob("__pycache__/*.nbc"))) == 1
    return script, folder / "cache"


#: Runs the program once for each kind of damage, and says whether Numba compiled anew.
DAMAGES = """
import shutil, sys, warnings
from pathlib import Path
import numpy as np
import featgraph as fg
import stored_program
from featgraph.fold.folder import fold

warnings.simplefilter("always")
folder = Path({cache!r}) / "kernels" / "__pycache__"
kept = {{p: p.read_bytes() for p in folder.glob("*.nb?")}}
index = next(p for p in kept if p.suffix == ".nbi")
data = next(p for p in kept if p.suffix == ".nbc")

def middle(content, at):
    at = int(len(content) * at)
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1:]

cases = [("whole", None, None)]
for path in (index, data):
    full = kept[path]
    changed = {{"gone": None, "text": b"import os", "empty": b""}}
    changed["cut"] = full[: int(len(full) * 0.99)]
    for at in (0.3, 0.9):
        changed[f"flipped at {{at}}"] = middle(full, at)
    cases += [(path.suffix + " " + name, path, c) for name, c in changed.items()]
cases += [("whole again", None, None)]
for name, path, content in cases:
    for p, full in kept.items():
        p.write_bytes(full)
    if path is not None:
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    stored_program.step._kernels.clear()
    for module in [m for m in sys.modules if m.startswith("featgraph_kernel_")]:
        del sys.modules[module]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = stored_program.run().tolist()
    told = [str(w.message) for w in caught if issubclass(w.category, fg.CacheWarning)]
    kernel = next(iter(stored_program.step._kernels.values()))
    hits = sum(kernel.sweep(kernel.entries[0]).stats.cache_hits.values())
    print(repr((name, result, hits, told)))
"""


@pytest.mark.slow
def test_damaged_files_of_numba(compiled: tuple[Path, Path]) -> None:
    script, cache = compiled
    code = DAMAGES.format(cache=str(cache))
    out, err = finish(start(script, cache, code=code))
    rows = [eval(line) for line in out.splitlines()]  # noqa: S307
    assert len(rows) >= 14
    for name, result, hits, warned in rows:
        assert result == EXPECTED, name
        if name.startswith("whole"):
            assert (hits, warned) == (1, []), f"{name} {warned}"
        else:
            assert hits == 0, f"{name}: it was used"
            assert bool(warned) == ("gone" not in name), f"{name}: {warned}"
            assert all("compiled again" in text for text in warned)
    assert "Traceback" not in err


def test_nothing_is_kept_without_a_cache(compiled: tuple[Path, Path]) -> None:
    script, cache = compiled
    out, err = finish(start(script, cache.parent / "unused", FEATGRAPH_CACHE="0"))
    assert out == str(EXPECTED)
    assert not (cache.parent / "unused").exists()
    module = Path(err.strip().splitlines()[-1])
    assert not module.exists(), "the private directory goes when the process ends"


def test_modules_are_loaded_once(cache: Path) -> None:
    step = fg.foldmap(_marker())
    first = compiling.load_module(step.fold(k=2, target="cpu").kernel_source)
    again = compiling.load_module(step.fold(k=2, target="cpu").kernel_source)
    assert first is again
    assert first.__file__ is not None
    assert cache in Path(first.__file__).parents
    assert sys.modules[first.__name__] is first
    assert first.Data.__module__ == first.__name__


def test_a_thread_waits_for_a_module_that_another_loads(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fg.foldmap(_marker()).fold(k=3, target="cpu").kernel_source
    entry, run = source.entries[0].name, compiling._TextLoader.exec_module
    found: list[tuple[ModuleType, bool]] = []

    def load() -> None:
        module = compiling.load_module(source)
        found.append((module, hasattr(module, entry)))

    other = threading.Thread(target=load)

    def meet(loader: Any, module: ModuleType) -> None:
        if other.ident is None:
            other.start()
            other.join(timeout=0.2)  # it has nothing to return yet
        run(loader, module)

    monkeypatch.setattr(compiling._TextLoader, "exec_module", meet)
    load()
    other.join()
    assert found[0] == found[1] == (found[0][0], True)


def test_kernels_of_the_same_fields_are_distinguished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numba finds each again at once, though the fields have the same types."""
    state = fg.State(
        fg.Graph.from_edges([0], [1]),
        x=fg.vertex_property([[1.0, 2.0], [3.0, 4.0]]),
        y=fg.vertex_property(0.0, shape=(2,)),
    )
    steps = [fg.foldmap(_marker()), fg.foldmap(_marker(), _marker())]
    kernels = [step.fold(state, target="cpu") for step in steps]
    for step in steps:
        step(state, target="cpu")
    names = {kernel.module.Data.__name__ for kernel in kernels}
    assert len(names) == 2
    for step, kernel in zip(steps, kernels, strict=True):
        function = kernel.function(kernel.entries[0])
        monkeypatch.setattr(function, "_compile_for_args", None)
        step(state, target="cpu")


def _marker() -> Any:
    @fg.vertex
    def marker(f, v, d):
        d.y[v, f] = d.x[v, f] * 4.75
        return True

    return marker


def test_texts_are_checked_when_they_are_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(fg.FeatGraphError, match="unbound"):
        compiling.module_path("y = nowhere\n", "relax")
    assert not list(cache.rglob("*.py"))
    path, checked = compiling.module_path(TEXT, "relax"), []
    monkeypatch.setattr(compiling, "check_module", checked.append)
    assert compiling.module_path(TEXT, "relax") == path
    assert not checked
    path.write_text("another text")
    with pytest.warns(fg.CacheWarning, match="is written again"):
        compiling.module_path(TEXT, "relax")
    assert checked == [TEXT]


def test_a_module_that_does_not_load_leaves_no_trace(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fg.foldmap(_marker()).fold(k=5, target="cpu").kernel_source

    def fail(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "guard_disk_cache", fail)
    with pytest.raises(KeyboardInterrupt):
        compiling.load_module(source)
    path = compiling.module_path(source.text, "marker")
    assert f"featgraph_kernel_{path.stem}" not in sys.modules
