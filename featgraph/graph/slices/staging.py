"""Copies of file contents to the GPU through page-locked memory.

Several threads fill pieces, while earlier ones are copied to the GPU: the reverse of
`featgraph.cuda.download`. No host array has all of the bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.cuda import arrays
from featgraph.cuda.driver import address_of

__all__ = ["send"]

Bytes = npt.NDArray[np.uint8]
#: ``fill(number, piece)`` fills a piece; returns the byte range to send.
Fill = Callable[[int, Bytes], tuple[int, int]]
#: Most threads: a dozen read and check as fast as a bus copies.
_MOST_THREADS = 16


class _Staging:
    """Pieces of page-locked memory; one sender at a time."""

    def __init__(self) -> None:
        self._pieces: list[Bytes] = []
        self._events: list[Any] = []
        self._sending = threading.Lock()

    def send(
        self, count: int, room: int, threads: int, fill: Fill, address: int
    ) -> None:
        """Copy `count` pieces, each filled by a thread, to an address of the GPU."""
        with self._sending:
            # Half of the pieces are being filled, half in flight to the GPU.
            threads = min(threads, _MOST_THREADS)
            self._make(min(2 * threads, max(count, 1)), room)
            streams, together = arrays.streams(), len(self._pieces)
            ahead, sent = -(-together // 2), 0
            filled: deque[Future[tuple[int, int]]] = deque()
            try:
                with ThreadPoolExecutor(threads, "featgraph-staging") as pool:
                    for number in range(count + ahead):
                        if number < count:
                            place = number % together
                            if number >= together:  # its last copy has left
                                streams.wait(self._events[place])
                            piece = self._pieces[place]
                            filled.append(pool.submit(fill, number, piece))
                        if number >= ahead and filled:
                            begin, end = filled.popleft().result()
                            place = (number - ahead) % together
                            first = int(self._pieces[place].ctypes.data) + begin
                            streams.start_write(address + sent, first, end - begin, 0)
                            streams.mark(self._events[place], 0)
                            sent += end - begin
            finally:  # also after an error, copies must end before pieces are reused
                arrays.synchronize()

    def _make(self, count: int, room: int) -> None:
        """Allocate up to `count` pieces of `room` bytes or more."""
        if self._pieces and self._pieces[0].size < room:
            self._pieces, self._events = [], []
        missing = count - len(self._pieces)
        if missing > 0:
            made = arrays.pinned(missing * room).reshape(missing, room)
            self._pieces += list(made)
            streams = arrays.streams()
            self._events += [streams.make_event() for _ in range(missing)]


_stagings: dict[int, _Staging] = {}
_making = threading.Lock()


def send(
    count: int, room: int, threads: int, fill: Fill, there: Any, begin: int = 0
) -> None:
    """Copy pieces one after the other to an array of the GPU; wait for all copies.

    Parameters
    ----------
    count : int
        Number of pieces.
    room : int
        Most bytes of a piece.
    threads : int
        Most threads that fill pieces.
    fill : callable
        ``fill(number, piece)`` fills a piece, and returns the byte range to send;
        called once for each piece, by any thread.
    there : array
        The array on the GPU.
    begin : int
        The byte of the array for the first piece.

    Raises
    ------
    Exception
        The error of the first piece that fails, after all threads have stopped.
    """
    with _making:
        staging = _stagings.setdefault(arrays.current_gpu(), _Staging())
    staging.send(count, room, threads, fill, address_of(there) + begin)
