"""Memory of deleted States, kept for later States on their graphs (0050).

Allocating device memory takes longer than a short run, and recorded supersteps refer to
addresses. The arrays of a State are a `Kit`. When the State is deleted, its kit goes to
the `SpareMemory` of the graph, and from there to the next State with properties of the
same names.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

__all__ = ["Kit", "SpareMemory", "release_spare_memory"]

Array = Any
Pools = Any
#: Most kits that are kept for a graph.
_MOST_KITS = 8
#: All kits together take at most as many bytes as the graph's own arrays on the device
#: or, for a small graph, as this. One larger kit is kept in addition.
_LEAST_BYTES = 1 << 26


def _count_references(entries: list[Array]) -> int:
    """Return the reference count of an entry popped from a list, as `Kit.take` does."""
    taken = entries.pop()
    return sys.getrefcount(taken)


#: That count of an array to which nothing else refers.
_UNHELD = _count_references([object()])

_all: weakref.WeakSet[SpareMemory] = weakref.WeakSet()


class Kit:
    """The arrays of one State, by use, such as ("next", name), and its pools of sets.

    Parameters
    ----------
    names : tuple of str
        Names of the State's properties; a later State with the same names reuses the
        kit.
    pools : tuple of dict
        Pools of its sets.
    is_lent : callable
        Returns whether another library may have a view of an array, which is not reused
        then.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        pools: Pools,
        is_lent: Callable[[Array], bool],
    ) -> None:
        self.names, self.pools, self._is_lent = names, pools, is_lent
        #: Arrays that the State uses, and arrays of the State before it that it has not
        #: taken.
        self._own: dict[Hashable, Array] = {}
        self._left: dict[Hashable, list[Array]] = {}
        #: Bytes of the unused arrays.
        self.byte_count = 0

    def take(self, use: Hashable, shape: tuple[int, ...], dtype: Any) -> Array | None:
        """Return an array of an earlier State with the same use, or None.

        Its contents are undefined.
        """
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
        """Add an array that the State uses."""
        self._own[use] = array

    def end(self) -> None:
        """Offer the arrays in use to the next State, and drop those not taken."""
        left = self._own.values()
        self.byte_count = sum([a.size * a.dtype.itemsize for a in left])
        self._left = {use: [array] for use, array in self._own.items()}
        self._own = {}


class SpareMemory:
    """The kits of deleted States on one graph.

    A State may be deleted by the garbage collector in any thread, during any
    allocation. No method waits for a lock, therefore, and each change of the list is
    one atomic call.

    Parameters
    ----------
    lend_pools : callable
        ``lend_pools(to)`` returns pools of sets, reserved while `to` lives.
    is_lent : callable
        See `Kit`.
    most_bytes : int, optional
        Most bytes of a kit that is kept though it is larger than the graph's arrays.
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
        """Return a kit for a State, and a function that returns it early.

        Parameters
        ----------
        names : tuple of str
            Names of the State's properties.
        to : object
            The kit is returned when this object is deleted.
        arrays : mapping of str to array
            The arrays of the graph, whose size bounds the kept memory.
        """
        kit = self._find(names)
        if kit is None:
            kit = Kit(names, None, self._is_lent)
            kit.pools = self._lend_pools(kit)
        ending = weakref.finalize(to, self._give_back, kit, arrays)
        ending.atexit = False  # the driver may have shut down by then
        return kit, ending

    def release(self) -> bool:
        """Release all memory; return whether there was any."""
        had_any = any(kit.byte_count for kit in self._kits)
        self._kits.clear()
        return had_any

    def _find(self, names: tuple[str, ...]) -> Kit | None:
        """Return the kit returned last by a State with these properties, or None."""
        for kit in reversed(self._kits.copy()):
            if kit.names == names:
                try:
                    self._kits.remove(kit)
                except ValueError:  # another thread has it
                    continue
                return kit
        return None

    def _give_back(self, kit: Kit, arrays: Mapping[str, Array]) -> None:
        """Keep the kit of a deleted State; drop the oldest kits beyond the limits."""
        kit.end()
        kits, least = self._kits, _LEAST_BYTES
        total = kit.byte_count + sum([k.byte_count for k in kits.copy()])
        if total <= least and len(kits) < _MOST_KITS:
            kits.append(kit)  # computing the graph's bytes takes longer
            return
        most = max(sum([a.size * a.dtype.itemsize for a in [*arrays.values()]]), least)
        # A large kit would displace all others.
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
    """Release all memory kept for later States; return whether there was any."""
    released = [spare.release() for spare in list(_all)]
    return any(released)
