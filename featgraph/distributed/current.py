"""Which engine the code that runs belongs to."""

from __future__ import annotations

from contextvars import ContextVar

from featgraph.distributed.engines.null import NullEngine
from featgraph.distributed.engines.protocol import Engine

__all__ = ["current_engine", "engine_of_context"]

#: Set where several ranks run in one process.
engine_of_context: ContextVar[Engine] = ContextVar("featgraph_engine")

_ALONE = NullEngine()


def current_engine() -> Engine:
    """Return the engine of the rank that this code runs on.

    It is that of the loopback rank whose function calls it, and else one of a single
    rank.

    Examples
    --------
    >>> import featgraph as fg
    >>> fg.distributed.current_engine().size
    1
    >>> fg.distributed.run_ranks(2, lambda e: fg.distributed.current_engine() is e)
    [True, True]
    """
    return engine_of_context.get(_ALONE)
