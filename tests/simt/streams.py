"""Order of an emulated GPU's streams: waits, and accesses that miss one.

Everything is done when it is asked for. What may be done later, or sooner, by the
driver is a `RaceError` as soon as it touches the same memory: a kernel that reads what
a copy has brought without having been told to wait for it, and a copy that overwrites
what a kernel reads that it has not waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simt.lanes import RaceError

__all__ = ["Order", "Touches"]

#: The default stream, and the host.
DEFAULT, HOST = 0, -1
#: Stream -> how many of its operations are known to be done.
Seen = dict[int, int]


class Order:
    """How much of what other streams do has been done before what a stream does."""

    def __init__(self) -> None:
        self._seen: dict[int, Seen] = {}
        #: The operation that runs: its stream, and which one of that it is.
        self.current = DEFAULT, 0

    def _of(self, stream: int) -> Seen:
        return self._seen.setdefault(stream, {})

    def begin(self, stream: int) -> None:
        """Begin an operation of a stream."""
        own = self._of(stream)
        own[stream] = own.get(stream, 0) + 1
        self.current = stream, own[stream]

    def seen(self, stream: int) -> Seen:
        """Return the operations that precede the next one of a stream."""
        return dict(self._of(stream))

    def hold(self, stream: int, seen: Seen | None) -> None:
        """Have a stream wait for that; None is of an event that was never recorded."""
        own = self._of(stream)
        for other, number in (seen or {}).items():
            own[other] = max(own.get(other, 0), number)

    def wait_for_default(self) -> None:
        """Have the host wait for the default stream."""
        self.hold(HOST, self._of(DEFAULT))

    def synchronize(self) -> None:
        """Have the host wait for all streams."""
        for stream in list(self._seen):
            self.hold(HOST, self._of(stream))

    def is_before(self, operation: tuple[int, int], stream: int) -> bool:
        """Whether an operation has been done before what a stream does now."""
        of, number = operation
        return of == stream or self._of(stream).get(of, 0) >= number

    @property
    def on_default(self) -> tuple[int, int]:
        """The last operation of the default stream."""
        return DEFAULT, self._of(DEFAULT).get(DEFAULT, 0)


@dataclass(frozen=True)
class Copied:
    """A copy on another stream, of or to some bytes of a piece of memory."""

    first: int
    last: int
    operation: tuple[int, int]
    writes: bool


class Touches:
    """The last access to each byte of a piece of memory.

    Kernels are watched in memory of the host, and from the first copy on another stream
    on; by the first byte of an entry.

    Attributes
    ----------
    watches : bool
        Whether kernels are.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self.watches = False
        self._copies: list[Copied] = []
        self._read: dict[int, tuple[int, int]] = {}
        self._written: dict[int, tuple[int, int]] = {}
        #: Stream and place of the driver's last fill, in the order of streams.
        self._filled = DEFAULT, 0

    def read(self, place: int) -> None:
        """Check that a kernel that reads has waited for the writers."""
        current = self._order.current
        for copy in self._copies:
            if copy.writes and copy.first <= place < copy.last:
                self._check(copy.operation, current[0], "a kernel reads what a copy")
        known = self._written.get(place, current)
        self._check(known, current[0], "a kernel reads what a kernel")
        self._read[place] = current

    def write(self, place: int) -> None:
        """Check that a kernel that writes has waited for all readers and writers."""
        current = self._order.current
        for copy in self._copies:
            if copy.first <= place < copy.last:
                self._check(copy.operation, current[0], "a kernel writes what a copy")
        for touched in (self._read, self._written):
            known = touched.get(place, current)
            self._check(known, current[0], "a kernel writes what a kernel")
        self._written[place] = current

    def fill(self) -> None:
        """Note what the driver does on the default stream, or the host."""
        self._order.begin(DEFAULT)
        self._filled = self._order.on_default

    def write_from_host(self) -> None:
        """See that the host writes what nothing on the GPU reads or writes by now."""
        operations = [c.operation for c in self._copies]
        operations += [*self._read.values(), *self._written.values()]
        for operation in operations:
            self._check(operation, HOST, "the host writes what the GPU")

    def copy_from(self, first: int, size: int, stream: int) -> None:
        """Record a copy from some bytes: their writers have finished."""
        for place, operation in self._written.items():
            if first <= place < first + size:
                self._check(operation, stream, "a copy reads what a kernel")
        self._note(first, size, writes=False)

    def copy_to(self, first: int, size: int, stream: int) -> None:
        """Record a copy to some bytes: their readers and writers have finished."""
        for touched in (self._read, self._written):
            for place, operation in touched.items():
                if first <= place < first + size:
                    self._check(operation, stream, "a copy overwrites what a kernel")
        self._check(self._filled, stream, "a copy overwrites what a fill")
        self._note(first, size, writes=True)

    def _note(self, first: int, size: int, *, writes: bool) -> None:
        last, self.watches = first + size, True
        self._copies = [
            c
            for c in self._copies
            if c.writes != writes or not (first <= c.first and c.last <= last)
        ]
        self._copies.append(Copied(first, last, self._order.current, writes))

    def _check(self, operation: tuple[int, int], stream: int, what: str) -> None:
        if not self._order.is_before(operation, stream):
            raise RaceError(f"{what} on another stream may not have done")
