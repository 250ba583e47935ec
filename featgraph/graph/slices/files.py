"""Arrays of a folder of slices: written piece by piece, and read by ranges.

Files consist of blocks with a checksum each. A range is read as whole blocks, by
several threads that check them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.errors import FileFormatError
from featgraph.base.files import NotPlainError, create_file, open_file
from featgraph.base.interrupts import import_whole
from featgraph.graph.slices.manifest import BLOCK_BYTES, Manifest, SliceArray

__all__ = ["SliceWriter", "Slices"]

Array = NDArray[Any]
#: The fix in errors.
_AGAIN = "copy the folder again, or make it again: featgraph convert"
#: Blocks that a thread reads and checks at once.
_TOGETHER = 4


class SliceWriter:
    """A writer of one array of a folder.

    Parameters
    ----------
    folder : Path
    name : str
    dtype : dtype
    """

    def __init__(self, folder: Path, name: str, dtype: Any) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        handle = create_file(folder / f"{name}.bin")
        self._stream: IO[bytes] = os.fdopen(handle, "wb", buffering=0)
        self._block = np.empty(BLOCK_BYTES, np.uint8)
        self._checksums: list[str] = []
        self._count = self._filled = 0

    def __enter__(self) -> SliceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    def write(self, values: Array) -> None:
        """Append some elements."""
        data = np.ascontiguousarray(values, self._dtype).view(np.uint8)
        self._count += len(values)
        while data.size:
            some = data[: BLOCK_BYTES - self._filled]
            self._block[self._filled : self._filled + some.size] = some
            self._filled += some.size
            data = data[some.size :]
            if self._filled == BLOCK_BYTES:
                self._end_block()

    def finish(self) -> SliceArray:
        """Return the entry of the array in the manifest."""
        if self._filled:
            self._end_block()
        self._stream.close()
        return SliceArray(self._dtype.str, self._count, tuple(self._checksums))

    def _end_block(self) -> None:
        from featgraph.graph.slices.sums import checksum  # loads Numba

        block = self._block[: self._filled]
        self._checksums.append(checksum(block))
        data = block.data
        while len(data):
            data = data[self._stream.write(data) :]
        self._filled = 0


class Slices:
    """The arrays of a folder, which are read by ranges and checked.

    Parameters
    ----------
    folder : Path
    manifest : Manifest
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    def read(
        self,
        name: str,
        begin: int = 0,
        end: int | None = None,
        out: Array | None = None,
    ) -> Array:
        """Return some elements of an array, in native order.

        Parameters
        ----------
        name : str
        begin, end : int, optional
        out : ndarray, shape (end - begin,), optional
            Destination: contiguous, of any dtype.

        Raises
        ------
        FileFormatError
            If the file is missing, of the wrong size, or altered in the blocks read.
        """
        array = self.manifest.arrays[name]
        end = array.count if end is None else end
        if out is None:
            native = np.dtype(array.dtype).newbyteorder("=")
            out = np.empty(end - begin, native)
        self._read_blocks(name, begin, end, out)
        return out

    def mapped(self, name: str) -> Array:
        """Return an array as a memory map, after one check of the file."""
        array = self.manifest.arrays[name]
        with self._opened(name) as blocks:
            room = np.empty(_TOGETHER * BLOCK_BYTES, np.uint8)
            for number in range(0, len(array.checksums), _TOGETHER):
                blocks.read(number, room)
            return np.memmap(blocks.stream, array.dtype, "r", shape=(array.count,))

    def upload(self, name: str, begin: int, end: int, target: Any, at: int = 0) -> None:
        """Copy some elements of an array to the GPU, in the stored dtype.

        Parameters
        ----------
        name : str
        begin, end : int
        target : array of the dialect
            An array of the stored dtype.
        at : int
            Index in `target` of the first element.

        Raises
        ------
        FileFormatError
            As `read` does.
        """
        from featgraph.cuda.arrays import write_pieces  # imports the dialect

        width = np.dtype(self.manifest.arrays[name].dtype).itemsize
        first, last, step = begin * width, end * width, _TOGETHER * BLOCK_BYTES
        if first == last:
            return
        begun = first // BLOCK_BYTES
        count = -(-(last - begun * BLOCK_BYTES) // step)
        with self._opened(name) as blocks:

            def fill(number: int, piece: Array) -> tuple[int, int]:
                block = begun + number * _TOGETHER
                at = block * BLOCK_BYTES
                wanted = -(-last // BLOCK_BYTES) - block
                size = blocks.read(block, piece[: min(wanted * BLOCK_BYTES, step)])
                return max(first - at, 0), min(last - at, size)

            write_pieces(count, step, _threads(), fill, target, at * width)

    def _opened(self, name: str) -> _Blocks:
        return _Blocks(self.folder / f"{name}.bin", self.manifest.arrays[name])

    def _read_blocks(self, name: str, begin: int, end: int, out: Array) -> None:
        """Read elements of a file, and check all blocks that contain them."""
        dtype = np.dtype(self.manifest.arrays[name].dtype)
        width = dtype.itemsize
        first, last = begin * width, end * width
        if first == last:
            return
        is_plain = out.dtype == dtype
        numbers = range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES), _TOGETHER)
        rooms: list[Array] = []  # buffers that threads reuse
        with self._opened(name) as blocks:

            def read(number: int) -> None:
                at = number * BLOCK_BYTES
                stop = min(at + _TOGETHER * BLOCK_BYTES, blocks.nbytes)
                stop = min(stop, -(-last // BLOCK_BYTES) * BLOCK_BYTES)
                low, high = max(first, at), min(last, stop)
                part = out[(low - first) // width : (high - first) // width]
                if is_plain and (low, high) == (at, stop):
                    blocks.read(number, part.view(np.uint8))
                    return
                try:
                    room = rooms.pop()
                except IndexError:
                    room = np.empty(_TOGETHER * BLOCK_BYTES, np.uint8)
                blocks.read(number, room[: stop - at])
                part[:] = room[low - at : high - at].view(dtype)
                rooms.append(room)

            threads = _threads()
            if threads == 1 or len(numbers) == 1:
                for number in numbers:
                    read(number)
                return
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(read, numbers):
                    pass


class _Blocks:
    """The file of an array, of which any thread can read and check whole blocks.

    Parameters
    ----------
    path : Path
    array : SliceArray
    """

    def __init__(self, path: Path, array: SliceArray) -> None:
        self.path, self.nbytes = path, array.nbytes
        self._expected = np.array([int(c, 16) for c in array.checksums], np.uint64)
        try:
            handle, size = open_file(path)
        except FileNotFoundError:
            raise FileFormatError(
                "a slice is missing", where=str(path), fix=_AGAIN
            ) from None
        except NotPlainError as error:
            raise FileFormatError(
                "a slice is no file",
                where=str(path),
                got=error.strerror,
                expected="a regular file",
                fix=_AGAIN,
            ) from error
        self.stream: IO[bytes] = os.fdopen(handle, "rb", buffering=0)
        if size != array.nbytes:
            self.stream.close()
            raise FileFormatError(
                "a slice is truncated"
                if size < array.nbytes
                else "a slice is too long",
                where=str(path),
                got=f"{size} bytes",
                expected=f"{array.nbytes} bytes",
                fix=_AGAIN,
            )

    def __enter__(self) -> _Blocks:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    def read(self, number: int, out: Array) -> int:
        """Read as many blocks as fit, from `number` on; return the number of bytes.

        Raises
        ------
        FileFormatError
            If a block has been altered.
        """
        from featgraph.graph.slices.sums import checksums  # loads Numba

        begin, handle = number * BLOCK_BYTES, self.stream.fileno()
        data = out[: min(out.size, self.nbytes - begin)]
        done = 0
        while done < data.size:
            more = os.preadv(handle, [data[done:].data], begin + done)
            if not more:  # the file was truncated meanwhile
                break
            done += more
        found = checksums(data[:done], BLOCK_BYTES)
        expected = self._expected[number : number + -(-data.size // BLOCK_BYTES)]
        same = found == expected[: found.size]
        if found.size == expected.size and bool(same.all()):
            return int(data.size)
        wrong = int(np.argmin(same)) if not same.all() else found.size
        first = begin + wrong * BLOCK_BYTES
        last = min(first + BLOCK_BYTES, begin + done)
        got = f"XXH64 {int(found[wrong]):016x}" if wrong < found.size else "no bytes"
        raise FileFormatError(
            "a slice has been altered, or is of another graph",
            where=f"{self.path}, bytes {first} to {last}",
            got=got,
            expected=f"{int(expected[wrong]):016x}",
            fix=_AGAIN,
        )


def _threads() -> int:
    """Return the number of threads that read a file."""
    return int(import_whole("numba").get_num_threads())
