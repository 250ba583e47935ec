"""Which engine the code that runs belongs to."""

from __future__ import annotations

from contextvars import ContextVar

from featgraph.distributed.engines.null import NullEngine
from featgraph.distributed.engines.protocol import Engine

__all__ = ["current_engine", "engine_of_context", "engine_of_process", "is_begun"]

#: Set where several ranks run in one process.
engine_of_context: ContextVar[Engine] = ContextVar("featgraph_engine")

#: What `init` made, if it was called: one engine, on all threads.
engine_of_process: list[Engine] = []

_ALONE = NullEngine()


def is_begun() -> bool:
    """Whether there was an `init`, or this code runs on a loopback rank."""
    return bool(engine_of_process) or engine_of_context.get(None) is not None


def current_engine() -> Engine:
    """Return the engine of the rank that this code runs on.

    It is that of the loopback rank whose function calls it; else that of the process,
    if there was an `init`; else one of a single rank.

    Examples
    --------
    >>> import featgraph as fg
    >>> fg.distributed.current_engine().size
    1
    >>> fg.distributed.run_ranks(2, lambda e: fg.distributed.current_engine() is e)
    [True, True]
    """
    of_process = engine_of_process[0] if engine_of_process else _ALONE
    return engine_of_context.get(of_process)
