"""Ranks that do not post what a kernel of this one waits for."""

from __future__ import annotations

from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.engines.watching import Watching
from featgraph.errors import WorkerLostError

__all__ = ["lost_rank", "timeout_of", "watch_of"]

_LOST_FIX = (
    "what that rank wrote last tells more; if it was still computing, "
    "fg.distributed.init(timeout=) with more seconds"
)
#: Seconds that a kernel waits for another rank, where the engine has no limit.
_TIMEOUT = 30.0


def lost_rank(engine: Engine, number: int) -> WorkerLostError:
    """Return the error for a count that says that a rank has posted nothing in time.

    A watch knows more of it.
    """
    rank, watch = -1 - number, watch_of(engine)
    known = None if watch is None else watch.word_of_loss()
    return known or WorkerLostError(
        f"rank {rank} of {engine.size} was lost",
        rank=rank,
        where=f"rank {engine.rank}, in a kernel that waits for its rows or counts",
        got=f"nothing within {timeout_of(engine):g} s",
        fix=_LOST_FIX,
    )


def timeout_of(engine: Engine) -> float:
    """Return how many seconds a kernel waits for another rank."""
    return float(getattr(engine, "timeout", _TIMEOUT))


def watch_of(engine: Engine) -> Watching | None:
    """Return what tells an engine of lost ranks; None where nothing does."""
    found: Watching | None = getattr(engine, "watch", None)
    return found
