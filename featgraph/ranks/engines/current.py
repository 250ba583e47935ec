"""The engine of the current rank."""

from __future__ import annotations

from contextvars import ContextVar

from featgraph.ranks.engines.null import NullEngine
from featgraph.ranks.engines.protocol import Engine

__all__ = ["current_engine", "engine_of_context", "engine_of_process", "is_begun"]

#: The engine of a loopback rank, if several ranks run in one process.
engine_of_context: ContextVar[Engine] = ContextVar("featgraph_engine")

#: The engine made by `init`, if it was called, for all threads.
engine_of_process: list[Engine] = []

_ALONE = NullEngine()


def is_begun() -> bool:
    """Whether `init` was called, or this code runs on a loopback rank."""
    return bool(engine_of_process) or engine_of_context.get(None) is not None


def current_engine() -> Engine:
    """Return the engine of the current rank.

    Within `run_ranks`, it is the engine of the calling loopback rank; after `init`, the
    engine of the process; else an engine of a single rank.

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
