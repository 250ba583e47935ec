"""The engine of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from featgraph.ranks.engines.calls import Call
from featgraph.ranks.engines.messages import Bytes, MessageEngine
from featgraph.ranks.engines.protocol import Beside, GpuArray

__all__ = ["NullEngine"]


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
