"""The scalars and vectors that a foldmap reads: whether one has changed (S7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from featgraph.program.column import Column
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State

__all__ = ["ScalarsRead"]

_SCALAR = PropertyKind.SCALAR


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
        #: What the State had when they were read: its version, and columns.
        self._version = -1
        self._seen: list[tuple[str, Any]] = []
        self._values: tuple[Any, ...] = ()

    def read(self) -> tuple[Any, ...]:
        """Return (name, bytes) of each that the State has; bytes, as nan is not nan.

        They are read again where the State was written, or a reduce has put a result.
        """
        state = self._state
        columns = state._columns
        if state.version == self._version:
            for name, column in self._seen:
                if columns.get(name) is not column:
                    break
            else:
                return self._values
        version = state.version
        seen = [(name, columns.get(name)) for name in self._names]
        has = [(name, column) for name, column in seen if column is not None]
        self._values = tuple([(name, self._bytes_of(name, c)) for name, c in has])
        self._version, self._seen = version, seen
        return self._values

    def _bytes_of(self, name: str, column: Column) -> bytes:
        is_there = column.type.kind is _SCALAR
        found = column.values if is_there else self._state.stored(name)
        return np.asarray(found).tobytes()
