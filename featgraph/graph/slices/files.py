"""Arrays of a folder of slices: written piece by piece, and read by ranges."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from featgraph.errors import FileFormatError
from featgraph.graph.slices.manifest import BLOCK_BYTES, Manifest, SliceArray

__all__ = ["SliceWriter", "Slices"]

Array = NDArray[Any]
_AGAIN = "copy the folder again, or make it again: featgraph convert"


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
        self._stream: IO[bytes] = (folder / f"{name}.bin").open("wb")
        self._checksums: list[int] = []
        self._count = self._current = self._filled = 0

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
        data = np.ascontiguousarray(values, self._dtype).data.cast("B")
        self._count += len(values)
        while len(data):
            some = data[: BLOCK_BYTES - self._filled]
            self._stream.write(some)
            self._current = zlib.crc32(some, self._current)
            self._filled += len(some)
            data = data[len(some) :]
            if self._filled == BLOCK_BYTES:
                self._end_block()

    def finish(self) -> SliceArray:
        """Return what the manifest says of the array."""
        if self._filled:
            self._end_block()
        self._stream.close()
        return SliceArray(self._dtype.str, self._count, tuple(self._checksums))

    def _end_block(self) -> None:
        self._checksums.append(self._current)
        self._current = self._filled = 0


class Slices:
    """The arrays of a folder, of which ranges are read and checked.

    Parameters
    ----------
    folder : Path
    manifest : Manifest
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self.manifest = folder, manifest

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Array:
        """Return some elements of an array, in native order.

        Raises
        ------
        FileFormatError
            If the file is missing, longer or shorter than it should be, or has been
            altered where it was read.
        """
        array = self.manifest.arrays[name]
        width = np.dtype(array.dtype).itemsize
        end = array.count if end is None else end
        path = self._checked_path(name)
        result = np.empty(end - begin, array.dtype)
        out = result.view(np.uint8).data
        first, last = begin * width, end * width
        with open(path, "rb", buffering=0) as stream:
            block = first // BLOCK_BYTES
            stream.seek(block * BLOCK_BYTES)
            buffer = bytearray(BLOCK_BYTES)
            while block * BLOCK_BYTES < last:
                at = block * BLOCK_BYTES
                data = _filled(stream, buffer, min(BLOCK_BYTES, array.nbytes - at))
                if zlib.crc32(data) != array.checksums[block]:
                    raise FileFormatError(
                        "a slice has been altered, or is of another graph",
                        where=f"{path}, bytes {at} to {at + len(data)}",
                        got=f"CRC-32 {zlib.crc32(data)}",
                        expected=array.checksums[block],
                        fix=_AGAIN,
                    )
                low, high = max(first, at), min(last, at + len(data))
                out[low - first : high - first] = data[low - at : high - at]
                block += 1
        return result.astype(result.dtype.newbyteorder("="), copy=False)

    def mapped(self, name: str) -> Array:
        """Return an array that stays in its file, and is checked once."""
        array, path = self.manifest.arrays[name], self._checked_path(name)
        step = BLOCK_BYTES // np.dtype(array.dtype).itemsize
        for begin in range(0, array.count, step):
            self.read(name, begin, min(begin + step, array.count))
        return np.memmap(path, array.dtype, "r", shape=(array.count,))

    def _checked_path(self, name: str) -> Path:
        array, path = self.manifest.arrays[name], self._folder / f"{name}.bin"
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


def _filled(stream: Any, buffer: bytearray, count: int) -> memoryview:
    """Read so many bytes; fewer where the file ends meanwhile."""
    data, done = memoryview(buffer)[:count], 0
    while done < count and (more := stream.readinto(data[done:])):
        done += more
    return data[:done]
