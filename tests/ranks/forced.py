"""Moves and pieces of sweeps forced by a test, independent of times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from featgraph.ranks.engines import loopback
from featgraph.ranks.exchange import vertex_sets
from featgraph.ranks.moving.moves import Balancer, Move

__all__ = ["cut", "forced", "loops"]


class _Never:
    """An attribute that is False, whatever is set."""

    def __get__(self, *_: Any) -> bool:
        return False

    def __set__(self, *_: Any) -> None: ...


@contextmanager
def loops() -> Iterator[Any]:
    """Have an emulated GPU on which loops pay at once; ranks have some of their own."""
    from featgraph.runtime.loops import replay
    from featgraph.runtime.recording import cuda_trace
    from tests.simt.gpu import emulated_gpu

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "_MOST_SECONDS", np.inf)  # lanes take their time
        patch.setattr(replay, "_MOST_AWAY", np.inf)
        patch.setattr(cuda_trace, "_LOOP_SECONDS", 0.0)
        recorded = cuda_trace.RecordedSuperstep
        patch.setattr(recorded, "takes_turns", _Never(), raising=False)
        with emulated_gpu() as made:
            yield made


@contextmanager
def cut(piece_bytes: int, comes: str = "last") -> Iterator[None]:
    """Have ranks of loopback sweep in pieces that are worth so many bytes.

    Rows come when they are waited for, or ("first") as soon as they can.
    """
    begin = loopback._LoopbackEngine._begin

    def at_once(self: Any, *given: Any, **named: Any) -> Any:
        begin(self, *given, **named)()
        return lambda: None

    with pytest.MonkeyPatch.context() as patch:
        for target in vertex_sets.PIECE_BYTES:
            patch.setitem(vertex_sets.PIECE_BYTES, target, piece_bytes)
        if comes == "first":
            patch.setattr(loopback._LoopbackEngine, "_begin", at_once)
        yield


@contextmanager
def forced(moves: Mapping[int, list[Any]]) -> Iterator[None]:
    """Have runs move: behind a superstep of each, by its number, to cuts.

    Cuts that end with 1.0 are shares of the vertices.
    """

    def begin(self: Any, cuts: Any, *given: Any) -> None:
        self.cuts, self.found_s, self.proposals = cuts, 0.0, 0

    def proposal(self: Any, left: float) -> Move | None:
        self.proposals += 1
        if self.proposals not in moves:
            return None
        cuts = moves[self.proposals]
        if cuts[-1] == 1.0:
            last = int(self.cuts[-1])
            cuts = [min(32 * round(share * last / 32), last) for share in cuts]
            cuts[-1] = last
        return Move(np.array(cuts), 2.0, 1.0)

    def moved(self: Any, move: Move, took_s: float) -> None:
        self.cuts = move.cuts

    with pytest.MonkeyPatch.context() as patch:
        for name, function in (
            ("__init__", begin), ("proposal", proposal), ("moved", moved),
            ("add", lambda self, seconds: None), ("settle", lambda self: None),
        ):  # fmt: skip
            patch.setattr(Balancer, name, function)
        yield
