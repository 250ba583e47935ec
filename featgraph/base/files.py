"""Files that the package writes and reads back: States, checkpoints, slices, kernels.

Such files are untrusted input. All formats use these functions to open and write them:

``open_file``       open a regular file, not a link; never blocks, as a FIFO would
``read_file``       read a file of limited size
``load_json``       parse JSON; `ValueError` also for nesting that is too deep
``write_file``      write a new file and sync it to the disk; never through a link
``temporary_folder`` make a folder, and remove what is left of it at the end
``lock_folder``     lock a folder for one writer
``replace_private`` replace a file of a cache atomically
``read_arrays``     read arrays that take no more memory than their file
``read_private``    read a file that only this user can have written

All but `read_arrays` raise `OSError` for an unexpected file; callers raise an error of
their format from it.

Compiled kernels are pickles: write access to one is enough to run code. Before such a
file is read, `why_distrusted` and `read_private` check its folder, every folder above
it and the file itself: each must belong to this user (above the cache: or to the
system), and must not be writable by other users.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import checked_arguments
from featgraph.base.errors import ArgumentError, FileFormatError

__all__ = [
    "DistrustedError",
    "NotPlainError",
    "create_file",
    "digest_of",
    "load_json",
    "lock_folder",
    "make_private",
    "open_file",
    "read_arrays",
    "read_file",
    "read_private",
    "rename_file",
    "rename_whole",
    "replace_private",
    "replacing",
    "sync_folder",
    "temporary_folder",
    "why_distrusted",
    "write_arrays",
    "write_file",
]

Array = npt.NDArray[Any]

#: Flags of `os.open`: closed in child programs; a new file, which must not exist.
_CLOSED = getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSED
#: Nonblocking: a FIFO is opened at once, and refused.
_OLD = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _CLOSED
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
#: Bytes that `digest_of` reads at a time.
_CHUNK = 1 << 22


class NotPlainError(OSError):
    """A link, or not a regular file; ``strerror`` describes it."""


# -- reading


def open_file(path: Path, *, follows: bool = False) -> tuple[int, int]:
    """Open a regular file for reading; return its descriptor and size.

    Parameters
    ----------
    path : Path
    follows : bool, optional
        Whether links are followed: for a path that the user gave, not for files that
        were found in a folder.

    Raises
    ------
    OSError
        If the file is missing, or is a link, a FIFO, a device, ...
    """
    try:
        handle = os.open(path, _OLD if follows else _OLD | _NO_LINK)
    except ValueError as error:  # a null byte in its name
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error
    except OSError as error:
        if error.errno == errno.ELOOP and not follows:
            raise NotPlainError(errno.ELOOP, "a link", os.fspath(path)) from None
        raise
    found = os.fstat(handle)  # the open file; the path may have changed meanwhile
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise NotPlainError(errno.EINVAL, "not a regular file", os.fspath(path))
    return handle, found.st_size


def read_file(path: Path, most: int, *, follows: bool = False) -> bytes:
    """Return the contents of a regular file.

    Raises
    ------
    OSError
        As `open_file`, and if the file has more bytes than `most`.
    """
    handle, size = open_file(path, follows=follows)
    with os.fdopen(handle, "rb") as file:
        if size > most:
            raise OSError(errno.EFBIG, f"{size} bytes, more than {most}", str(path))
        return file.read(size)


def load_json(text: bytes | str) -> Any:
    """Parse JSON.

    Raises
    ------
    ValueError
        If the text is not JSON, or is nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal digits.

    Raises
    ------
    OSError
        As `open_file`.
    """
    handle, size = open_file(path)
    digest = hashlib.sha256()
    with os.fdopen(handle, "rb") as file:
        while size > 0 and (piece := file.read(min(size, _CHUNK))):
            digest.update(piece)
            size -= len(piece)
    return digest.hexdigest()


# -- writing


def create_file(path: Path, mode: int = 0o666) -> int:
    """Create a file and return its descriptor; `FileExistsError` if the path exists."""
    return os.open(path, _NEW, mode)


def write_file(
    path: Path, parts: Iterable[Any], mode: int = 0o666, *, syncs: bool = True
) -> str:
    """Write a new file to the disk; return its SHA-256, in hexadecimal digits.

    Without `syncs`, the file may be lost in a system crash.
    """
    digest = hashlib.sha256()
    handle = create_file(path, mode)
    try:
        for part in parts:
            digest.update(part)
            rest = memoryview(part)
            while rest.nbytes:
                rest = rest[_write(handle, rest) :]
        if syncs:
            _sync(handle)
    finally:
        os.close(handle)
    return digest.hexdigest()


def replace_private(path: Path, parts: Iterable[Any]) -> None:
    """Write a file of a cache atomically, replacing an existing one.

    Only this user can access the file. It is written under an unpredictable name in the
    same folder, and renamed.
    """
    with replacing(path) as temporary:
        write_file(temporary, parts, 0o600, syncs=False)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Return a context with a name next to a file; a file of that name replaces it."""
    # Next to the file: a rename within one file system is atomic.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield temporary
        _rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def rename_file(source: Path, target: Path) -> None:
    """Rename a file, replacing an existing target."""
    _rename(source, target)


