"""What moves bytes between ranks, and how much it has moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = [
    "Array",
    "Begun",
    "Beside",
    "Engine",
    "GpuArray",
    "GpuEngine",
    "Read",
    "Traffic",
    "Write",
    "bytes_of",
]

Array = npt.NDArray[Any]
#: Writes the message to a rank; reads the one from a rank.
Write = Callable[[int, npt.NDArray[np.uint8]], None]
Read = Callable[[int, npt.NDArray[np.uint8]], None]
#: An array of the dialect, of one axis of unsigned integers.
GpuArray = Any


@dataclass(frozen=True)
class Traffic:
    """What a rank has handed to each rank and taken from it, in bytes.

    Counted are the contents of messages: not what engines say to each other beside
    them, and nothing that a rank hands to itself.

    Attributes
    ----------
    sent, received : array of int64
        Bytes by rank.
    """

    sent: npt.NDArray[np.int64]
    received: npt.NDArray[np.int64]

    @classmethod
    def none(cls, size: int) -> Traffic:
        """Return counters of so many ranks, at zero."""
        return cls(np.zeros(size, np.int64), np.zeros(size, np.int64))

    def copy(self) -> Traffic:
        """Return what has been counted up to now."""
        return Traffic(self.sent.copy(), self.received.copy())

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.sent - before.sent, self.received - before.received)


class Begun(Protocol):
    """An exchange that is under way."""

    def finish(self) -> None:
        """Wait for what the others hand over, and read it; once, however often asked.

        Raises what the exchange raises.
        """


class Engine(Protocol):
    """The calls by which the ranks of a run hand each other arrays.

    All ranks make the same calls in the same order. Where they do not, each of them
    raises `RankMismatchError`, which names two ranks and what they called. A rank that
    fails has all others raise `WorkerLostError`. After either, an engine takes no more
    calls.

    Arrays are NumPy's, of booleans, integers or real numbers, and are not changed. What
    a call returns is the caller's own, on one rank, too. `about` is said of each call:
    ranks must agree on it, and errors quote it.
    """

    @property
    def rank(self) -> int:
        """The number of this rank."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    @property
    def host(self) -> str:
        """The name of the host that this rank is on; see `hosts_of`."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Bytes by rank, counted from the beginning."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds spent in exchanges, from the beginning."""
        ...

    @property
    def moved_s(self) -> float:
        """Seconds in which bytes were under way, from the beginning, and ranks awaited.

        Those in which the rank computed meanwhile are not in `waited_s`.
        """
        ...

    @property
    def given(self) -> list[str]:
        """What this rank was given since its last call; all compare it in the next.

        A call in which it differs is a `RankMismatchError`, as one that differs.
        """
        ...

    def all_reduce(self, array: Array, operator: str, *, about: str = "") -> Array:
        """Combine the arrays of all ranks, entry by entry, in the order of ranks.

        So the result has the same bits on every rank and engine.

        Parameters
        ----------
        array : array
            Of the same shape and dtype on all ranks; the result has them, too.
        operator : str
            "sum" or "product" of numbers; "min" or "max", which NaN passes through;
            "or" or "and" of booleans, or of the bits of integers.
        about : str
            What the call is for.
        """
        ...

    def all_gather(self, array: Array, *, about: str = "") -> list[Array]:
        """Return the arrays of all ranks, by rank.

        They have one dtype, and as many dimensions; only the first may differ in size.
        """
        ...

    def all_to_allv(self, arrays: Sequence[Array], *, about: str = "") -> list[Array]:
        """Hand an array to each rank, and return what each rank handed to this one.

        All of them, on all ranks, have one dtype, and as many dimensions; only the
        first may differ in size. The one for the rank itself is returned as a copy.
        """
        ...

    def hand_bytes(
        self, sizes: Sequence[int], write: Write, read: Read, *, about: str = ""
    ) -> None:
        """Hand each rank a message of bytes, written and read where it passes.

        As `all_to_allv` of bytes, without arrays of their own: between ranks that share
        memory, nothing is copied.

        Parameters
        ----------
        sizes : sequence of int
            The bytes for each rank, itself included.
        write : callable
            Called with each rank once, in any order, and an array of so many bytes to
            write the message to. It begins at a multiple of 16.
        read : callable
            Called with each rank, in their order, and the message from it, which is
            only read, and only within the call. It begins at a multiple of 16.
        about : str
            What the call is for.
        """
        ...

    def hand_to_all(
        self,
        nbytes: int,
        write: Callable[[npt.NDArray[np.uint8]], None],
        read: Read,
        *,
        about: str = "",
    ) -> None:
        """Hand all other ranks one message of bytes, which is written once.

        As `hand_bytes` of the same bytes for each; nothing goes to the rank itself.

        Parameters
        ----------
        nbytes : int
            Of the message of this rank; ranks may have different ones.
        write : callable
            Called once with an array of so many bytes to write the message to.
        read : callable
            Called with each other rank, in their order, and the message from it, which
            is only read, and only within the call.
        about : str
            What the call is for.

        Notes
        -----
        Both arrays begin at multiples of 16.
        """
        ...

    def begin_bytes(
        self, sizes: Sequence[int], write: Write, read: Read, *, about: str = ""
    ) -> Begun:
        """Begin what `hand_bytes` does, and return what finishes it.

        Messages are written within this call. What comes is read when it is finished,
        at the latest within the next call, which finishes it first: at most one
        exchange is under way. All ranks make the calls in the same order, begin and
        finish included.
        """
        ...

    def broadcast(self, array: Array, root: int, *, about: str = "") -> Array:
        """Return the array of rank `root`.

        Those of the others have its shape and dtype, and nothing else of them counts.
        """
        ...

    def barrier(self, *, about: str = "") -> None:
        """Return when all ranks have called it."""
        ...


