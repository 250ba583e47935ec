"""Folders that are written under a temporary name, and renamed when complete."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from featgraph.base.errors import GraphInputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["require_free", "writing"]


def require_free(path: Path) -> None:
    """Raise GraphInputError if a path exists, even as a broken link."""
    if os.path.lexists(path):
        raise GraphInputError(
            "something is there already",
            where=str(path),
            fix="remove it, or choose another name",
        )


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Make a folder beside a path, which is renamed to it when complete.

    Temporary folders that killed processes have left there are removed.

    Raises
    ------
    GraphInputError
        If the path exists already.
    """
    require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    folder, lock = _locked_folder(path)
    try:
        yield folder
        for file in folder.iterdir():
            _sync(file)
        _sync(folder)
        require_free(path)
        folder.rename(path)
        _sync(path.parent)
    except OSError as error:
        if error.filename is None:  # such as a full disk
            error.filename = str(folder)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(path: Path) -> tuple[Path, int]:
    """Make a folder that is locked while this process writes it."""
    while True:
        folder = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY)
        _try_to_lock(lock)
        if folder.is_dir():  # not removed as abandoned before it was locked
            return folder, lock
        os.close(lock)


def _try_to_lock(handle: int) -> bool:
    """Lock a folder, unless it is locked; return whether this process has the lock."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another one has it, or the file system has no locks
        return False
    return True


def _remove_abandoned(path: Path) -> None:
    """Remove temporary folders for this name that no process is writing."""
    begin, end = f"{path.name}.", ".part"
    for folder in path.parent.iterdir():
        if not (folder.name.startswith(begin) and folder.name.endswith(end)):
            continue
        if len(folder.name) != len(begin) + 8 + len(end) or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):  # such as one that was removed meanwhile
            lock = os.open(folder, os.O_RDONLY)
            try:
                if _try_to_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
