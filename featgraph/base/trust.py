"""Ownership of files: what is unpickled or run must belong to the user alone.

Compiled kernels are pickles: write access to one is enough to run code. Before a file
is read, its folder, every folder above it and the file itself are checked: each belongs
to this user (above the cache: or to the system), and no other user may write to it.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

from featgraph.base.files import NotPlainError, open_file

__all__ = ["DistrustedError", "make_private", "read_private", "why_distrusted"]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class DistrustedError(OSError):
    """A file that others may have written; its text says why."""


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone.

    What the process' umask says does not matter.
    """
    if not folder.parent.exists():
        make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def why_distrusted(folder: Path, own: int = 1, *, or_root: bool = False) -> str:
    """Return why nothing must be loaded from a folder, "" if it may.

    Parameters
    ----------
    folder : Path
        It is there, and its path goes through no links but above `own` levels.
    own : int
        How many levels, from the last one up, must be this user's alone. Those above
        may be the system's or sticky, as ``/tmp`` is.
    or_root : bool, optional
        Whether these levels may also be root's.
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
    """Return the contents of a file that is this user's alone, or that is root's.

    Raises
    ------
    DistrustedError
        If others may have written it.
    OSError
        If it cannot be read, or has more bytes than `most`.
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
    """Return why what stands in a directory is not safe from others."""
    if not hasattr(os, "getuid"):
        return ""
    if found.st_uid not in {os.getuid(), 0} and found.st_uid != _unmapped_user():
        return "belongs to another user, and can be replaced by that user"
    writers = found.st_mode & _OTHERS
    if writers & stat.S_IWGRP and _is_own_group(found.st_uid, found.st_gid):
        writers &= ~stat.S_IWGRP
    if writers and not found.st_mode & stat.S_ISVTX:
        return "lets others replace what is in it: it can be replaced by others"
    return ""


@cache
def _unmapped_user() -> int:
    """Return the owner of the host system's files in a container; -1 if not mapped.

    Where users are mapped, those without a number here, root among them, have this one.
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
    """Whether a group has this user's name and no other user in it.

    Many systems give each user such a group, and let it write.
    """
    import grp
    import pwd

    try:
        name, found = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
