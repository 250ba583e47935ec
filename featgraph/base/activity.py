"""What this process does at the moment, for those who wait for it.

Ranks that a launcher started tell it (0056): only a rank that computes can keep others
waiting for too long. It costs runs nothing that can be measured: a few references are
stored, and turned into text by the thread that tells.
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

#: A place as others can read it when the process has ended: superstep, how many bytes
#: the phase has, and these.
_PLACE = struct.Struct("<qH")
PLACE_BYTES = 512


class Activity:
    """What a process does, as the code that does it has said.

    Attributes
    ----------
    superstep : int or None
        Of the State on which the last superstep ran, or runs.
    phase : str
        What of it.
    checkpoints : str or None
        The folder of checkpoints that was opened last.
    compiling : int
        How many compilations have begun and not ended.
    page : writable buffer or None
        Of `PLACE_BYTES`: shared memory that has the superstep and the phase, too.
    """

    def __init__(self) -> None:
        self.superstep: int | None = None
        self.phase = ""
        self.checkpoints: str | None = None
        self.compiling = 0
        self.page: Any = None
        self._said: list[tuple[str, str]] = []

    def enter(self, superstep: int, phase: str) -> None:
        """Note which phase of which superstep begins."""
        self.superstep, self.phase = superstep, phase
        if self.page is not None:
            text = phase.encode()[: PLACE_BYTES - _PLACE.size]
            # It may be read at any time: no text is longer than what is there.
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
        """What is loaded or written, if that was said."""
        return self._innermost()[1]

    def _innermost(self) -> tuple[str, str]:
        try:  # another thread may just leave it
            return self._said[-1]
        except IndexError:
            return "computing", ""

    @contextmanager
    def doing(self, kind: str, what: object = "") -> Iterator[None]:
        """Say what is done in a block: "compiling", "loading" or "writing"."""
        said = kind, _path_or_text(what)
        self._said.append(said)
        try:
            yield
        finally:
            self._said.remove(said)


def place_in(page: bytes) -> tuple[int, str] | None:
    """Return the superstep and the phase that a process has left; None for none."""
    superstep, length = _PLACE.unpack(page[: _PLACE.size])
    text = page[_PLACE.size : _PLACE.size + length].decode(errors="ignore")
    return (superstep, text) if any(page) else None


def _path_or_text(what: object) -> str:
    return os.fspath(what) if isinstance(what, os.PathLike) else f"{what!s:.200}"


#: That of this process.
ACTIVITY = Activity()
doing = ACTIVITY.doing


def loading(reader: _F) -> _F:
    """Have a function that reads a file, its first argument, say so."""

    @functools.wraps(reader)
    def read(*args: Any, **kwargs: Any) -> Any:
        with doing("loading", args[0] if args else kwargs.get("path", "")):
            return reader(*args, **kwargs)

    return cast(_F, read)
