"""Memory shared by ranks of one host, and its layout.

A rank has three files: one of words and records, and two alternating windows for
messages that do not fit in a record. Only that rank writes them; peers map them
read-only. They have no names: the kernel frees them when the last process that has them
ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import DistributedError
from featgraph.ranks.engines.messages import Bytes
from featgraph.ranks.engines.records import RECORD_BYTES

__all__ = ["ALIGNMENT", "Layout", "OwnMemory", "PeerMemory"]

Words = npt.NDArray[np.int64]
#: Alignment of messages, and distance of words in different cache lines, in bytes.
ALIGNMENT = 64
_STRIDE = ALIGNMENT // 8
#: Windows grow to multiples of so many bytes.
_GRAIN = 1 << 20
_NOTHING = np.empty(0, np.uint8)


class Layout:
    """The layout of words and records in a rank's memory, for `size` ranks.

    Attributes
    ----------
    last : int
        Index of the word that is nonzero once the last record is published.
    nbytes : int
        Bytes of all words and records.
    """

    last = 0

    def __init__(self, size: int) -> None:
        self._size = size
        words = (1 + 2 * size) * _STRIDE + 2 * size
        self._offsets = (1 + 2 * size) * _STRIDE
        self._records = -(-words * 8 // ALIGNMENT) * ALIGNMENT
        self.nbytes = self._records + (2 * size + 1) * RECORD_BYTES

    def told(self, rank: int) -> int:
        """Return the index of the word with the number published to a rank."""
        return (1 + rank) * _STRIDE

    def asleep(self, rank: int) -> int:
        """Return the index of the flag that this rank sleeps until `rank` wakes it."""
        return (1 + self._size + rank) * _STRIDE

    def offset(self, turn: int, rank: int) -> int:
        """Return the index of the word with the offset of a rank's message."""
        return self._offsets + turn * self._size + rank

    def record(self, turn: int, rank: int) -> slice:
        """Return the byte range of the record for a rank."""
        return self._record(turn * self._size + rank)

    @property
    def last_record(self) -> slice:
        """The byte range of the last record, for all ranks."""
        return self._record(2 * self._size)

    def _record(self, number: int) -> slice:
        begin = self._records + number * RECORD_BYTES
        return slice(begin, begin + RECORD_BYTES)


class OwnMemory:
    """The memory of this rank.

    Attributes
    ----------
    files : tuple of int
        Descriptors to send to peers.
    words, control : array
        The first file as int64 words and as bytes.
    """

    def __init__(self, layout: Layout) -> None:
        self.files = tuple(_nameless() for _ in range(3))
        _reserve(self.files[0], 0, layout.nbytes)
        self.control: Bytes = _mapped(self.files[0], layout.nbytes, mmap.PROT_WRITE)
        self.words: Words = _words(self.control)
        self._windows: list[Bytes] = [_NOTHING] * 2

    def window(self, turn: int, nbytes: int) -> Bytes:
        """Return a window of at least `nbytes` bytes.

        Its contents are lost, so no peer may still read it.
        """
        known = self._windows[turn]
        if known.size < nbytes:
            grown = -(-max(nbytes, known.size * 5 // 4) // _GRAIN) * _GRAIN
            self._windows[turn] = _NOTHING
            _reserve(self.files[1 + turn], known.size, grown)
            self._windows[turn] = _mapped(self.files[1 + turn], grown, mmap.PROT_WRITE)
        return self._windows[turn]

    def close(self) -> None:
        """Close the memory."""
        self.control, self.words, self._windows = _NOTHING, _words(_NOTHING), []
        _close(self.files)


class PeerMemory:
    """The memory of another rank of this host, read-only.

    Attributes
    ----------
    words, control : array
        See `OwnMemory`.
    """

    def __init__(self, layout: Layout, files: Sequence[int]) -> None:
        self._files = tuple(files)
        _require_bytes(self._files[0], layout.nbytes)
        self.control: Bytes = _mapped(self._files[0], layout.nbytes)
        self.words: Words = _words(self.control)
        self._windows: list[Bytes] = [_NOTHING] * 2

    def message(self, turn: int, offset: int, nbytes: int) -> Bytes:
        """Return a message in a window, as a view."""
        end = offset + nbytes
        if offset < 0 or self._windows[turn].size < end:
            file = self._files[1 + turn]
            _require_bytes(file, end if offset >= 0 else -1)
            self._windows[turn] = _mapped(file, os.fstat(file).st_size)
        return self._windows[turn][offset:end]

    def close(self) -> None:
        """Close the memory."""
        self.control, self.words, self._windows = _NOTHING, _words(_NOTHING), []
        _close(self._files)


def _nameless() -> int:
    """Return the descriptor of an empty file in memory, without a name."""
    file = os.memfd_create("featgraph")
    os.fchmod(file, 0o600)
    return file


def _reserve(file: int, known: int, nbytes: int) -> None:
    """Grow a file, with its pages allocated: a missing page would kill the process."""
    try:
        os.posix_fallocate(file, known, nbytes - known)
    except OSError as error:
        raise DistributedError(
            "no memory for what ranks of one host hand each other",
            got=f"{error.strerror}, for {nbytes} bytes",
            fix="ranks with smaller parts; fg.distributed.init(engine='gloo') takes "
            "less",
        ) from error


def _require_bytes(file: int, nbytes: int) -> None:
    found = os.fstat(file).st_size
    if not 0 <= nbytes <= found:
        raise DistributedError(
            "a message of another rank is not where it says",
            got=f"{found} bytes",
            expected=f"{nbytes}",
            fix="start all ranks with one version of featgraph",
        )


def _mapped(file: int, nbytes: int, also: int = 0) -> Bytes:
    memory = mmap.mmap(file, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | also)
    return np.frombuffer(memory, np.uint8)


def _words(control: Bytes) -> Words:
    return control[: control.size // 8 * 8].view(np.int64)


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
