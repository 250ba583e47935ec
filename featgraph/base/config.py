"""Settings, read once from ``FEATGRAPH_*`` variables and changeable at run time.

``featgraph.config.checked = True`` guards every index of the kernels generated from
then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from featgraph.base.arguments import (
    near_name,
    require_choice,
    require_flag,
    require_path,
    shown,
)
from featgraph.base.errors import ArgumentError

__all__ = ["VERSION", "Config", "config"]

#: Units of sizes: powers of ten, and of two.
_UNITS = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}


def _unless_off(name: str) -> Any:
    """Return a setting that is True unless a variable is 0."""
    return field(default_factory=lambda: os.environ.get(name, "1") != "0")


def _or_auto(name: str) -> Any:
    """Return a setting that is the text of a variable, by default "auto"."""
    return field(default_factory=lambda: os.environ.get(name, "auto"))


def _bytes_of(size: Any) -> int:
    """Return a size in bytes from an integer, or from text with a unit."""
    if type(size) is int and size > 0:
        return size
    text = size.strip() if isinstance(size, str) else ""
    number = text.rstrip("BbGgIiKkMmTt").rstrip()
    unit = text[len(number) :].strip().upper()
    try:
        count = int(float(number) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        count = 0
    if count <= 0:
        raise ArgumentError(
            "not a size of memory",
            where="fg.config.memory_limit",
            got=shown(size),
            expected="bytes, as an integer or as text such as '8 GB', or None",
        )
    return count


def _cache_dir() -> Path:
    chosen = os.environ.get("FEATGRAPH_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "featgraph"


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(part) for part in text.split(os.pathsep) if part)


@dataclass
class Config:
    """The settings of this process.

    Attributes
    ----------
    checked : bool
        Guard every index in generated code and report the first violation.
        ``FEATGRAPH_CHECKED``.
    cache : bool
        Keep generated sources and compiled kernels on disk. ``FEATGRAPH_CACHE``,
        default on.
    cache_dir : pathlib.Path
        The directory of this cache. ``FEATGRAPH_CACHE_DIR``, default the user's cache
        directory.
    cache_path : tuple of pathlib.Path
        Cache directories that are only read, and searched before `cache_dir`. They
        belong to root or to this user, and no other user may write to them. Given as a
        sequence of paths, or as text with ``os.pathsep`` between them.
        ``FEATGRAPH_CACHE_PATH``, default none.
    target : str
        ``"auto"``, ``"cuda"`` or ``"cpu"``: the target of calls with ``target="auto"``.
        ``FEATGRAPH_TARGET``.
    replay : bool
        Replay repeated supersteps on a GPU from recordings, which changes no result.
        ``FEATGRAPH_REPLAY``, default on.
    compile_behind : bool
        Compile optional kernels in the background, during a run and after it: kernels
        of the other direction, and loops over few vertices. If off, a run waits for the
        former, and the latter are not compiled on a GPU. ``FEATGRAPH_COMPILE_BEHIND``,
        default on.
    gpu_links : str
        How ranks on GPUs exchange rows: ``"windows"``, stores into memory of the peer;
        ``"engine"``, messages over NCCL; ``"host"``, copies through host memory; or
        ``"auto"``, the first of these that works on all ranks. It must be the same on
        all ranks. ``FEATGRAPH_GPU_LINKS``.
    messages : bool
        Write one line to stderr when a call waits more than 2 s for kernels to compile,
        once per process and only on a terminal. ``FEATGRAPH_MESSAGES``, default on.
    memory_limit : int, str or None
        Most GPU memory for graphs and States of this process, in bytes or as text, such
        as ``"8 GB"``. Edges that exceed it stay in host memory and are streamed through
        the GPU; results are bitwise the same. None: no limit. A change applies to
        graphs and States that are copied to the GPU afterwards.
        ``FEATGRAPH_MEMORY_LIMIT``.
    """

    checked: bool = field(default_factory=lambda: _flag("FEATGRAPH_CHECKED"))
    cache: bool = _unless_off("FEATGRAPH_CACHE")
    cache_dir: Path = field(default_factory=_cache_dir)
    cache_path: tuple[Path, ...] = field(
        default_factory=lambda: _paths(os.environ.get("FEATGRAPH_CACHE_PATH", ""))
    )
    target: str = _or_auto("FEATGRAPH_TARGET")
    replay: bool = _unless_off("FEATGRAPH_REPLAY")
    gpu_links: str = _or_auto("FEATGRAPH_GPU_LINKS")
    compile_behind: bool = _unless_off("FEATGRAPH_COMPILE_BEHIND")
    messages: bool = _unless_off("FEATGRAPH_MESSAGES")
    memory_limit: int | str | None = field(
        default_factory=lambda: os.environ.get("FEATGRAPH_MEMORY_LIMIT") or None
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Change a setting.

        Raises
        ------
        ArgumentError
            If there is no setting of that name, or the value is invalid. Invalid
            environment variables raise at their first use, since importing featgraph
            raises no error.
        """
        if name not in _CHECKS:
            raise ArgumentError(
                f"there is no setting {name!r}",
                where="fg.config",
                expected=", ".join(_CHECKS),
                fix=near_name(name, _CHECKS),
            )
        if name in vars(self):
            value = _CHECKS[name](f"fg.config.{name}", value)
        super().__setattr__(name, value)

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory limit in bytes; None without one.

        Raises
        ------
        ArgumentError
            If the setting is not a size.
        """
        return None if self.memory_limit is None else _bytes_of(self.memory_limit)


def _limit(name: str, value: Any) -> Any:
    if value is not None:
        _bytes_of(value)
    return value


def _path_list(name: str, value: Any) -> tuple[Path, ...]:
    """Return folders from text with ``os.pathsep``, one path or a sequence of paths."""
    if isinstance(value, str):
        return _paths(require_path(value, name))
    parts = value if isinstance(value, list | tuple) else [value]
    return tuple(Path(require_path(part, name)) for part in parts)


#: Setting -> the check that returns its value.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "checked": require_flag,
    "cache": require_flag,
    "cache_dir": lambda name, value: Path(require_path(value, name)),
    "cache_path": _path_list,
    "target": partial(require_choice, choices=("auto", "cpu", "cuda")),
    "replay": require_flag,
    "gpu_links": partial(require_choice, choices=("auto", "windows", "engine", "host")),
    "compile_behind": require_flag,
    "messages": require_flag,
    "memory_limit": _limit,
}
config = Config()


#: The version of the installed package.
try:
    VERSION = metadata.version("featgraph")
except metadata.PackageNotFoundError:  # a checkout that is not installed
    VERSION = "0"
