"""Settings, read once from ``FEATGRAPH_*`` variables and changeable at run time.

``featgraph.config.checked = True`` guards every index of the kernels generated from
then on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Config", "config"]


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}


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


config = Config()
