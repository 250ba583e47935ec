"""The interface of a launcher's watch of lost ranks, for engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from featgraph.base.errors import WorkerLostError

__all__ = ["CONNECT_S", "MEETING", "Watching", "watched"]

#: Limit in seconds for ranks to connect, after the launcher reports that all run.
CONNECT_S = 300.0
#: The offer of rank 0 with the place of the rendezvous.
MEETING = "meeting"


class Watching(Protocol):
    """A watch of lost ranks, independent of exchanges, which end at once by it."""

    def waiting(self, call: object) -> AbstractContextManager[None]:
        """Return a context in which the rank is reported as waiting in a call."""
        ...

    def when_lost(self, wake: Callable[[], None]) -> None:
        """Register a function to be called, on another thread, when a rank is lost."""
        ...

    def ask_too(self, awaited: Callable[[], str]) -> Callable[[], None]:
        """Register a function that reports other waits of the rank, such as kernels.

        It is called on another thread, and returns a text, "" without a wait. Returns a
        function that removes it.
        """
        ...

    def raise_lost(self) -> None:
        """Raise `WorkerLostError` if a rank was lost."""
        ...

    def word_of_loss(self) -> WorkerLostError | None:
        """Return the error of a lost rank after a connection has ended, or None."""
        ...

    def offer(self, name: str, text: str) -> None:
        """Send a text to all ranks, under a name."""
        ...

    def ask(self, name: str) -> str:
        """Wait for a text that a rank offers under a name, and return it."""
        ...


@contextmanager
def watched(watch: Watching | None, call: object) -> Iterator[None]:
    """Report to a watch that the rank waits in a call, within the block.

    If a WorkerLostError is raised there, it is replaced by the error of the watch.
    """
    if watch is None:
        yield
        return
    with watch.waiting(call):
        try:
            yield
        except WorkerLostError as error:
            raise (watch.word_of_loss() or error) from None
