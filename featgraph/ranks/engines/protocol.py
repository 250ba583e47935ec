"""The interface of engines, and counters of the bytes that they send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass

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
#: ``write(rank, message)`` writes the message to a rank; ``read`` reads one from it.
Write = Callable[[int, npt.NDArray[np.uint8]], None]
Read = Callable[[int, npt.NDArray[np.uint8]], None]
#: A one-dimensional array of unsigned integers on a GPU.
GpuArray = Any


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank has sent to each rank, and received from it.

    Only the contents of messages count, not the headers of engines, nor messages of a
    rank to itself.

    Attributes
    ----------
    sent, received : array of int64
        Bytes by rank.
    """

    sent: npt.NDArray[np.int64]
    received: npt.NDArray[np.int64]

    @classmethod
    def none(cls, size: int) -> Traffic:
        """Return counters for `size` ranks, at zero."""
        return cls(np.zeros(size, np.int64), np.zeros(size, np.int64))

    def copy(self) -> Traffic:
        """Return a copy of the counters."""
        return Traffic(self.sent.copy(), self.received.copy())

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.sent - before.sent, self.received - before.received)


class Begun(Protocol):
    """An exchange in flight."""

    def finish(self) -> None:
        """Wait for the messages of other ranks, and read them; later calls do nothing.

        Raises the errors of the exchange.
        """


class Engine(Protocol):
    """The collective calls by which the ranks of a run exchange arrays.

    All ranks make the same calls in the same order. If they do not, each of them raises
    `RankMismatchError`, which names two ranks and their calls. If a rank fails, all
    others raise `WorkerLostError`. After either, every call of the engine raises.

    Arrays are NumPy arrays of booleans or numbers, and are not changed. Returned arrays
    belong to the caller, also on a single rank. `about` names the purpose of a call: it
    must be the same on all ranks, and errors quote it.
    """

    @property
    def rank(self) -> int:
        """The number of this rank."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def host(self) -> str:
        """The name of the host that this rank is on; see `hosts_of`."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Bytes sent and received by rank, since the start."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds spent in exchanges, since the start."""
        ...

    @property
    def moved_s(self) -> float:
        """Seconds in which exchanges were in flight, waits included, since the start.

        Unlike `waited_s`, it includes time in which this rank computed meanwhile.
        """
        ...

    @property
    def given(self) -> list[str]:
        """The arguments of this rank since its last call, as texts.

        The next call raises RankMismatchError if they differ between ranks.
        """
        ...

    def all_reduce(self, array: Array, operator: str, *, about: str = "") -> Array:
        """Combine the arrays of all ranks, entry by entry, in the order of ranks.

        The result has the same bits on every rank and with every engine.

        Parameters
        ----------
        array : array
            Of the same shape and dtype on all ranks, as is the result.
        operator : str
            "sum" or "product" of numbers; "min" or "max", which propagate NaN; "or" or
            "and" of booleans, or of the bits of integers.
        about : str
            The purpose of the call.
        """
        ...

    def all_gather(self, array: Array, *, about: str = "") -> list[Array]:
        """Return the arrays of all ranks, by rank.

        They have the same dtype and shape, but for the size of the first dimension.
        """
        ...

    def all_to_allv(self, arrays: Sequence[Array], *, about: str = "") -> list[Array]:
        """Send an array to each rank, and return the received ones, by rank.

        All arrays, on all ranks, have the same dtype and shape, but for the size of the
        first dimension. The array for the rank itself is returned as a copy.
        """
        ...

    def hand_bytes(
        self, sizes: Sequence[int], write: Write, read: Read, *, about: str = ""
    ) -> None:
        """Send each rank a message of bytes, written and read in memory of the engine.

        As `all_to_allv` of bytes, without arrays for the messages: between ranks that
        share memory, nothing is copied.

        Parameters
        ----------
        sizes : sequence of int
            Bytes of the message for each rank, itself included.
        write : callable
            ``write(rank, message)`` writes the message for a rank to an array of uint8,
            aligned to 16 bytes; called once for each rank whose message has bytes, in
            any order.
        read : callable
            ``read(rank, message)`` reads the message from a rank, aligned to 16 bytes
            and valid within the call; called for each message with bytes, in the order
            of ranks.
        about : str
            The purpose of the call.
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
        """Send one message of bytes to all other ranks, which is written once.

        As `hand_bytes` of the same bytes for each, but not to the rank itself.

        Parameters
        ----------
        nbytes : int
            Bytes of this rank's message; sizes may differ between ranks.
        write : callable
            ``write(message)`` writes the message to an array of uint8; called once.
        read : callable
            ``read(rank, message)`` reads the message from another rank, valid within
            the call; called for each that has bytes, in the order of ranks.
        about : str
            The purpose of the call.

        Notes
        -----
        Both arrays are aligned to 16 bytes.
        """
        ...

    def begin_bytes(
        self, sizes: Sequence[int], write: Write, read: Read, *, about: str = ""
    ) -> Begun:
        """Begin a `hand_bytes`, and return the exchange in flight.

        Messages are written within this call. Received ones are read by `finish`, at
        the latest by the next call, which calls it first: at most one exchange is in
        flight. All ranks begin and finish in the same order.
        """
        ...

    def broadcast(self, array: Array, root: int, *, about: str = "") -> Array:
        """Return the array of rank `root`.

        Arrays of the other ranks give only its shape and dtype.
        """
        ...

    def barrier(self, *, about: str = "") -> None:
        """Wait until all ranks have called it."""
        ...


class Beside(NamedTuple):
    """A stream for the exchange of GPU arrays, concurrent with the default stream.

    Attributes
    ----------
    stream : int
        The driver's handle of the stream: the exchange waits for earlier launches on
        it, and later ones see the received arrays.
    make : callable
        ``make(nbytes)`` returns memory for received arrays, usable on that stream.
    """

    stream: int
    make: Callable[[int], GpuArray]


@runtime_checkable
class GpuEngine(Engine, Protocol):
    """An engine that can send arrays of GPUs, too, without the host."""

    def reach_gpus(self, gpu: str, make: Callable[[int], GpuArray]) -> bool:
        """Return whether arrays of the ranks' GPUs can be sent; all ranks call it.

        Parameters
        ----------
        gpu : str
            A unique identifier of this rank's GPU.
        make : callable
            ``make(nbytes)`` returns an uninitialized array of bytes on this GPU.
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
        """Send an array to each rank, and return the received ones, by rank.

        Sent arrays must not be written afterwards, except, after another exchange, by
        launches on the same stream. Received arrays are read-only, and may be the sent
        ones themselves. The host does not wait for the GPU: later launches on the
        default stream see the received arrays.

        Parameters
        ----------
        arrays : sequence of array or None
            By rank, itself included; None for no bytes.
        sizes : sequence of int
            Bytes that each rank sends to this one.
        about : str
            The purpose of the call.
        beside : Beside, optional
            A stream in place of the default one; ranks of one process share it.
        """
        ...


def bytes_of(array: GpuArray | None) -> int:
    """Return the bytes of an array; 0 for None."""
    return 0 if array is None else int(array.size) * int(array.dtype.itemsize)
