"""Arrays of a folder of slices: written piece by piece, and read by ranges."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from featgraph._interrupts import import_whole
from featgraph.errors import FileFormatError
from featgraph.graph.slices.manifest import BLOCK_BYTES, Manifest, SliceArray

__all__ = ["SliceWriter", "Slices"]

Array = NDArray[Any]
_AGAIN = "copy the folder again, or make it again: featgraph convert"
#: From so many blocks on, several threads read and check them.
_MANY_BLOCKS = 4


class SliceWriter:
    """Writes one array of a folder.

    Parameters
    ----------
    folder : Path
    name : str
    dtype : dtype
    """

    def __init__(self, folder: Path, name: str, dtype: Any) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._stream: IO[bytes] = (folder / f"{name}.bin").open("wb", buffering=0)
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
        """Return what the manifest says of the array."""
        if self._filled:
            self._end_block()
        self._stream.close()
        return SliceArray(self._dtype.str, self._count, tuple(self._checksums))

    def _end_block(self) -> None:
        from featgraph.graph.slices.checksums import checksum  # loads Numba

        block = self._block[: self._filled]
        self._checksums.append(checksum(block))
        data = block.data
        while len(data):
            data = data[self._stream.write(data) :]
        self._filled = 0


class Slices:
    """The arrays of a folder, of which ranges are read and checked.

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
            Where to store them: contiguous, and of another type or not.

        Raises
        ------
        FileFormatError
            If the file is missing, longer or shorter than it should be, or has been
            altered where it was read.
        """
        array = self.manifest.arrays[name]
        dtype, path = np.dtype(array.dtype), self._checked_path(name)
        end = array.count if end is None else end
        is_plain = out is not None and out.dtype.newbyteorder("<") == dtype
        found = out if out is not None and is_plain else np.empty(end - begin, dtype)
        span = begin * dtype.itemsize, end * dtype.itemsize
        self._read_blocks(name, path, span, found.view(np.uint8))
        if out is None:
            return found.astype(dtype.newbyteorder("="), copy=False)
        if found is not out:
            out[:] = found
        return out

    def mapped(self, name: str) -> Array:
        """Return an array that stays in its file, and is checked once."""
        array, path = self.manifest.arrays[name], self._checked_path(name)
        with path.open("rb", buffering=0) as stream:
            handle, block = stream.fileno(), np.empty(BLOCK_BYTES, np.uint8)
            for number in range(len(array.checksums)):
                self._read_block(name, path, handle, number, block)
        return np.memmap(path, array.dtype, "r", shape=(array.count,))

    def _read_blocks(
        self, name: str, path: Path, span: tuple[int, int], out: Array
    ) -> None:
        """Read bytes of a file, and check all blocks in which they are."""
        (first, last), nbytes = span, self.manifest.arrays[name].nbytes
        if first == last:
            return
        numbers = range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES))
        with path.open("rb", buffering=0) as stream:
            handle = stream.fileno()

            def read(number: int) -> None:
                begin = number * BLOCK_BYTES
                end = min(begin + BLOCK_BYTES, nbytes)
                if first <= begin and end <= last:
                    there = out[begin - first : end - first]
                    self._read_block(name, path, handle, number, there)
                    return
                block = np.empty(end - begin, np.uint8)
                self._read_block(name, path, handle, number, block)
                low, high = max(first, begin), min(last, end)
                out[low - first : high - first] = block[low - begin : high - begin]

            threads = int(import_whole("numba").get_num_threads())
            if threads == 1 or len(numbers) < _MANY_BLOCKS:
                for number in numbers:
                    read(number)
                return
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(read, numbers):
                    pass

    def _read_block(
        self, name: str, path: Path, handle: int, number: int, out: Array
    ) -> None:
        """Read a block, which may be shorter than what it is read into."""
        from featgraph.graph.slices.checksums import checksum  # loads Numba

        array, begin = self.manifest.arrays[name], number * BLOCK_BYTES
        data = out[: min(BLOCK_BYTES, array.nbytes - begin)]
        done = 0
        while done < data.size:
            more = os.preadv(handle, [data[done:].data], begin + done)
            if not more:  # it has become shorter
                break
            done += more
        found = checksum(data[:done])
        if found != array.checksums[number]:
            raise FileFormatError(
                "a slice has been altered, or is of another graph",
                where=f"{path}, bytes {begin} to {begin + done}",
                got=f"XXH64 {found}",
                expected=array.checksums[number],
                fix=_AGAIN,
            )

    def _checked_path(self, name: str) -> Path:
        array, path = self.manifest.arrays[name], self.folder / f"{name}.bin"
        if not path.is_file():
            raise FileFormatError("a slice is missing", where=str(path), fix=_AGAIN)
        size = path.stat().st_size
        if size != array.nbytes:
            raise FileFormatError(
                "a slice is truncated"
                if size < array.nbytes
                else "a slice is too long",
                where=str(path),
                got=f"{size} bytes",
                expected=f"{array.nbytes} bytes",
                fix=_AGAIN,
            )
        return path
