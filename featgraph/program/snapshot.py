"""What there is to a State at one moment: values, and what is due for each foldmap."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field
from featgraph.program.column import Column

__all__ = ["Left", "Snapshot"]

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Left:
    """What a foldmap has not seen yet, in host memory.

    Attributes
    ----------
    words : ndarray or None
        The vertices whose commits it has not seen; None for everything.
    left : ndarray or None
        Due vertices that ``.on`` has left out.
    scalars : tuple of (str, bytes), or None
        The scalars and vectors that it has read last.
    seen : Seen or None
        The version of the graph, and the puts, that it has seen; in a snapshot None:
        those of the State.
    """

    words: Words | None
    left: Words | None
    scalars: tuple[tuple[str, bytes], ...] | None
    seen: Any = None

    def on_host(self) -> Left:
        """Return it; what is left on a device has to be brought here first."""
        return self

    def joined(self, other: Left) -> Left:
        """Return what either has not seen; it is all where they differ in more."""
        if self.words is None or other.words is None or self.scalars != other.scalars:
            return Left(None, None, None)
        lefts = [left for left in (self.left, other.left) if left is not None]
        left = np.bitwise_or.reduce(lefts) if lefts else None
        return Left(self.words | other.words, left, self.scalars)


@dataclass(frozen=True)
class Snapshot:
    """The values of a State, and what is due.

    Attributes
    ----------
    superstep : int
        How many supersteps have run.
    columns : dict of str to Column
        Properties and scalars; their arrays are not shared.
    left : dict
        Foldmap, or the digest of its program, -> what it has not seen.
    """

    superstep: int
    columns: dict[str, Column]
    left: dict[Any, Left] = field(default_factory=dict)

    def by_digest(self) -> Snapshot:
        """Return one that names programs by their digests, as other processes can."""
        found: dict[Any, Left] = {}
        for key, left in self.left.items():
            digest = key if isinstance(key, str) else key.program.digest
            known = found.get(digest)
            found[digest] = left if known is None else known.joined(left)
        return Snapshot(self.superstep, self.columns, found)
