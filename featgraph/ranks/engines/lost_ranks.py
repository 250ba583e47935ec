"""Errors of lost ranks, for whose posts a kernel of this rank waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featgraph.base.errors import DeviceError, WorkerLostError
from featgraph.cuda import dialect
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.engines.watching import Watching

__all__ = ["lost_rank", "of_lost_rank", "timeout_of", "watch_of"]

_LOST_FIX = (
    "what that rank wrote last tells more; if it was still computing, "
    "fg.distributed.init(timeout=) with more seconds"
)
#: Seconds that a kernel waits for another rank if the engine has no limit.
_TIMEOUT = 30.0


def lost_rank(engine: Engine, number: int) -> WorkerLostError:
    """Return the error for a negative count: -1 - the rank that has not posted in time.

    It is that of the engine's watch, if that has found the loss.
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


@contextmanager
def of_lost_rank(engine: Engine) -> Iterator[None]:
    """Replace an error of this rank's GPU by that of a lost rank, if there is one.

    Windows of a lost rank are unmapped, so that kernels that store into them fail.
    """
    try:
        yield
    except Exception as error:
        watch = watch_of(engine) if _is_of_gpu(error) else None
        known = None if watch is None else watch.word_of_loss()
        if known is None:
            raise
        raise known from error


def _is_of_gpu(error: Exception) -> bool:
    return isinstance(error, DeviceError) or dialect.is_of_driver(error)


def timeout_of(engine: Engine) -> float:
    """Return the limit of a kernel's wait for another rank, in seconds."""
    return float(getattr(engine, "timeout", _TIMEOUT))


def watch_of(engine: Engine) -> Watching | None:
    """Return the engine's watch of lost ranks; None if it has none."""
    found: Watching | None = getattr(engine, "watch", None)
    return found
