"""Errors of ranks that are processes, and the last records that they send."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping

from featgraph.base.errors import DistributedError, RankMismatchError, WorkerLostError
from featgraph.ranks.engines.calls import Call
from featgraph.ranks.engines.records import Record

__all__ = ["broken_off", "failed", "last_word", "lost", "require_usable"]


def require_usable(
    rank: int, call: Call, process: int, refusal: DistributedError | None, is_open: bool
) -> None:
    """Raise DistributedError if the engine is closed, failed, or of another process."""
    if process != os.getpid():
        raise DistributedError(
            f"a forked child uses the engine of rank {rank}",
            got=str(call),
            fix="exchange in the process that called fg.distributed.init(); start "
            "others by the method 'spawn'",
        )
    if refusal is not None:
        raise copy.copy(refusal)
    if not is_open:
        raise DistributedError(f"rank {rank} has been closed", got=str(call))


def lost(why: Mapping[int, str], size: int, where: str) -> WorkerLostError:
    """Return the error for lost ranks, with the reason of each; it names the first."""
    rank, got = next(iter(why.items()))
    others = ", ".join(str(r) for r in why if r != rank)
    return WorkerLostError(
        f"rank {rank} of {size} was lost"
        + (f"; nor was there word of {others}" if others else ""),
        rank=rank,
        where=where,
        got=got,
        fix=f"what rank {rank} wrote last tells more; if it was still computing, "
        "fg.distributed.init(timeout=) with more seconds",
    )


def broken_off(rank: int, error: BaseException) -> DistributedError:
    """Return the error for calls after an exchange that was interrupted."""
    return DistributedError(
        f"an exchange of rank {rank} was broken off",
        got=f"{type(error).__name__}: {error}",
    )


def failed(record: Record, size: int, told_by: int) -> WorkerLostError:
    """Return the error for a failed rank, as reported by rank `told_by`."""
    by = "" if told_by == record.rank else f", as rank {told_by} found"
    return WorkerLostError(
        f"rank {record.rank} of {size} failed{by}", rank=record.rank, got=record.text
    )


def last_word(
    rank: int,
    exchanges: int,
    refusal: BaseException | None,
    error: BaseException | None,
) -> Record | None:
    """Return the last record of a rank; None if all ranks have seen its error.

    Parameters
    ----------
    rank, exchanges : int
        The rank, and its number of exchanges.
    refusal : BaseException or None
        The error that has disabled its engine, if any.
    error : BaseException or None
        The error that ends the process, if any.
    """
    if isinstance(refusal, RankMismatchError):
        return None
    if isinstance(refusal, WorkerLostError) and refusal.rank is not None:
        return Record("failed", exchanges, str(refusal.got), rank=refusal.rank)
    cause = refusal or error
    if cause is None:
        return Record("ended", exchanges)
    what = cause.what if isinstance(cause, DistributedError) else str(cause)
    return Record("failed", exchanges, f"{type(cause).__name__}: {what}", rank=rank)