class Beside(NamedTuple):
    """Where arrays of a GPU are handed over beside what its default stream does.

    Attributes
    ----------
    stream : int
        The driver's handle of a stream: what has been launched there is waited for, and
        what is launched there next finds what came.
    make : callable
        ``make(nbytes)`` returns memory for what comes, which that stream may write.
    """

    stream: int
    make: Callable[[int], GpuArray]


@runtime_checkable
class GpuEngine(Engine, Protocol):
    """An engine that may hand over arrays of GPUs, too, without the host."""

    def reach_gpus(self, gpu: str, make: Callable[[int], GpuArray]) -> bool:
        """Whether it hands over arrays of the ranks' GPUs; all ranks call it.

        Parameters
        ----------
        gpu : str
            What tells this rank's GPU from all others.
        make : callable
            ``make(nbytes)`` returns an array of bytes there, with any contents.
        """
        ...

    def hand_over(
        self,
        arrays: Sequence[GpuArray | None],
        sizes: Sequence[int],
        *,
        about: str = "",
        beside: Beside | None = None,
    ) -> list[GpuArray | None]:
        """Hand an array to each rank, and return what each rank handed to this one.

        They are given away: nothing writes them any more, but, where ranks make another
        exchange in between, what is launched on the same stream. What comes is only
        read, and may be what was handed over itself. Nothing waits for the GPU: what is
        launched on the default stream behind the call finds the arrays there.

        Parameters
        ----------
        arrays : sequence of array or None
            By rank, itself included; None for no bytes.
        sizes : sequence of int
            How many bytes each rank hands to this one.
        about : str
            What the call is for.
        beside : Beside, optional
            Another stream, in the place of the default one. Ranks of one process have
            one in common.
        """
        ...


def bytes_of(array: GpuArray | None) -> int:
    """Return how many bytes are handed over."""
    return 0 if array is None else int(array.size) * int(array.dtype.itemsize)