def rename_whole(source: Path, target: Path) -> None:
    """Rename a file or folder, and sync the name to the disk."""
    _rename(source, target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _sync(handle)
    finally:
        os.close(handle)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Return a context with a new folder, which is removed at its end, if still there.

    A folder that was renamed stays.
    """
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def lock_folder(folder: Path, *, waits: bool) -> Iterator[bool]:
    """Return a context that locks a folder: False if the system has no locks.

    Raises
    ------
    BlockingIOError
        If another process has the lock; with `waits`, its end is waited for.
    """
    if os.name != "posix":
        yield False
        return
    import fcntl

    handle, is_locked = os.open(folder, os.O_RDONLY), True
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except OSError as error:
            if isinstance(error, BlockingIOError):
                raise
            is_locked = False  # a file system without locks
        yield is_locked
    finally:
        os.close(handle)


# System calls that may fail, each in a function that tests replace by a failing one.


def _write(handle: int, data: memoryview) -> int:
    return os.write(handle, data[: 1 << 30])  # Linux writes at most 2 GiB in a call


def _sync(handle: int) -> None:
    os.fsync(handle)


def _rename(source: Path, target: Path) -> None:
    source.replace(target)


# -- arrays of one file


@checked_arguments
def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays to one file, atomically.

    Parameters
    ----------
    path : str or path
        An existing file is replaced.
    arrays : mapping of str to array
        Arrays of numbers or text.

    Raises
    ------
    ArgumentError
        If an array holds objects.
    OSError
        If the file cannot be written.

    See Also
    --------
    read_arrays : Read the arrays.

    Notes
    -----
    The format is that of `numpy.savez`.
    """
    if not isinstance(arrays, Mapping):
        raise ArgumentError(
            "not arrays by name",
            where="arrays=",
            got=type(arrays).__name__,
            expected="a mapping of str to array",
        )
    stored = {name: np.asarray(values) for name, values in arrays.items()}
    for name, values in stored.items():
        if values.dtype.hasobject:
            raise ArgumentError(
                f"{name!r} holds objects",
                got=values.dtype,
                expected="arrays of numbers or text",
            )
    with replacing(Path(path)) as temporary, temporary.open("xb") as file:
        np.savez(file, **stored)  # type: ignore[arg-type]
        file.flush()
        _sync(file.fileno())


@checked_arguments
def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read a file of `write_arrays`, as untrusted input.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    dict of str to ndarray
        Arrays by name; together not larger than the file.

    Raises
    ------
    FileFormatError
        If the file has another format, or is damaged.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import featgraph as fg, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "factors.npz"
    ...     fg.write_arrays(file, {"factors": [[1.0, 2.0]]})
    ...     fg.read_arrays(file)["factors"].tolist()
    [[1.0, 2.0]]
    """
    try:
        handle, size = open_file(Path(path), follows=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _not_arrays(path, error) from error
    with os.fdopen(handle, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _arrays_of(archive, size)
        except Exception as error:  # any error of `zipfile` and NumPy's parsers
            raise _not_arrays(path, error) from error


def _arrays_of(archive: zipfile.ZipFile, size: int) -> dict[str, Array]:
    """Return the arrays of an archive, if they are no larger than the file."""
    members = archive.infolist()
    # A header may claim any size: without this check, reading could fill the memory.
    if sum(member.file_size for member in members) > size:
        raise ValueError("members larger than the file")
    found: dict[str, Array] = {}
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError("a compressed member")
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"an array of format {version}")
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
            left = member.file_size - file.tell()
            if dtype.hasobject or math.prod(shape) * dtype.itemsize != left:
                raise ValueError(f"an array of {dtype} and shape {shape}")
            array = np.frombuffer(file.read(), dtype).reshape(
                shape, order="F" if is_fortran else "C"
            )
        found[member.filename.removesuffix(".npy")] = array.copy()
    return found


def _not_arrays(path: str | os.PathLike[str], error: Exception) -> FileFormatError:
    return FileFormatError(
        "not a file of arrays, or a damaged one",
        where=os.fspath(path),
        got=f"{error!s:.200}" or type(error).__name__,
        expected="a regular file, as fg.write_arrays writes it",
        fix="save it again, or read another copy",
    )


# -- files of this user alone


#: Write permission of other users.
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class DistrustedError(OSError):
    """A file that other users may have written; the message has the reason."""


def make_private(folder: Path) -> None:
    """Create a folder and missing parents that only this user can access.

    The mode does not depend on the process's umask.
    """
    if not folder.parent.exists():
        make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def why_distrusted(folder: Path, own: int = 1, *, or_root: bool = False) -> str:
    """Return why code must not be loaded from a folder; "" if it may be.

    Parameters
    ----------
    folder : Path
        An existing folder. Its last `own` levels must not be links.
    own : int
        Number of levels, from the last one up, that must belong to this user alone.
        Levels above may belong to the system, or be sticky, as ``/tmp`` is.
    or_root : bool, optional
        Whether these levels may also belong to root.
    """
    for level in range(own):
        place = folder if level == 0 else folder.parents[level - 1]
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return f"{place} is a link or not a directory"
        problem = _why_not_ours(found, or_root)
        if problem:
            return f"{place} {problem}"
    above = Path(os.path.realpath(folder.parents[own - 1]))
    for place in (above, *above.parents):
        problem = _why_replaceable(place.lstat())
        if problem:
            return f"{place} {problem}"
    return ""


def read_private(path: Path, most: int = 1 << 62, *, or_root: bool = False) -> bytes:
    """Return the contents of a file that belongs to this user alone.

    Parameters
    ----------
    path : Path
    most : int, optional
        Most bytes of the file.
    or_root : bool, optional
        Whether the file may also belong to root.

    Raises
    ------
    DistrustedError
        If other users may have written the file.
    OSError
        If the file cannot be read, or has more bytes than `most`.
    """
    try:
        handle, size = open_file(path)
    except NotPlainError as error:
        raise DistrustedError(f"is {error.strerror}") from None
    with os.fdopen(handle, "rb") as file:
        problem = _why_not_ours(os.fstat(handle), or_root)
        if problem:
            raise DistrustedError(problem)
        if size > most:
            raise OSError(f"{path} has {size} bytes, more than {most}")
        return file.read(size)


def _why_not_ours(found: os.stat_result, or_root: bool) -> str:
    trusted = {0} if or_root else set()
    if hasattr(os, "getuid") and found.st_uid not in trusted | {os.getuid()}:
        return "belongs to another user"
    if hasattr(os, "getuid") and found.st_mode & _OTHERS:
        return "can be written by others"
    return ""


def _why_replaceable(found: os.stat_result) -> str:
    """Return why other users can replace the entries of a directory; "" if not."""
    if not hasattr(os, "getuid"):
        return ""
    if found.st_uid not in {os.getuid(), 0} and found.st_uid != _unmapped_user():
        return "belongs to another user, and can be replaced by that user"
    writers = found.st_mode & _OTHERS
    if writers & stat.S_IWGRP and _is_own_group(found.st_uid, found.st_gid):
        writers &= ~stat.S_IWGRP
    # In a sticky directory, users may only rename and delete their own entries.
    if writers and not found.st_mode & stat.S_ISVTX:
        return "lets others replace what is in it: it can be replaced by others"
    return ""


@cache
def _unmapped_user() -> int:
    """Return the user id of unmapped users in a container; -1 if ids are not mapped.

    In a user namespace, files of host users without a mapping, root among them, appear
    to belong to this id.
    """
    try:
        ids = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        if ids[:3] == ["0", "0", "4294967295"]:
            return -1
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


@cache
def _is_own_group(user: int, group: int) -> bool:
    """Whether a group has this user's name and no other members.

    Many systems create such a group for each user, and give it write permission.
    """
    import grp
    import pwd

    try:
        name, found = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
