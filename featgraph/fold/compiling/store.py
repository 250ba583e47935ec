"""The content-addressed store of generated modules.

A module's file name carries the digest of its text, which holds the plan, the user
functions, their callees and constants, and of every version that compiled code depends
on. Numba's own disk cache stands beside it, keyed by that file; it is pickle, so the
directories and files are private to their owner and checked (`featgraph._trust`).
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from functools import cache
from importlib import metadata
from pathlib import Path

from featgraph._files import replace_private
from featgraph._trust import (
    DistrustedError,
    make_private,
    read_private,
    why_distrusted,
)
from featgraph.config import config
from featgraph.errors import CacheWarning

__all__ = ["COMPILED", "module_path", "store_directory"]

#: Where, beside the modules, the compiled kernels are.
COMPILED = "__pycache__"


def module_path(text: str, stem: str) -> Path:
    """Write `text` to its place in the store, unless it is there; return the place.

    Parameters
    ----------
    text : str
        The generated module.
    stem : str
        Start of the file name, for people; an identifier.
    """
    digest = hashlib.sha256("\n".join([text, *_versions()]).encode()).hexdigest()[:32]
    path = store_directory() / f"{stem[:40]}_{digest}.py"
    problem = "was damaged"
    try:
        if read_private(path) == text.encode():
            return path
    except DistrustedError as error:
        problem = str(error)
    except FileNotFoundError:  # another one may write it meanwhile
        problem = ""
    except OSError:
        pass
    if problem and os.path.lexists(path):
        warnings.warn(
            f"{path} {problem} and is written again", CacheWarning, stacklevel=2
        )
        forget(path)
    try:
        _write_whole(path, text)
    except OSError as error:
        warnings.warn(
            f"{path.parent} cannot be written ({error}); kernels are not stored",
            CacheWarning,
            stacklevel=2,
        )
        path = _private_directory() / path.name
        _write_whole(path, text)
    return path


def forget(path: Path) -> None:
    """Remove what Numba keeps for a module."""
    for stored in path.parent.glob(f"{COMPILED}/{path.stem}.*"):
        if stored.suffix in {".nbi", ".nbc"}:
            stored.unlink(missing_ok=True)


def store_directory() -> Path:
    """Return the store's directory, made if need be.

    A private temporary one if it cannot be trusted.
    """
    if not config.cache:
        return _private_directory()
    path = Path(os.path.realpath(config.cache_dir)) / "kernels"
    try:
        make_private(path / COMPILED)
        problem = why_distrusted(path / COMPILED, own=2)
    except OSError as error:
        problem = f"{path} cannot be made ({error})"
    if problem:
        warnings.warn(f"{problem}; kernels are not stored", CacheWarning, stacklevel=2)
        return _private_directory()
    return path


@cache
def _private_directory() -> Path:
    path, process = Path(tempfile.mkdtemp(prefix="featgraph-")), os.getpid()
    make_private(path / COMPILED)

    def remove() -> None:
        if os.getpid() == process:  # not at the end of a forked child
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


def _write_whole(path: Path, text: str) -> None:
    """Write beside and rename over, so that no reader sees half a file."""
    replace_private(path, [text.encode()])


@cache
def _versions() -> tuple[str, ...]:
    """Return what compiled code depends on beside its text.

    The device library counts by its contents.
    """
    versions = [f"python {sys.version}"]
    for package in ("numba", "llvmlite", "numba-cuda", "numpy"):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    root = Path(__file__).parents[2]
    loaders = [
        root / "fold" / "compiling" / name for name in ("compile.py", "disk_cache.py")
    ]
    others = [root / "_cuda.py", root / "_files.py", root / "_trust.py", *loaders]
    for source in sorted([*root.glob("device/*.py"), *others]):
        versions.append(hashlib.sha256(source.read_bytes()).hexdigest())
    return tuple(versions)
