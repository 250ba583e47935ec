"""Failures of ranks: errors that are raised on all ranks, and the watch of lost ranks.

`on_all` raises an error of one rank on all, with its type and message. `Watching` is
the interface of a watch, by which a launcher that observes the processes of all ranks
reports a loss. Engines end their waits then; kernels that wait for posts of another
rank have a time limit, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from featgraph.base import errors
from featgraph.base.errors import (
    DeviceError,
    DistributedError,
    FeatGraphError,
    GraphInputError,
    WorkerLostError,
)
from featgraph.cuda import dialect
from featgraph.ranks.engines.messages import gather_texts
from featgraph.ranks.engines.protocol import Engine

__all__ = [
    "CONNECT_S",
    "MEETING",
    "Watching",
    "lost_rank",
    "of_lost_rank",
    "on_all",
    "require_same",
    "timeout_of",
    "watch_of",
    "watched",
]


_R = TypeVar("_R")

#: Attributes of a FeatGraphError that are sent to other ranks.
_PARTS = ("what", "where", "got", "expected", "fix")
#: Built-in errors that keep their type on other ranks.
_PLAIN = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
#: Limit in seconds for ranks to connect, after the launcher reports that all run.
CONNECT_S = 300.0
#: The offer of rank 0 with the place of the rendezvous.
MEETING = "meeting"
_LOST_FIX = (
    "see the last output of that rank; if it was still computing, "
    "pass more seconds as fg.distributed.init(timeout=)"
)
#: Seconds that a kernel waits for another rank if the engine has no limit.
_TIMEOUT = 30.0


def on_all(engine: Engine, function: Callable[[], _R], about: str) -> _R:
    """Run a function on each rank; if any fails, raise the first rank's error on all.

    The function must not exchange anything. A FeatGraphError or OSError has the same
    type on every rank; any other error becomes a DistributedError on the other ranks.
    """
    error: Exception | None = None
    try:
        result = function()
    except Exception as found:
        error = found
    texts = gather_texts(engine, "" if error is None else _fields_of(error), about)
    first = next((rank for rank, text in enumerate(texts) if text), None)
    if first is None:
        return result
    if first == engine.rank and error is not None:
        raise error
    raise _raised(json.loads(texts[first]), first, about) from error


def require_same(
    engine: Engine,
    text: str,
    what: str,
    fix: str,
    about: str,
    error: type[FeatGraphError] = GraphInputError,
) -> None:
    """Raise an error on all ranks if `text` differs between ranks."""
    found = gather_texts(engine, text, about)
    other = next((rank for rank, one in enumerate(found) if one != found[0]), 0)
    if other:
        raise error(
            what,
            got=f"{text} on rank {engine.rank}; ranks 0 and {other} differ",
            expected="the same on all ranks",
            fix=fix,
        )


def _fields_of(error: Exception) -> str:
    """Return an error as JSON text, for the other ranks."""
    parts: dict[str, Any] = {"type": type(error).__name__, "text": str(error)}
    if isinstance(error, FeatGraphError):
        for name in _PARTS:
            value = getattr(error, name)
            parts[name] = None if value is None else str(value)
    elif isinstance(error, OSError):
        path = None if error.filename is None else str(error.filename)
        parts["system"] = [error.errno, error.strerror, path]
    return json.dumps(parts)


def _raised(fields: dict[str, Any], rank: int, about: str) -> Exception:
    """Return the error of another rank, made from the fields that it has sent."""
    kind = getattr(errors, fields["type"], None)
    made: Exception
    if "what" in fields and isinstance(kind, type):
        what = f"{fields['what']}, as rank {rank} found"
        made = kind(what, **{name: fields[name] for name in _PARTS[1:]})
    elif "system" in fields:
        plain = {kind.__name__: kind for kind in _PLAIN}.get(fields["type"], OSError)
        made = plain(*fields["system"])
    else:
        got = f"{fields['type']}: {fields['text']}"
        made = DistributedError(f"{about} failed on rank {rank}", got=got)
        vars(made)["rank"] = rank
        return made
    made.add_note(f"{about} failed on rank {rank}")
    vars(made)["rank"] = rank  # the launcher names it
    return made


class Watching(Protocol):
    """A watch of lost ranks, independent of exchanges: a loss ends waits at once."""

    def waiting(self, call: object) -> AbstractContextManager[None]:
        """Return a context in which the rank is reported as waiting in a call."""

    def when_lost(self, wake: Callable[[], None]) -> None:
        """Register a function to be called, on another thread, when a rank is lost."""

    def watch_also(self, awaited: Callable[[], str]) -> Callable[[], None]:
        """Register a function that reports other waits of the rank, such as kernels.

        It is called on another thread, and returns a text, "" without a wait. Returns a
        function that removes it.
        """

    def raise_lost(self) -> None:
        """Raise `WorkerLostError` if a rank was lost."""

    def find_loss(self) -> WorkerLostError | None:
        """Return the error of a lost rank after a connection has ended, or None."""

    def offer(self, name: str, text: str) -> None:
        """Send a text to all ranks, under a name."""

    def await_offer(self, name: str) -> str:
        """Wait for a text that a rank offers under a name, and return it."""


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
            raise (watch.find_loss() or error) from None


def lost_rank(engine: Engine, number: int) -> WorkerLostError:
    """Return the error for a negative count: -1 - the rank that has not posted in time.

    If the engine's watch has found the loss, its error is returned.
    """
    rank, watch = -1 - number, watch_of(engine)
    known = None if watch is None else watch.find_loss()
    return known or WorkerLostError(
        f"rank {rank} of {engine.size} was lost",
        rank=rank,
        where=f"rank {engine.rank}, in a kernel that waits for its rows or counts",
        got=f"nothing within {timeout_of(engine):g} s",
        fix=_LOST_FIX,
    )


@contextmanager
def of_lost_rank(engine: Engine) -> Iterator[None]:
    """Replace an error of this rank's GPU by the error of a lost rank, if there is one.

    The windows of a lost rank are unmapped, so kernels that store into them fail.
    """
    try:
        yield
    except Exception as error:
        is_of_gpu = isinstance(error, DeviceError) or dialect.is_of_driver(error)
        watch = watch_of(engine) if is_of_gpu else None
        known = None if watch is None else watch.find_loss()
        if known is None:
            raise
        raise known from error


def timeout_of(engine: Engine) -> float:
    """Return the limit of a kernel's wait for another rank, in seconds."""
    return float(getattr(engine, "timeout", _TIMEOUT))


def watch_of(engine: Engine) -> Watching | None:
    """Return the engine's watch of lost ranks; None if it has none."""
    found: Watching | None = getattr(engine, "watch", None)
    return found
