"""Memory of States that are gone, for the next ones on their graphs (0050)."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

__all__ = ["Kit", "SpareMemory", "release_spare_memory"]

Array = Any
Pools = Any
#: Kits that are kept of a graph.
_MOST_KITS = 8
#: They take at most as many bytes as the graph's own arrays on the device, and of a
#: small graph as many as this. Beside them one is kept that takes more by itself.
_LEAST_BYTES = 1 << 26


def _count_references(entries: list[Array]) -> int:
    """Return how many references to an entry there are, as `Kit.take` sees them."""
    taken = entries.pop()
    return sys.getrefcount(taken)


_UNHELD = _count_references([object()])

_all: weakref.WeakSet[SpareMemory] = weakref.WeakSet()


class Kit:
    """The arrays of one State, by what they are for, and its pools of sets.

    Parameters
    ----------
    names : tuple of str
        Of the State's properties: another one with these finds its arrays here.
    pools : tuple of dict
        Of its sets.
    is_lent : callable
        Whether another library may have an array, whose memory is not used again then.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        pools: Pools,
        is_lent: Callable[[Array], bool],
    ) -> None:
        self.names, self.pools, self._is_lent = names, pools, is_lent
        #: Those that the State has, and those that an earlier one has left.
        self._own: dict[Hashable, Array] = {}
        self._left: dict[Hashable, list[Array]] = {}
        #: How many bytes the arrays take that are left.
        self.byte_count = 0

    def take(self, use: Hashable, shape: tuple[int, ...], dtype: Any) -> Array | None:
        """Return an array with any contents that a State before had for some use."""
        left = self._left.pop(use, None)
        if left is None:
            return None
        found = left.pop()
        if sys.getrefcount(found) > _UNHELD or self._is_lent(found):
            return None
        if found.shape != shape or found.dtype != dtype:
            return None
        self._own[use] = found
        return found

    def note(self, use: Hashable, array: Array) -> None:
        """Remember what the State uses an array for."""
        self._own[use] = array

    def end(self) -> None:
        """Have the arrays for the next State; what this one did not use is dropped."""
        left = self._own.values()
        self.byte_count = sum([a.size * a.dtype.itemsize for a in left])
        self._left = {use: [array] for use, array in self._own.items()}
        self._own = {}


class SpareMemory:
    """The kits of States on one graph that are gone.

    A State ends in any thread, and within whatever allocates there: nothing here waits
    for a lock, and each change of the list is one call.

    Parameters
    ----------
    lend_pools : callable
        ``lend_pools(to)`` gives pools of sets, for as long as an object lives.
    is_lent : callable
        See `Kit`.
    most_bytes : int, optional
        What the arrays of one State may take that are more than those of the graph.
    """

    def __init__(
        self,
        lend_pools: Callable[[object], Pools],
        is_lent: Callable[[Array], bool],
        most_bytes: int = 0,
    ) -> None:
        self._lend_pools, self._is_lent = lend_pools, is_lent
        self._most_bytes = most_bytes
        self._kits: list[Kit] = []
        _all.add(self)

    def lend(
        self, names: tuple[str, ...], to: object, arrays: Mapping[str, Array]
    ) -> tuple[Kit, Callable[[], object]]:
        """Return the kit of a State, and what gives it back before an object is gone.

        Parameters
        ----------
        names : tuple of str
            Of the State's properties.
        to : object
            It has the arrays for as long as it lives.
        arrays : mapping of str to array
            Those of the graph, which bound what is kept.
        """
        kit = self._find(names)
        if kit is None:
            kit = Kit(names, None, self._is_lent)
            kit.pools = self._lend_pools(kit)
        ending = weakref.finalize(to, self._give_back, kit, arrays)
        ending.atexit = False  # the driver may be gone before
        return kit, ending

    def release(self) -> bool:
        """Let go of all memory; return whether there was any."""
        had_any = any(kit.byte_count for kit in self._kits)
        self._kits.clear()
        return had_any

    def _find(self, names: tuple[str, ...]) -> Kit | None:
        """Return the kit that was given back last by a State with some properties."""
        for kit in reversed(self._kits.copy()):
            if kit.names == names:
                try:
                    self._kits.remove(kit)
                except ValueError:  # another thread has it
                    continue
                return kit
        return None

    def _give_back(self, kit: Kit, arrays: Mapping[str, Array]) -> None:
        kit.end()
        kits, least = self._kits, _LEAST_BYTES
        total = kit.byte_count + sum([k.byte_count for k in kits.copy()])
        if total <= least and len(kits) < _MOST_KITS:
            kits.append(kit)  # to add up the graph takes longer
            return
        most = max(sum([a.size * a.dtype.itemsize for a in [*arrays.values()]]), least)
        # One that is large would drive out all others.
        is_large = kit.byte_count > most
        if is_large and kit.byte_count > self._most_bytes:
            return
        kits.append(kit)
        while True:
            alike = [k for k in kits.copy() if (k.byte_count > most) == is_large]
            many, taken = len(alike), sum(k.byte_count for k in alike)
            if many <= 1 if is_large else many <= _MOST_KITS and taken <= most:
                return
            try:
                kits.remove(alike[0])
            except ValueError:  # another thread has it
                continue


def release_spare_memory() -> bool:
    """Let go of what is kept for States to come; return whether there was any."""
    released = [spare.release() for spare in list(_all)]
    return any(released)
