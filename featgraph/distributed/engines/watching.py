"""What engines ask of the launcher that watches ranks, where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from featgraph.errors import WorkerLostError

__all__ = ["CONNECT_S", "MEETING", "Watching", "watched"]

#: Seconds in which ranks connect that are all there, as a launcher has said.
CONNECT_S = 300.0
#: What rank 0 offers: where the others find it.
MEETING = "meeting"


class Watching(Protocol):
    """Who is lost: found out beside exchanges, so that they need not wait for it."""

    def waiting(self, call: object) -> AbstractContextManager[None]:
        """Say that the rank waits for the others in a block, and in which call."""
        ...

    def when_lost(self, wake: Callable[[], None]) -> None:
        """Have something called, on another thread, when a rank is lost."""
        ...

    def ask_too(self, awaited: Callable[[], str]) -> Callable[[], None]:
        """Have something asked what else the rank waits for, on another thread.

        It returns that, or nothing. What is returned ends it.
        """
        ...

    def raise_lost(self) -> None:
        """Raise `WorkerLostError` if a rank was lost."""
        ...

    def word_of_loss(self) -> WorkerLostError | None:
        """Return who was lost, where a connection has ended; None if no one was."""
        ...

    def offer(self, name: str, text: str) -> None:
        """Give all ranks something to know."""
        ...

    def ask(self, name: str) -> str:
        """Wait for the message of a rank, and return it."""
        ...


@contextmanager
def watched(watch: Watching | None, call: object) -> Iterator[None]:
    """Have a watch know that a rank waits in a block, and in which call.

    Where a rank is found lost there, what is raised is what the watch knows of it.
    """
    if watch is None:
        yield
        return
    with watch.waiting(call):
        try:
            yield
        except WorkerLostError as error:
            raise (watch.word_of_loss() or error) from None
