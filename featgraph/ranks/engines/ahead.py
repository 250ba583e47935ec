"""Runs in which rank 0 works alone, and the other ranks get its results in batches.

If rank 0 has all vertices of a graph, the other ranks need only the results that decide
how a run continues. Rank 0 does not wait for them, and sends several results at once.
"""

from __future__ import annotations

import json
import struct
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, cast

import numpy as np

from featgraph.base.errors import RankMismatchError
from featgraph.ranks.engines.calls import lent, whole
from featgraph.ranks.engines.messages import NOTHING, Bytes, MessageEngine
from featgraph.ranks.engines.protocol import Array, Engine

__all__ = ["led"]

#: Most results of rank 0, and seconds since the first of them, before it sends them:
#: other ranks should not wait longer than for an ordinary exchange.
MOST_RESULTS, MOST_S = 256, 0.25


class _Ahead:
    """The queue of results: not yet sent on rank 0, not yet used on other ranks.

    There is one for each engine, since its exchanges have one order.
    """

    def __init__(self, engine: MessageEngine) -> None:
        self._engine = weakref.ref(engine)
        self._results: deque[tuple[str, Array]] = deque()
        self._since = 0.0
        self._is_telling = False

    def result(self, said: str, array: Array) -> Array:
        """Return the next result of rank 0, which is `array` there."""
        engine = self._of()
        if engine.rank:
            if not self._results:
                self._hand_over()
            known, found = self._results.popleft()
            if known != said:
                raise _went_another_way(engine.rank, f"calls {said}", known)
            return found
        now = time.monotonic()
        if not self._results:
            self._since = now
        self._results.append((said, array.copy()))
        if len(self._results) >= MOST_RESULTS or now - self._since > MOST_S:
            self._hand_over()
        return array.copy()

    def catch_up(self) -> None:
        """Send all results to other ranks, before any other exchange."""
        if self._results and not self._is_telling:
            engine = self._of()
            if engine.rank:
                text = "does something else"
                raise _went_another_way(engine.rank, text, self._results[0][0])
            self._hand_over()

    def _hand_over(self) -> None:
        engine, self._is_telling = self._of(), True
        try:
            message = NOTHING if engine.rank else _packed(self._results)
            told = engine.all_gather(message, about="what rank 0 has found")
        finally:
            self._is_telling = False
        self._results.clear()
        if engine.rank:
            self._results.extend(_unpacked(told[0]))

    def _of(self) -> MessageEngine:
        engine = self._engine()
        if engine is None:
            raise ReferenceError("the engine is gone")
        return engine


def led(engine: Engine) -> Engine:
    """Return an engine for ranks of which only rank 0 works.

    Its `all_reduce` returns the array of rank 0; arrays of other ranks are ignored. All
    other calls are those of `engine`, after pending results of rank 0 have been sent.
    """
    if not isinstance(engine, MessageEngine):
        return engine
    return cast(Engine, _LedEngine(engine))


class _LedEngine:
    """An engine for ranks of which only rank 0 works: see `led`."""

    def __init__(self, engine: MessageEngine) -> None:
        if engine.ahead is None:
            engine.ahead = _Ahead(engine)
        self._engine, self._ahead = engine, engine.ahead
        self.all_gather, self.all_to_allv = engine.all_gather, engine.all_to_allv
        self.hand_bytes, self.hand_to_all = engine.hand_bytes, engine.hand_to_all
        self.broadcast, self.barrier = engine.broadcast, engine.barrier

    def __getattr__(self, name: str) -> Any:
        # Rank, size, traffic, timeouts.
        return getattr(self._engine, name)

    def all_reduce(self, array: Array, operator: str, *, about: str = "") -> Array:
        """Return the array of rank 0."""
        own = lent(array)
        said = f"all_reduce({operator} of {whole(own)})"
        found: Array = self._ahead.result(
            f"{said}, for {about}" if about else said, own
        )
        return found


#: The length of the header before the arrays.
_HEAD = struct.Struct("<q")


def _packed(results: Iterable[tuple[str, Array]]) -> Bytes:
    told = [(said, array.dtype.str, array.shape) for said, array in results]
    head = json.dumps(told).encode()
    parts = [_HEAD.pack(len(head)), head, *(array.tobytes() for _, array in results)]
    return np.frombuffer(b"".join(parts), np.uint8)


def _unpacked(message: Bytes) -> Iterator[tuple[str, Array]]:
    data = message.tobytes()
    at = _HEAD.size + _HEAD.unpack_from(data)[0]
    for said, dtype, shape in json.loads(data[_HEAD.size : at]):
        count = prod(shape)
        array = np.frombuffer(data, dtype, count, at).reshape(shape).copy()
        at += array.nbytes
        yield said, array


def _went_another_way(rank: int, does: str, known: str) -> RankMismatchError:
    return RankMismatchError(
        f"rank {rank} went another way than rank 0",
        rank=rank,
        got=f"rank 0 has called {known}; rank {rank} {does}",
        expected="the same calls in the same order on every rank",
        fix="let nothing that differs between ranks decide what is called: not the "
        "rank, nor what only this rank has, nor a clock",
    )
