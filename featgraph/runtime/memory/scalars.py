"""The scalars and vectors that a foldmap reads: whether one has changed (S7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from featgraph.program.state import State

__all__ = ["ScalarsRead"]


class ScalarsRead:
    """The values of scalars and vectors.

    Parameters
    ----------
    state : State
    names : sequence of str
        Those that a plan reads; what the State does not have counts for nothing.
    """

    def __init__(self, state: State, names: Sequence[str]) -> None:
        self._state = state
        self._names = names
        self._seen: tuple[Any, ...] = ()
        self._values: tuple[Any, ...] = ()

    def read(self) -> tuple[Any, ...]:
        """Return (name, bytes) of each that the State has; bytes, as nan is not nan.

        They are read again where the State was written, or a reduce has put a result.
        """
        columns = self._state._columns
        now = (
            self._state.version,
            *[column for n in self._names if (column := columns.get(n))],
        )
        same = len(now) == len(self._seen) and all(
            a is b for a, b in zip(now, self._seen, strict=True)
        )
        if not same:
            self._values = tuple(
                (name, np.asarray(self._state.stored(name)).tobytes())
                for name in self._names
                if name in self._state
            )
            self._seen = now
        return self._values
