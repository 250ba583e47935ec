"""The current activity of this process: computing, compiling, loading or writing.

Ranks started by a launcher report it (design note 0056), since only a rank that
computes counts as stalled when it keeps others waiting. Reporting costs a run nothing
measurable: the run stores a few references, and the reporting thread formats them.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

__all__ = ["ACTIVITY", "PLACE_BYTES", "Activity", "doing", "loading", "place_in"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: Header of `Activity.page`: superstep, and length in bytes of the phase's name, which
#: follows the header. The launcher reads the page after the process has died.
_PLACE = struct.Struct("<qH")
#: Size of the page in bytes; a longer name is cut off.
PLACE_BYTES = 512


class Activity:
    """The activity of a process, recorded by the code that runs.

    Attributes
    ----------
    superstep : int or None
        Number of the superstep that runs, or ran last.
    phase : str
        Its current phase.
    checkpoints : str or None
        The folder of checkpoints that was opened last.
    compiling : int
        Number of compilations in progress.
    page : writable buffer or None
        Shared memory of `PLACE_BYTES`, to which superstep and phase are copied.
    """

    def __init__(self) -> None:
        self.superstep: int | None = None
        self.phase = ""
        self.checkpoints: str | None = None
        self.compiling = 0
        self.page: Any = None
        #: Kind and subject of each `doing` block, the innermost one last.
        self._blocks: list[tuple[str, str]] = []

    def enter(self, superstep: int, phase: str) -> None:
        """Record that a phase of a superstep begins."""
        self.superstep, self.phase = superstep, phase
        if self.page is not None:
            self.show()

    def show(self) -> None:
        """Copy superstep and phase to the page."""
        superstep, text = self.superstep, self.phase.encode()
        text = text[: PLACE_BYTES - _PLACE.size]
        # The launcher may read at any time: the length is zero while the text changes.
        self.page[: _PLACE.size] = _PLACE.pack(superstep, 0)
        self.page[_PLACE.size : _PLACE.size + len(text)] = text
        self.page[: _PLACE.size] = _PLACE.pack(superstep, len(text))

    @property
    def kind(self) -> str:
        """One of "computing", "compiling", "loading" and "writing"."""
        if self.compiling > 0:
            return "compiling"
        return self._innermost()[0]

    @property
    def what(self) -> str:
        """The file or folder being loaded or written; "" if unknown."""
        return self._innermost()[1]

    def _innermost(self) -> tuple[str, str]:
        try:  # another thread may leave its block at the same time
            return self._blocks[-1]
        except IndexError:
            return "computing", ""

    @contextmanager
    def doing(self, kind: str, what: object = "") -> Iterator[None]:
        """Record "compiling", "loading" or "writing" for the duration of a block."""
        block = kind, _path_or_text(what)
        self._blocks.append(block)
        try:
            yield
        finally:
            self._blocks.remove(block)


def place_in(page: bytes) -> tuple[int, str] | None:
    """Return the superstep and phase on a page; None if none was recorded."""
    superstep, length = _PLACE.unpack(page[: _PLACE.size])
    text = page[_PLACE.size : _PLACE.size + length].decode(errors="ignore")
    return (superstep, text) if any(page) else None


def _path_or_text(what: object) -> str:
    return os.fspath(what) if isinstance(what, os.PathLike) else f"{what!s:.200}"


#: The activity of this process.
ACTIVITY = Activity()
doing = ACTIVITY.doing


def loading(reader: _F) -> _F:
    """Decorate a function that reads a file, its first argument, with `doing`."""

    @functools.wraps(reader)
    def read(*args: Any, **kwargs: Any) -> Any:
        with doing("loading", args[0] if args else kwargs.get("path", "")):
            return reader(*args, **kwargs)

    return cast(_F, read)
