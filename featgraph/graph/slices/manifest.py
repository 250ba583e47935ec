"""Manifests of folders of slices: counts, types and checksums of the arrays.

The manifest is JSON with a checksum. It is written last, and then the folder is
renamed, so that a folder with its final name is complete.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from featgraph.base.dataclass import asdict, dataclass
from featgraph.base.errors import FileFormatError
from featgraph.base.files import NotPlainError, load_json, read_file, write_file
from featgraph.graph.building.check import MAX_VERTEX_COUNT, checked_sides

__all__ = [
    "ARRAYS",
    "BLOCK_BYTES",
    "Manifest",
    "SliceArray",
    "read_manifest",
    "write_manifest",
]

#: Identification in the manifest, and its file name.
_FORMAT, _VERSION, _NAME = "featgraph slices", 2, "manifest.json"
#: Checksums of 2^31 edges, with weights of 8 bytes, take a thousandth of this.
_MOST_BYTES = 1 << 28
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
    "sources": ("<i4",),  # (E,): by target, then as given, and twins with them
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
        """The type of weights; None without."""
        if "weights" not in self.arrays:
            return None
        return np.dtype(self.arrays["weights"].dtype).newbyteorder("=")

    @property
    def checksum(self) -> int:
        """The checksum of all fields, equal for equal folders."""
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
