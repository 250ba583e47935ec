"""The interface of engines, counters of the bytes that they send, and their calls.

Begin with `Engine`, the calls by which ranks exchange arrays; a `GpuEngine` sends
arrays of GPUs, too. `Call` describes one collective call of one rank, which ranks
compare before they exchange data; `mismatch` makes the error that all ranks raise where
their calls differ. `whole` and `ragged` describe arrays, `sendable` prepares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError, RankMismatchError

__all__ = [
    "Array",
    "Begun",
    "Beside",
    "Call",
    "Engine",
    "GpuArray",
    "GpuEngine",
    "GpuMessages",
    "Read",
    "Traffic",
    "Write",
    "WriteOnce",
    "bytes_of",
    "mismatch",
    "ragged",
    "sendable",
    "whole",
]


Array = npt.NDArray[Any]
#: ``write(rank, message)`` writes the message to a rank; ``read`` reads one from it.
Write = Callable[[int, npt.NDArray[np.uint8]], None]
Read = Callable[[int, npt.NDArray[np.uint8]], None]
#: ``write(message)`` writes one message for all ranks.
WriteOnce = Callable[[npt.NDArray[np.uint8]], None]
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

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def host(self) -> str:
        """The name of the host that this rank is on; see `hosts_of`."""

    @property
    def traffic(self) -> Traffic:
        """Bytes sent and received by rank, since the start."""

    @property
    def waited_s(self) -> float:
        """Seconds spent in exchanges, since the start."""

    @property
    def moved_s(self) -> float:
        """Seconds in which exchanges were in flight, waits included, since the start.

        Unlike `waited_s`, it includes time in which this rank computed meanwhile.
        """

    @property
    def given(self) -> list[str]:
        """The arguments of this rank since its last call, as texts.

        The next call raises RankMismatchError if they differ between ranks.
        """

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

    def all_gather(self, array: Array, *, about: str = "") -> list[Array]:
        """Return the arrays of all ranks, by rank.

        They have the same dtype and shape, but for the size of the first dimension.
        """

    def all_to_allv(self, arrays: Sequence[Array], *, about: str = "") -> list[Array]:
        """Send an array to each rank, and return the received ones, by rank.

        All arrays, on all ranks, have the same dtype and shape, but for the size of the
        first dimension. The array for the rank itself is returned as a copy.
        """

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

    def hand_to_all(
        self, nbytes: int, write: WriteOnce, read: Read, *, about: str = ""
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

    def begin_bytes(
        self, sizes: Sequence[int], write: Write, read: Read, *, about: str = ""
    ) -> Begun:
        """Begin a `hand_bytes`, and return the exchange in flight.

        Messages are written within this call. Received ones are read by `finish`, at
        the latest by the next call, which calls it first: at most one exchange is in
        flight. All ranks begin and finish in the same order.
        """

    def broadcast(self, array: Array, root: int, *, about: str = "") -> Array:
        """Return the array of rank `root`.

        Arrays of the other ranks give only its shape and dtype.
        """

    def barrier(self, *, about: str = "") -> None:
        """Wait until all ranks have called it."""


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


class GpuMessages(NamedTuple):
    """Arrays of a GPU, one for each rank, and the bytes that each rank sends back.

    Attributes
    ----------
    arrays : sequence of array or None
        By rank, itself included; None for no bytes.
    sizes : sequence of int
        Bytes that each rank sends to this one.
    about : str
        The purpose of the call.
    beside : Beside or None
        A stream in place of the default one; ranks of one process share it.
    """

    arrays: Sequence[GpuArray | None]
    sizes: Sequence[int]
    about: str = ""
    beside: Beside | None = None


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

    def hand_over(self, messages: GpuMessages) -> list[GpuArray | None]:
        """Send an array to each rank, and return the received ones, by rank.

        Sent arrays must not be written afterwards, except, after another exchange, by
        launches on the same stream. Received arrays are read-only, and may be the sent
        ones themselves. The host does not wait for the GPU: later launches on the
        default stream see the received arrays.
        """


def bytes_of(array: GpuArray | None) -> int:
    """Return the bytes of an array; 0 for None."""
    return 0 if array is None else int(array.size) * int(array.dtype.itemsize)


#: Booleans, integers, real and complex numbers.
KINDS = "biufc"


class Call(NamedTuple):
    """A call that all ranks make together.

    Attributes
    ----------
    number : int
        The number of calls the rank had made, this one included.
    text : str
        The call with what must agree: operator, root, dtype, sizes.
    about : str
        The purpose, in the caller's words.
    given : str
        The arguments of the rank since the call before; they must agree, too.
    """

    number: int
    text: str
    about: str = ""
    given: str = ""

    def __str__(self) -> str:
        about = f", for {self.about}" if self.about else ""
        given = f", given {self.given}" if self.given else ""
        return f"{self.text}, its exchange {self.number}{about}{given}"


def sendable(array: Array) -> Array:
    """Return an array in native byte order and C order, copied only if it is not."""
    found = np.asarray(array)
    if found.dtype.kind not in KINDS:
        raise ArgumentError(
            "ranks exchange arrays of booleans and numbers only",
            got=f"dtype {found.dtype}",
        )
    return np.asarray(found, found.dtype.newbyteorder("="), order="C")


def whole(array: Array) -> str:
    """Describe an array whose sizes must all agree."""
    return f"{array.dtype}{list(array.shape)}"


def ragged(array: Array) -> str:
    """Describe an array whose first size may differ between ranks."""
    if array.ndim == 0 or 0 in array.shape[1:]:
        raise ArgumentError(
            "an array has no rows that could be counted",
            got=f"shape {array.shape}",
            expected="one dimension or more, none but the first of size 0",
            fix="array.reshape(1) of a single value",
        )
    sizes = ", ".join(["*", *map(str, array.shape[1:])])
    return f"{array.dtype}[{sizes}]"


def mismatch(
    calls: Mapping[int, Call], ended: Mapping[int, int]
) -> RankMismatchError | None:
    """Return the error for ranks whose calls differ; None if all make the same call.

    Parameters
    ----------
    calls : mapping
        The call of each rank that makes one.
    ended : mapping
        The number of exchanges of each rank that has ended.
    """
    does: dict[Call | None, list[int]] = {}
    for rank in sorted({*calls, *ended}):
        # All ranks that have ended are in one group, whatever they had called before.
        does.setdefault(None if rank in ended else calls[rank], []).append(rank)
    if len(does) == 1:
        return None
    # The largest group is taken as right; of equal ones, that of the lowest rank.
    groups = sorted(does.items(), key=lambda group: (-len(group[1]), group[1][0]))
    (known, ranks), *others = groups
    culprit = min(other for _, group in others for other in group)
    if known is not None and not ended:
        call = next(call for call, group in others if culprit in group)
        if call is not None and call._replace(given=known.given) == known:
            one, two = _different(known.given, call.given)
            return RankMismatchError(
                f"ranks {ranks[0]} and {culprit} were given different values",
                rank=culprit,
                got=f"rank {ranks[0]}: {one}; rank {culprit}: {two}",
                expected="the same scalars and arrays on every rank",
                fix="pass the same arguments on all ranks, and seeds of random numbers",
            )
    wrong = sorted(other for _, group in others for other in group)
    return RankMismatchError(
        f"{_named(wrong)} went another way than {_named(ranks)}",
        rank=culprit,
        got="; ".join(_clause(call, group, ended) for call, group in groups),
        expected="the same calls in the same order on every rank",
        fix="make the same calls on all ranks: no condition may depend on the rank, "
        "its own data or a clock",
    )


#: At most so many ranks are listed in an error; others are counted.
_MOST_NAMED = 6


def _named(ranks: Sequence[int]) -> str:
    """Return the ranks' numbers as a phrase; of many, the first ones and a count."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MOST_NAMED:
        some = ", ".join(map(str, ranks[: _MOST_NAMED - 1]))
        return f"ranks {some} and {len(ranks) - _MOST_NAMED + 1} others"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _clause(call: Call | None, ranks: Sequence[int], ended: Mapping[int, int]) -> str:
    """Return a clause with the call that ranks make, or with their end."""
    is_one = len(ranks) == 1
    if call is not None:
        return f"{_named(ranks)} {'calls' if is_one else 'call'} {call}"
    counts = sorted({ended[rank] for rank in ranks})
    count = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
    has, end = ("has", "its") if is_one else ("have", "their")
    return f"{_named(ranks)} {has} come to {end} end, after {count} exchanges"


def _different(one: str, other: str) -> tuple[str, str]:
    """Return the first pair of arguments that differ between two ranks."""
    pairs = zip_longest(one.split("; "), other.split("; "), fillvalue="nothing")
    return next((a, b) for a, b in pairs if a != b)
