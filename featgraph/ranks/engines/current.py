"""The engine of the current rank, and the engine of a single rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

from featgraph.ranks.engines.calls import Call
from featgraph.ranks.engines.messages import Bytes, MessageEngine
from featgraph.ranks.engines.protocol import Beside, Engine, GpuArray

__all__ = [
    "NullEngine",
    "current_engine",
    "engine_of_context",
    "engine_of_process",
    "is_begun",
]


class NullEngine(MessageEngine):
    """The engine of a single rank: every call returns the rank's own arrays.

    Examples
    --------
    >>> import numpy as np
    >>> import featgraph as fg
    >>> engine = fg.distributed.NullEngine()
    >>> engine.all_reduce(np.array([1, 2]), "sum")
    array([1, 2])
    """

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _start(
        self, call: Call, messages: Sequence[Bytes]
    ) -> Callable[[], list[Bytes]]:
        return lambda: [messages[0].copy()]

    def reach_gpus(self, gpu: str, make: Callable[[int], GpuArray]) -> bool:
        """Return True: arrays need not be sent."""
        return True

    def hand_over(
        self,
        arrays: Sequence[GpuArray | None],
        sizes: Sequence[int],
        *,
        about: str = "",
        beside: Beside | None = None,
    ) -> list[GpuArray | None]:
        """Return the arrays themselves: see `GpuEngine`."""
        return list(arrays)


#: The engine of a loopback rank, if several ranks run in one process.
engine_of_context: ContextVar[Engine] = ContextVar("featgraph_engine")

#: The engine made by `init`, if it was called, for all threads.
engine_of_process: list[Engine] = []

#: The engine outside of `run_ranks` and before `init`.
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
