"""The log of changes of a graph, which States and results follow.

Each batch adds an entry. The log holds a limited number of edges and vertices, and
forgets the oldest batches first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["NO_PAIRS", "Changes", "Log", "Pairs"]

Array = npt.NDArray[Any]
#: Fewest entries that a log has room for; it has room for this share of the edges, too.
LEAST, SHARE = 4096, 8


class Pairs(NamedTuple):
    """Ends of edges.

    Attributes
    ----------
    sources, targets : ndarray of int32, shape (N,)
    """

    sources: Array
    targets: Array

    @property
    def count(self) -> int:
        """The number of edges."""
        return int(self.sources.size)

    @property
    def keys(self) -> Array:
        """A number for each pair, uint64."""
        u, v = (ends.astype(np.uint64) for ends in self)
        return u << np.uint64(32) | v

    @classmethod
    def of_keys(cls, keys: Array) -> Pairs:
        """Return the pairs of some numbers."""
        low = keys & np.uint64(0xFFFFFFFF)
        return cls((keys >> np.uint64(32)).astype(np.int32), low.astype(np.int32))


NO_PAIRS = Pairs(np.zeros(0, np.int32), np.zeros(0, np.int32))
_NO_IDS: Array = np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Changes:
    """How a graph has changed from one version to another.

    Edges of undirected graphs are listed once, in the direction in which they were
    given. Copies are listed as often as they came or went.

    Attributes
    ----------
    since, version : int
        The two versions: see `DynamicGraph.version`.
    inserted, deleted : Pairs
        Ends of the edges that came, and of those that went; an edge that did both is in
        neither.
    changed : Pairs
        Ends of edges that are in both versions, with other values of a column or at
        another place in their rows.
    born, dead : ndarray of int32
        Ids of the vertices that came and that were deleted, ascending.
    """

    since: int
    version: int
    inserted: Pairs = NO_PAIRS
    deleted: Pairs = NO_PAIRS
    changed: Pairs = NO_PAIRS
    born: Array = _NO_IDS
    dead: Array = _NO_IDS

    @property
    def size(self) -> int:
        """The number of entries."""
        pairs = self.inserted, self.deleted, self.changed
        return sum(p.count for p in pairs) + self.born.size + self.dead.size


class Log:
    """The changes of the latest batches."""

    def __init__(self) -> None:
        self._entries: deque[Changes] = deque()
        self._size = 0

    def add(self, changes: Changes, edge_count: int) -> None:
        """Add the changes of a batch; forget the oldest beyond the room for entries."""
        self._entries.append(changes)
        self._size += changes.size
        room = max(edge_count // SHARE, LEAST)
        while self._entries and self._size > room:
            self._size -= self._entries.popleft().size

    def since(
        self, version: int, now: int, is_there: Callable[[Pairs], Array]
    ) -> Changes | None:
        """Return the net changes since a version; None where that is forgotten.

        Parameters
        ----------
        version, now : int
            That version, and the present one.
        is_there : callable
            Returns for each pair whether the graph has such an edge now.
        """
        if version == now:
            return Changes(now, now)
        found = [entry for entry in self._entries if entry.since >= version]
        if not found or found[0].since != version:
            return None
        if len(found) == 1:
            return found[0]
        came, went = (_joined(getattr(e, n) for e in found) for n in _BOTH)
        keys, numbers = np.unique(np.append(came, went), return_inverse=True)
        ends = numbers[: came.size], numbers[came.size :]
        more, fewer = (np.bincount(n, minlength=keys.size) for n in ends)
        net = more - fewer
        again = keys[(net == 0) & (more > 0)]
        changed = np.append(_joined(e.changed for e in found), again)
        changed = np.setdiff1d(changed, keys[net != 0])
        other = Pairs.of_keys(changed)
        is_left = is_there(other)
        born, dead = _net_vertices(found)
        return replace(
            Changes(version, now),
            inserted=Pairs.of_keys(np.repeat(keys, np.maximum(net, 0))),
            deleted=Pairs.of_keys(np.repeat(keys, np.maximum(-net, 0))),
            changed=Pairs.of_keys(changed[is_left]),
            born=born,
            dead=dead,
        )


_BOTH = "inserted", "deleted"


def _joined(pairs: Iterable[Pairs]) -> Array:
    """Return the numbers of all pairs."""
    return np.concatenate([p.keys for p in pairs])


def _net_vertices(found: list[Changes]) -> tuple[Array, Array]:
    """Return the vertices that came, and those that went.

    An id that was given out again is in both.
    """
    was_there: dict[int, bool] = {}
    is_there: dict[int, bool] = {}
    for entry in found:
        for ids, is_born in ((entry.dead, False), (entry.born, True)):
            for vertex in ids.tolist():
                was_there.setdefault(vertex, not is_born)
                is_there[vertex] = is_born
    came = sorted(v for v, lives in is_there.items() if lives)
    went = sorted(v for v, lived in was_there.items() if lived)
    return np.array(came, np.int32), np.array(went, np.int32)
