"""Only files and folders owned by this user are loaded from the store."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.base import store
from featgraph.fold.compiling import compile as compiling
from tests.unit.test_store import TEXT, _marker, cache

__all__ = ["cache"]


@pytest.mark.parametrize("level", ["kernels/__pycache__", "kernels", "."])
@pytest.mark.parametrize("how", ["mode", "owner"])
def test_every_level_is_checked(
    cache: Path, level: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store_directory()
    if how == "owner":
        give_away(cache / level)
    else:
        (cache / level).chmod(0o777)
    with pytest.warns(fg.CacheWarning, match="another user|by others"):
        path = compiling.module_path(TEXT, "relax")
    assert cache not in path.parents
    assert path.read_text() == TEXT


def test_folders_above_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "above"
    monkeypatch.setattr(fg.config, "cache_dir", above / "deep" / "cache")
    assert above in compiling.module_path(TEXT, "relax").parents
    above.chmod(0o777)
    with pytest.warns(fg.CacheWarning, match="can be replaced by others"):
        assert above not in compiling.module_path(TEXT, "relax").parents
    above.chmod(0o1777)
    assert above in compiling.module_path(TEXT, "relax").parents
    give_away(above)
    with pytest.warns(fg.CacheWarning, match="belongs to another user"):
        assert above not in compiling.module_path(TEXT, "relax").parents


def test_a_umask_of_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fg.config, "cache_dir", cache / "some" / "levels" / "down")
    before = os.umask(0)
    try:
        step = fg.foldmap(_marker())
        state = fg.State(
            fg.Graph.from_edges([0], [1]), x=fg.vertex_property(1.0, shape=(3,)),
            y=fg.vertex_property(0.0, shape=(3,)),
        )  # fmt: skip
        step(state, target="cpu")
    finally:
        os.umask(before)
    made = [cache, *cache.rglob("*")]
    assert any(path.suffix == ".nbi" for path in made)
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in made)


@pytest.mark.parametrize("how", ["mode", "owner", "link"])
def test_every_file_is_checked(cache: Path, tmp_path: Path, how: str) -> None:
    path = compiling.module_path(TEXT, "relax")
    distrust_file(path, how, tmp_path)
    with pytest.warns(fg.CacheWarning, match="is written again"):
        assert compiling.module_path(TEXT, "relax") == path
    found = path.lstat()
    assert stat.S_ISREG(found.st_mode)
    assert found.st_uid == os.getuid()
    assert stat.S_IMODE(found.st_mode) == 0o600


@pytest.mark.parametrize("how", ["mode", "owner", "link"])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_compiled_files_of_others_are_not_run(
    cache: Path, tmp_path: Path, suffix: str, how: str
) -> None:
    """Nor are they unpickled, which would run their code."""
    canary = tmp_path / "canary"

    class Payload:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(canary),)

    compiled = _compile_marker()
    kept = next(cache.rglob(f"*{suffix}"))
    cached = compiled._cache._cache_file
    [key] = cached._load_index(cached.folder)
    salt = key.encode() if suffix == ".nbc" else b""
    cached._write(kept, pickle.dumps(Payload()), salt)
    distrust_file(kept, how, tmp_path)
    with pytest.warns(fg.CacheWarning, match="the kernel is compiled again"):
        again = _compile_marker()
    assert not canary.exists()
    assert not again.stats.cache_hits
    kept.chmod(0o600)
    cached._write(kept, pickle.dumps(Payload()), salt)
    with contextlib.suppress(Exception):
        _compile_marker()
    # An index is not unpickled, whatever its owner.
    assert canary.exists() == (suffix == ".nbc"), "the payload would have run"


def test_what_python_would_keep_is_not_run(cache: Path) -> None:
    """A module's text is run as it is at hand: no .pyc is read or written."""
    source = fg.foldmap(_marker()).fold(k=6, target="cpu").kernel_source
    path = compiling.module_path(source.text, "marker")
    kept = Path(importlib.util.cache_from_source(str(path)))
    code = compile("raise RuntimeError('it ran')", str(path), "exec")
    found = path.stat()
    kept.write_bytes(
        importlib._bootstrap_external._code_to_timestamp_pyc(  # type: ignore[attr-defined]
            code, int(found.st_mtime), found.st_size
        )
    )
    kept.chmod(0o600)
    module = compiling.load_module(source)
    assert module.Data is not None


def test_kernels_of_every_target_are_checked(cache: Path) -> None:
    pytest.importorskip("numba_cuda")
    for target in ("cpu", "cuda"):
        source = fg.foldmap(_marker()).fold(k=3, target=target).kernel_source
        module = compiling.load_module(source)
        caches = [getattr(value, "_cache", None) for value in vars(module).values()]
        files = [c._cache_file for c in caches if hasattr(c, "_cache_file")]
        assert files, target
        assert {type(file) for file in files} == {store.CheckedFile}


def test_caches_of_the_user_are_left_alone(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba's own setting places the user's functions, not these."""
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "others"))
    _compile_marker()
    assert list(cache.rglob("*.nbc"))
    assert not list((tmp_path / "others").rglob("*.nb?"))


def distrust_file(path: Path, how: str, tmp_path: Path) -> None:
    if how == "owner":
        give_away(path)
    elif how == "mode":
        path.chmod(0o622)
    else:
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)


def give_away(path: Path) -> None:
    try:
        os.chown(path, 54321, -1)
    except PermissionError:
        pytest.skip("only root can give a file to another user")


def _compile_marker() -> Any:
    # Kernels that serve all programs are held elsewhere, too: their modules come back.
    loaded = {n: m for n, m in sys.modules.items() if n.startswith("featgraph_kernel_")}
    for name in loaded:
        del sys.modules[name]
    step = fg.foldmap(_marker())
    state = fg.State(
        fg.Graph.from_edges([0], [1]), x=fg.vertex_property(1.0, shape=(2,)),
        y=fg.vertex_property(0.0, shape=(2,)),
    )  # fmt: skip
    try:
        step(state, target="cpu")
    finally:
        sys.modules.update(loaded | sys.modules)
    kernel = step.fold(state, target="cpu")
    return kernel.sweep(kernel.entries[0])
