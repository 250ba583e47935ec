"""Settings, read once from ``FEATGRAPH_*`` variables and changeable at run time.

``featgraph.config.checked = True`` guards every index of the kernels generated from
then on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from featgraph.errors import ArgumentError

__all__ = ["Config", "config"]

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
            got=repr(given),
            expected="bytes, as an integer or as text such as '8 GB', or None",
        )
    return size


def _cache_dir() -> Path:
    chosen = os.environ.get("FEATGRAPH_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "featgraph"


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
    memory_limit: int | str | None = field(
        default_factory=lambda: os.environ.get("FEATGRAPH_MEMORY_LIMIT") or None
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Change a setting.

        Raises
        ------
        ArgumentError
            If there is none of that name: a slip would change nothing, and say so to
            no one.
        """
        known = type(self).__annotations__
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise ArgumentError(
                f"there is no setting {name!r}",
                where="fg.config",
                expected=", ".join(known),
                fix=f"did you mean {near[0]!r}?" if near else None,
            )
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


config = Config()
