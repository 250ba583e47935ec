"""One thread at a time: a State that runs in one thread is not for another."""

from __future__ import annotations

import threading
from typing import Any

from featgraph.base.errors import StateError

__all__ = ["InUse"]


class InUse:
    """Which thread runs supersteps on a State, if any does.

    The thread itself may come again, as callbacks do that run other foldmaps.
    """

    def __init__(self, graph: Any = None) -> None:
        #: Of a graph that changes: what keeps batches away meanwhile.
        self._turns: Any = None if graph is None else graph.turns
        self._owner: dict[str, int] = {}
        self._depth = 0
        #: How often something was begun that may change values.
        self.changes = 0

    def hold(self, doing: str, *, changes: bool = True) -> _Held:
        """Keep other threads away until the end.

        Parameters
        ----------
        doing : str
            What errors say.
        changes : bool
            Whether values may be others at the end.

        Raises
        ------
        StateError
            If another thread is there.
        """
        return _Held(self, doing, changes)

    def take(self, doing: str, *, changes: bool = True) -> None:
        """Keep other threads away until `leave` is called as often.

        Raises
        ------
        StateError
            If another thread is there.
        """
        me = threading.get_ident()
        # One step for the interpreter, so that two threads cannot both find it free.
        if self._owner.setdefault("thread", me) != me:
            raise _taken(doing)
        if self._turns is not None and self._depth == 0:
            try:
                self._turns.enter(doing)
            except StateError:
                self._owner.clear()
                raise
        self._depth += 1
        self.changes += changes

    def leave(self) -> None:
        """End what `take` has begun."""
        self._depth -= 1
        if self._depth == 0:
            if self._turns is not None:
                self._turns.leave()
            self._owner.clear()

    def check(self, doing: str) -> None:
        """Refuse what another thread's supersteps would mix up.

        Raises
        ------
        StateError
            If another thread is there.
        """
        me = threading.get_ident()
        if self._owner.get("thread", me) != me:
            raise _taken(doing)


class _Held:
    """The time in which a thread holds a State: several calls of a generator less."""

    __slots__ = ("_changes", "_doing", "_of")

    def __init__(self, of: InUse, doing: str, changes: bool) -> None:
        self._of, self._doing, self._changes = of, doing, changes

    def __enter__(self) -> None:
        self._of.take(self._doing, changes=self._changes)

    def __exit__(self, *error: object) -> None:
        self._of.leave()


def _taken(doing: str) -> StateError:
    return StateError(
        "another thread uses this State",
        where=doing,
        expected="one thread at a time",
        fix="give each thread a copy, state.copy(), or look at it in callback=",
    )
