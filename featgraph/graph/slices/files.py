"""Folders of slices: manifests, and arrays written in pieces and read by ranges.

The manifest has counts, types and checksums of the arrays. It is JSON with a checksum.
It is written last, and then the folder is renamed, so that a folder with its final name
is complete.

Files of arrays consist of blocks with a checksum each. A range is read as whole blocks,
by several threads that check them.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import asdict, dataclass
from featgraph.base.errors import FileFormatError
from featgraph.base.files import (
    NotPlainError,
    create_file,
    load_json,
    open_file,
    read_file,
    write_file,
)
from featgraph.base.interrupts import import_whole
from featgraph.graph.building.check import MAX_VERTEX_COUNT, checked_sides

__all__ = [
    "ARRAYS",
    "BLOCK_BYTES",
    "Manifest",
    "SliceArray",
    "SliceWriter",
    "Slices",
    "read_manifest",
    "write_manifest",
]


#: Identification in the manifest, and its file name.
_FORMAT, _VERSION, _NAME = "featgraph slices", 2, "manifest.json"
#: Most bytes of a manifest. The checksums of 2**31 edges with weights of 8 bytes take a
#: thousandth of it.
_MOST_BYTES = 1 << 28
#: The fix in errors of manifests.
_AGAIN = "make the folder again: featgraph convert"

#: JSON types of fields.
_PLAIN = {"int": int, "bool": bool, "str": str}

#: Bytes of a block, which has a checksum and is read as a whole.
BLOCK_BYTES = 1 << 20

#: Possible arrays and their dtypes. Vertices are stored by their places.
ARRAYS = {
    "offsets": ("<i8",),  # (V + 1,): begin of the edges into each vertex
    "words": ("<i8",),  # in-edges of each 32 vertices
    "outs": ("<i8",),  # (V,): out-degrees, of a directed graph
    "sources": ("<i4",),  # (E,): by target, in given order within a row; with twins
    "rows": ("<i4", "<i8"),  # (E,): the row in given order; twin of i: E_given + i
    "weights": ("<f2", "<f4", "<f8", "<i1", "<i2", "<i4", "<i8", "|i1",
                "<u1", "<u2", "<u4", "<u8", "|u1"),
    "names": ("<i8", "<u8"),  # (V,): ascending
    "letters": ("|u1",),  # names that are words: UTF-8, each followed by a zero byte
    "order": ("<i4",),  # (V,): the vertex at each place
    "starts": ("<i8",),  # (V,), only with an order: edge id of the first in-edge
}  # fmt: skip


@dataclass(frozen=True)
class SliceArray:
    """An array of a folder.

    Attributes
    ----------
    dtype : str
    count : int
        The number of elements.
    checksums : tuple of str
        XXH64 of each block.
    """

    dtype: str
    count: int
    checksums: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """The size of its file in bytes."""
        return self.count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Manifest:
    """The contents of a folder: counts and digests of the graph, and its arrays.

    Attributes
    ----------
    vertex_count, given_count, edge_count : int
    directed : bool
    digest, weights_digest : str
        Digests of the graph.
    sides : tuple of int, or None
        The number of vertices of each side.
    arrays : dict of str to SliceArray
    """

    vertex_count: int
    given_count: int
    edge_count: int
    directed: bool
    digest: str
    weights_digest: str
    sides: tuple[int, ...] | None
    arrays: dict[str, SliceArray]

    @property
    def weights_dtype(self) -> np.dtype[Any] | None:
        """The dtype of weights, in native byte order; None without."""
        if "weights" not in self.arrays:
            return None
        return np.dtype(self.arrays["weights"].dtype).newbyteorder("=")

    @property
    def checksum(self) -> int:
        """The CRC-32 of all fields; folders with equal arrays have equal ones."""
        return _checksum(asdict(self))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder whose arrays are complete."""
    body = {"format": _FORMAT, "version": _VERSION, **asdict(manifest)}
    body["checksum"] = _checksum(body)
    text = json.dumps(body, indent=1)
    write_file(folder / _NAME, [text.encode()])


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder.

    Raises
    ------
    FileFormatError
        If it is not a folder of slices, or the manifest is altered or of another
        version.
    OSError
        If the folder is missing or cannot be read.
    """
    path = folder / _NAME
    if not folder.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    if not folder.is_dir() or not os.path.lexists(path):
        _fail(folder, "not a folder of slices", f"no {_NAME}")
    try:
        text = read_file(path, _MOST_BYTES)
    except NotPlainError as error:
        _fail(path, "not a manifest of slices", error.strerror, "a regular file")
    try:
        body = load_json(text)
        if body.get("format") != _FORMAT:
            raise ValueError
    except (ValueError, AttributeError):
        _fail(path, "not a manifest of slices", "other text")
    if body.get("version") != _VERSION:
        _fail(path, "slices of another version", body.get("version"), _VERSION)
    stored = body.pop("checksum", None)
    if stored != _checksum(body):
        _fail(path, "an altered manifest", f"checksum {stored}", _checksum(body))
    try:
        return _checked(path, body)
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        _fail(path, "an incomplete manifest", sorted(body))


def _checked(path: Path, body: dict[str, Any]) -> Manifest:
    arrays = {
        name: SliceArray(a["dtype"], int(a["count"]), tuple(a["checksums"]))
        for name, a in body["arrays"].items()
    }
    names = ("vertex_count", "given_count", "edge_count", "directed", "digest",
             "weights_digest")  # fmt: skip
    sides = body["sides"]
    if sides is not None:
        sides = checked_sides(sides, body["vertex_count"])
    stored = {name: body[name] for name in names}
    found = Manifest(**stored, sides=sides, arrays=arrays)
    vertices, edges = found.vertex_count, found.edge_count
    for name, kind in Manifest.__annotations__.items():
        value = getattr(found, name)
        if kind in _PLAIN and type(value) is not _PLAIN[kind]:
            _fail(path, "an altered manifest", f"{name}: {value!r:.40}", kind)
    counts = {"offsets": vertices + 1, "words": -(-vertices // 32), "outs": vertices,
              "sources": edges, "rows": edges, "weights": edges, "names": vertices,
              "order": vertices, "starts": vertices}  # fmt: skip
    if "letters" in arrays:  # at least one per vertex; `names` checks the rest
        counts["letters"] = max(arrays["letters"].count, vertices)
    required = {"offsets", "words", "sources", "rows"}
    if found.directed:
        required.add("outs")
    if "order" in arrays:
        required.add("starts")
    has_two_names = {"names", "letters"} <= arrays.keys()
    if has_two_names or not required <= arrays.keys() <= ARRAYS.keys():
        _fail(path, "other arrays than slices have", sorted(arrays))
    given = found.given_count
    most = given if found.directed else 2 * given
    if not (1 <= vertices <= MAX_VERTEX_COUNT and 0 <= given <= edges <= most):
        got = f"{vertices} vertices, {given} given edges, {edges} in all"
        _fail(path, "counts of no graph", got)
    for name, array in arrays.items():
        if array.dtype not in ARRAYS[name] or array.count != counts[name]:
            got = f"{array.count} of {array.dtype}"
            expected = f"{counts[name]} of {' or '.join(ARRAYS[name])}"
            _fail(path, f"{name} do not fit the graph", got, expected)
        if len(array.checksums) != -(-array.nbytes // BLOCK_BYTES):
            _fail(path, f"checksums of {name} are missing", len(array.checksums))
        for text in array.checksums:
            if not 0 <= int(text, 16) < 2**64:
                _fail(path, f"a checksum of {name} is none", text)
    return found


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def _fail(path: Path, what: str, got: object, expected: object = None) -> NoReturn:
    raise FileFormatError(what, where=str(path), got=got, expected=expected, fix=_AGAIN)


Array = NDArray[Any]
#: The fix in errors of arrays.
_COPY_AGAIN = "copy the folder again, or make it again: featgraph convert"
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
                "a slice is missing", where=str(path), fix=_COPY_AGAIN
            ) from None
        except NotPlainError as error:
            raise FileFormatError(
                "a slice is no file",
                where=str(path),
                got=error.strerror,
                expected="a regular file",
                fix=_COPY_AGAIN,
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
                fix=_COPY_AGAIN,
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
            fix=_COPY_AGAIN,
        )


def _threads() -> int:
    """Return the number of threads that read a file."""
    return int(import_whole("numba").get_num_threads())
