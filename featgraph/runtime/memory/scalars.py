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
        #: Versions of the columns that were read.
        self._seen: list[tuple[str, int]] = []
        self._values: tuple[Any, ...] = ()

    def read(self) -> tuple[Any, ...]:
        """Return (name, bytes) of each that the State has; bytes, as nan is not nan.

        They are read again where a column has another version.
        """
        columns = self._state._columns
        seen = [(n, columns[n].version) for n in self._names if n in columns]
        if seen != self._seen:
            self._values = tuple(
                [(n, np.asarray(columns[n].on_host()).tobytes()) for n, _ in seen]
            )
            self._seen = seen
        return self._values
