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

__all__ = [
    "VERSION",
    "Config",
    "config",
]

#: Units of sizes: powers of ten, and of two.
_UNITS = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}


def _bytes_of(given: Any) -> int:
    """Return a number of bytes that was given as one, or as text with a unit."""
    if type(given) is int and given > 0:
        return given
    text = given.strip() if isinstance(given, str) else ""
    number = text.rstrip("BbGgIiKkMmTt").rstrip()
    unit = text[len(number) :].strip().upper()
    try:
        size = int(float(number) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise ArgumentError(
            "not a size of memory",
            where="fg.config.memory_limit",
            got=shown(given),
            expected="bytes, as an integer or as text such as '8 GB', or None",
        )
    return size


def _cache_dir() -> Path:
    chosen = os.environ.get("FEATGRAPH_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "featgraph"


def _paths(given: str) -> tuple[Path, ...]:
    return tuple(Path(part) for part in given.split(os.pathsep) if part)


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
        Where they are kept. ``FEATGRAPH_CACHE_DIR``, default the user's cache
        directory.
    cache_path : tuple of pathlib.Path
        Cache directories that are only read, and searched before `cache_dir`. They
        belong to root or to this user, and no other user may write to them. Given as a
        sequence of paths, or as text with ``os.pathsep`` between them.
        ``FEATGRAPH_CACHE_PATH``, default none.
    target : str
        ``"auto"``, ``"cuda"`` or ``"cpu"``: the target where none is asked for.
        ``FEATGRAPH_TARGET``.
    replay : bool
        Run supersteps that repeat on a GPU from recordings, which changes no result.
        ``FEATGRAPH_REPLAY``, default on.
    compile_behind : bool
        Have kernels that a run can do without compiled while it goes on, and behind it:
        those of another direction, and loops over few vertices. Otherwise a run waits
        for the former, and the latter are not compiled on a GPU.
        ``FEATGRAPH_COMPILE_BEHIND``, default on.
    gpu_links : str
        How ranks on GPUs hand rows over: ``"windows"``, memory that peers store into;
        ``"engine"``, messages over NCCL; ``"host"``, by way of the host's memory; or
        ``"auto"``, the first of these that all ranks can. Alike on all ranks.
        ``FEATGRAPH_GPU_LINKS``.
    messages : bool
        Write a line to stderr, once in a process and only on a terminal, where a call
        waits for its kernels to compile for more than 2 s. ``FEATGRAPH_MESSAGES``,
        default on.
    memory_limit : int, str or None
        How much memory of its GPU this process may take for graphs and States, in bytes
        or as text: ``"8 GB"``. Edges for which that is too little stay in the host's
        memory, and are streamed through the GPU; results have the same bits. None sets
        no limit. It counts for graphs and States that come to the GPU from then on.
        ``FEATGRAPH_MEMORY_LIMIT``.
    """

    checked: bool = field(default_factory=lambda: _flag("FEATGRAPH_CHECKED"))
    cache: bool = field(
        default_factory=lambda: os.environ.get("FEATGRAPH_CACHE", "1") != "0"
    )
    cache_dir: Path = field(default_factory=_cache_dir)
    cache_path: tuple[Path, ...] = field(
        default_factory=lambda: _paths(os.environ.get("FEATGRAPH_CACHE_PATH", ""))
    )
    target: str = field(
        default_factory=lambda: os.environ.get("FEATGRAPH_TARGET", "auto")
    )
    replay: bool = field(
        default_factory=lambda: os.environ.get("FEATGRAPH_REPLAY", "1") != "0"
    )
    gpu_links: str = field(
        default_factory=lambda: os.environ.get("FEATGRAPH_GPU_LINKS", "auto")
    )
    compile_behind: bool = field(
        default_factory=lambda: os.environ.get("FEATGRAPH_COMPILE_BEHIND", "1") != "0"
    )
    messages: bool = field(
        default_factory=lambda: os.environ.get("FEATGRAPH_MESSAGES", "1") != "0"
    )
    memory_limit: int | str | None = field(
        default_factory=lambda: os.environ.get("FEATGRAPH_MEMORY_LIMIT") or None
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Change a setting.

        Raises
        ------
        ArgumentError
            If there is no setting of that name, which would change nothing, or it
            cannot have that value. Values of the environment are refused where they are
            used: importing featgraph raises no error.
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
            If it is no size.
        """
        return None if self.memory_limit is None else _bytes_of(self.memory_limit)


def _limit(name: str, given: Any) -> Any:
    if given is not None:
        _bytes_of(given)
    return given


def _path_list(name: str, given: Any) -> tuple[Path, ...]:
    """Return folders that were given as text, as one path or as several."""
    if isinstance(given, str):
        return _paths(require_path(given, name))
    parts = given if isinstance(given, list | tuple) else [given]
    return tuple(Path(require_path(part, name)) for part in parts)


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


try:
    VERSION = metadata.version("featgraph")
except metadata.PackageNotFoundError:  # a checkout that is not installed
    VERSION = "0"
