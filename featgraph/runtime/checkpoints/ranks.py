"""What ranks do alike: when a checkpoint is due, and what the first one has found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from featgraph.graph import Graph

__all__ = ["Together"]

_R = TypeVar("_R")
#: Ranks ask each other again when this share of the time that is left has gone.
_SHARE = 0.5
#: And behind so many supersteps at most.
_MOST_SUPERSTEPS = 1 << 16


class Together:
    """Times, and what is found in files, by the first rank for all.

    Parameters
    ----------
    graph : Graph
        All ranks have a part of it, or it is of one rank.
    every : float
        Seconds from one checkpoint to the next.
    """

    def __init__(self, graph: Graph, every: float) -> None:
        self._ranks, self._every = graph.ranks, every
        self.begin()

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that reads and writes."""
        return self._ranks is None or self._ranks.engine.rank == 0

    def begin(self) -> None:
        """Have the time to the next checkpoint begin."""
        self._begun = time.monotonic()
        #: Supersteps since, and behind how many ranks ask each other.
        self._done, self._next = 0, 1

    @property
    def supersteps_left(self) -> int:
        """How many supersteps may run until ranks ask each other."""
        return max(self._next - self._done, 1)

    def has_been(self, seconds: float) -> bool:
        """Whether so much time has gone, as the first rank says."""
        return self._said(time.monotonic() - self._begun >= seconds) > 0

    def is_time(self, supersteps: int) -> bool:
        """Whether a checkpoint is due, behind so many supersteps since it was asked."""
        self._done += supersteps
        if self._ranks is None:
            return time.monotonic() - self._begun >= self._every
        if self._done < self._next:
            return False
        gone = time.monotonic() - self._begun
        each, left = gone / self._done, self._every - gone
        wait = left * _SHARE / each if each > 0 else 1
        wait = self._said(0 if left <= 0 else int(min(max(wait, 1), _MOST_SUPERSTEPS)))
        self._next = self._done + max(wait, 1)
        return wait == 0

    def _said(self, number: int) -> int:
        """Return a number of the first rank."""
        if self._ranks is None:
            return int(number)
        mine = np.array([number], np.int64)
        about = "whether a checkpoint is due"
        return int(self._ranks.engine.broadcast(mine, 0, about=about)[0])

    def first(self, function: Callable[[], _R]) -> _R | None:
        """Run a function on the first rank; where it raises, all do."""
        if self._ranks is None:
            return function()

        def run() -> _R | None:
            return function() if self.is_first else None

        return self._ranks.on_all(run, "opening checkpoints")  # type: ignore[no-any-return]

    def text(self, function: Callable[[], Any]) -> Any:
        """Return what the first rank has got of a function that all run, of JSON."""
        found = function()
        return self._sent(found)

    def told(
        self, function: Callable[[], tuple[Path, dict[str, Any]] | None]
    ) -> tuple[Path, dict[str, Any]] | None:
        """Return a path and a record that the first rank has found, or None."""
        found = self.first(function)
        if self._ranks is None:
            return found
        sent = self._sent(None if found is None else [str(found[0]), found[1]])
        return None if sent is None else (Path(sent[0]), sent[1])

    def _sent(self, value: Any) -> Any:
        if self._ranks is None:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        mine = np.frombuffer(text, np.uint8)
        parts = self._ranks.engine.all_gather(mine, about="what a checkpoint says")
        return json.loads(parts[0].tobytes())
