"""Snapshots of States, and their folders: a manifest, and a file per array.

A checkpoint is a folder of such folders: see `runtime.checkpoints.folder`. Its manifest
is signed and checked by the same `ManifestFormat`.

::

    manifest.json            names, types, and files with their checksums
    <16 hex>-<number>.npy    arrays, little-endian, in C order

Array files have new names. The manifest replaces the old one in one step, at the end;
then files that it does not name are removed. Thus the folder has the old State or the
new one at any time. The first State of a folder is written to a temporary folder, which
is renamed.

Files are untrusted input. Sizes follow from the graph and the manifest, and are
compared with those of the files before memory is allocated. There are no pickles, and
the header of an array file is compared with the expected one, not parsed.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field
from featgraph.base.errors import FileFormatError, StateError
from featgraph.base.files import (
    load_json,
    lock_folder,
    open_file,
    read_file,
    rename_file,
    rename_whole,
    sync_folder,
    temporary_folder,
    write_file,
)
from featgraph.cuda.values import host_values
from featgraph.graph import Graph
from featgraph.graph.inputs.numbers import STORAGE_DTYPES
from featgraph.graph.views.structure import collect_by_id
from featgraph.program.active import word_count
from featgraph.program.column import Column
from featgraph.program.given import edge_values
from featgraph.program.signature import PropertyKind, PropertyType, name_problem

__all__ = [
    "STATES",
    "Left",
    "ManifestFormat",
    "NewerFormatError",
    "Snapshot",
    "digests_of",
    "read_state",
    "write_state",
]

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Left:
    """The pending vertices that a run has left for a foldmap, in host memory.

    Attributes
    ----------
    words : ndarray of uint32, or None
        Bitvector of the vertices committed since the foldmap last ran; None: all.
    left : ndarray of uint32, or None
        Bitvector of due vertices that ``.on`` has excluded.
    scalars : tuple of (str, bytes), or None
        The scalars and vectors that the foldmap last read.
    seen : Seen or None
        The version of the graph and the puts that the pending vertices include. None in
        a snapshot, which is of the State's current version.
    """

    words: Words | None
    left: Words | None
    scalars: tuple[tuple[str, bytes], ...] | None
    seen: Any = None

    def on_host(self) -> Left:
        """Return `self`; a subclass downloads pending vertices from a device."""
        return self

    def joined(self, other: Left) -> Left:
        """Return the pending vertices of both; all vertices if `scalars` differ."""
        if self.words is None or other.words is None or self.scalars != other.scalars:
            return Left(None, None, None)
        lefts = [left for left in (self.left, other.left) if left is not None]
        left = np.bitwise_or.reduce(lefts) if lefts else None
        return Left(self.words | other.words, left, self.scalars)


@dataclass(frozen=True)
class Snapshot:
    """The values and pending vertices of a State.

    Attributes
    ----------
    superstep : int
        Number of supersteps that have run.
    columns : dict of str to Column
        Properties and scalars; their arrays are not shared.
    left : dict
        Foldmap, or the digest of its program, -> its pending vertices.
    """

    superstep: int
    columns: dict[str, Column]
    left: dict[Any, Left] = field(default_factory=dict)

    def by_digest(self) -> Snapshot:
        """Return a snapshot with digests of programs as keys, for other processes."""
        found: dict[Any, Left] = {}
        for key, left in self.left.items():
            digest = key if isinstance(key, str) else key.program.digest
            known = found.get(digest)
            found[digest] = left if known is None else known.joined(left)
        return Snapshot(self.superstep, self.columns, found)


Array = npt.NDArray[Any]


class NewerFormatError(FileFormatError):
    """A manifest of a newer featgraph."""


@dataclass(frozen=True)
class ManifestFormat:
    """A format of JSON manifests, which have a checksum of their text.

    Attributes
    ----------
    file : str
        The name of the file.
    noun : str
        The thing that a manifest describes.
    version : int
        The newest version of the format.
    most_bytes : int
        Most bytes of a manifest.
    fix, fix_newer : str
        The fix for a damaged manifest, and for one of a newer version.
    """

    file: str
    noun: str
    version: int
    most_bytes: int
    fix: str
    fix_newer: str

    def wrong(
        self, where: Path | str, got: object, expected: object = None
    ) -> FileFormatError:
        """Return the error for a damaged manifest, or a file that it names."""
        return FileFormatError(
            f"not a saved {self.noun}, or an altered one",
            where=os.fspath(where),
            got=f"{got!s:.200}",
            expected=expected,
            fix=self.fix,
        )

    def text(self, body: dict[str, Any]) -> bytes:
        """Return the text of a manifest, with its checksum."""
        named = {"format": f"featgraph {self.noun.lower()}", "version": self.version}
        whole = {**named, **body}
        return _text({**whole, "sha256": hashlib.sha256(_text(whole)).hexdigest()})

    def read(self, folder: Path) -> bytes:
        """Return the text of the manifest of a folder."""
        path = folder / self.file
        try:
            return read_file(path, self.most_bytes)
        except OSError as error:
            raise self.wrong(path, error, "a regular file that can be read") from error

    def parse(self, folder: Path, text: bytes) -> dict[str, Any]:
        """Return the content of a manifest, after a check of its checksum.

        Raises
        ------
        NewerFormatError
            If it is of a newer featgraph.
        FileFormatError
            If it is damaged, or of another format.
        """
        path, name = folder / self.file, f"featgraph {self.noun.lower()}"
        try:
            body = load_json(text)
        except ValueError as error:
            raise self.wrong(path, error, "JSON") from error
        if not isinstance(body, dict) or body.get("format") != name:
            raise self.wrong(path, "another format", name)
        version = body.get("version")
        if type(version) is not int:
            raise self.wrong(path, f"version {version!r:.20}", "an integer")
        if version > self.version:
            raise NewerFormatError(
                f"this {self.noun} was saved by a newer featgraph",
                where=os.fspath(path),
                got=f"version {version} of the format",
                expected=f"at most {self.version}",
                fix=self.fix_newer,
            )
        checksum = body.pop("sha256", None)
        try:
            is_whole = checksum == hashlib.sha256(_text(body)).hexdigest()
            is_whole = is_whole and _text({**body, "sha256": checksum}) == text
        except (ValueError, RecursionError) as error:
            raise self.wrong(path, error, "JSON of finite numbers") from error
        if not is_whole:
            raise self.wrong(path, "another checksum", "the one that was saved")
        return body


#: The format of saved States. A manifest of 100,000 properties with names of the
#: largest length is allowed.
STATES = ManifestFormat(
    "manifest.json", "State", 1, 1 << 25,
    fix="save it again, or load another copy", fix_newer="install a newer featgraph",
)  # fmt: skip
#: Names of array files, and of all files that an interrupted write may leave.
_ARRAY_NAME = re.compile(r"[0-9a-f]{16}-[0-9]{1,9}\.npy")
_OURS = re.compile(_ARRAY_NAME.pattern + r"|manifest\.json\.[0-9a-f]{16}")
#: Type of a scalar -> its type in JSON; real numbers are stored in hexadecimal digits.
_SCALARS: dict[str, type] = {"bool": bool, "int64": int, "real": float}


# -- writing


def write_state(path: str | os.PathLike[str], graph: Graph, snapshot: Snapshot) -> None:
    """Save a snapshot with digests of programs as keys, as a whole or not at all.

    All ranks call this function, and the first rank writes.

    Raises
    ------
    StateError
        If `path` has other files.
    OSError
        If the folder cannot be written.
    DistributedError
        On the other ranks, if the first one fails.
    """
    _on_first(
        graph,
        lambda: _write_folder(path, graph, snapshot),
        lambda: _manifest(graph, snapshot, _pass_through),
        "saving a State",
    )


def _on_first(
    graph: Graph, first: Callable[[], Any], others: Callable[[], Any], about: str
) -> None:
    """Call `first` on the first rank, and `others`, with its exchanges, elsewhere."""
    if graph.ranks is None:
        first()
    else:
        graph.ranks.gather_first(first, others, about)


def _write_folder(
    path: str | os.PathLike[str], graph: Graph, snapshot: Snapshot
) -> None:
    folder = Path(path)
    if not os.path.lexists(folder):
        new = folder.with_name(f".{folder.name}.new-{secrets.token_hex(8)}")
        with temporary_folder(new):
            _write_into(new, graph, snapshot)
            try:
                rename_whole(new, folder)
                return
            except OSError:
                if not folder.is_dir():  # another process may have been first
                    raise
    held = list(folder.iterdir()) if folder.is_dir() else None
    if held is None or (held and not (folder / STATES.file).is_file()):
        raise StateError(
            "the path has other files",
            where=os.fspath(folder),
            expected="no file, an empty folder, or one that a State was saved to",
            fix="choose another path",
        )
    with lock_folder(folder, waits=True):
        _write_into(folder, graph, snapshot)


def _write_into(folder: Path, graph: Graph, snapshot: Snapshot) -> None:
    key = secrets.token_hex(8)
    made: list[Path] = []

    def keep(values: Any) -> dict[str, Any]:
        name = f"{key}-{len(made)}.npy"
        made.append(folder / name)
        header = _header(values.dtype.newbyteorder("<"), values.shape)
        parts = chain([header], _bytes_of(values))
        return {"file": name, "sha256": write_file(folder / name, parts)}

    manifest = folder / f"{STATES.file}.{key}"
    try:
        text = _manifest(graph, snapshot, keep)
        made.append(manifest)
        write_file(manifest, [text])
        # All files are on the disk before a manifest names them: after a crash, the
        # folder has the old State or the new one.
        sync_folder(folder)
        rename_file(manifest, folder / STATES.file)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    for path in folder.iterdir():  # from earlier States and interrupted writers
        if _OURS.fullmatch(path.name) and path not in made:
            path.unlink(missing_ok=True)


def digests_of(graph: Graph, snapshot: Snapshot) -> dict[str, str]:
    """Return the checksum of each property; {} on all ranks except the first.

    All ranks call this function.
    """
    found: list[dict[str, Any]] = []

    def keep(values: Any) -> dict[str, Any]:
        digest = hashlib.sha256()
        for rows in _bytes_of(values):
            digest.update(rows)
        return {"sha256": digest.hexdigest()}

    _on_first(
        graph,
        lambda: found.extend(_properties(graph, snapshot, keep)),
        lambda: _properties(graph, snapshot, _pass_through),
        "digests of a State",
    )
    return {row["name"]: hashlib.sha256(_text(row)).hexdigest() for row in found}


def _manifest(graph: Graph, snapshot: Snapshot, keep: Any) -> bytes:
    """Return the text of the manifest.

    `keep` writes an array, and returns the name and checksum of its file.
    """
    properties, ranks = _properties(graph, snapshot, keep), graph.ranks

    def words_of(some: Any) -> Any:
        if some is None:
            return None
        return keep(
            some if ranks is None else ranks.pieces_of_vertices(some, as_set=True)
        )

    pending = [
        {
            "program": digest,
            "words": words_of(left.words),
            "left": words_of(left.left),
            "scalars": None
            if left.scalars is None
            else [[name, values.hex()] for name, values in left.scalars],
        }
        for digest, left in snapshot.left.items()
    ]
    return STATES.text({
        "graph": graph.digest, "superstep": snapshot.superstep,
        "properties": properties, "pending": pending,
    })  # fmt: skip


def _properties(graph: Graph, snapshot: Snapshot, keep: Any) -> list[dict[str, Any]]:
    """Return the entries of the manifest for all properties."""
    properties, ranks = [], graph.ranks
    for name, column in snapshot.columns.items():
        type_ = column.type
        row: dict[str, Any] = {
            "name": name,
            "kind": type_.kind.value,
            "dtype": type_.dtype,
            "item_shape": list(type_.item_shape),
            "iterated": type_.iterated,
            "shared": type_.shared,
            "per_direction": column.per_direction,
        }
        values = column.on_host()
        if type_.kind is PropertyKind.SCALAR:
            row["value"] = values.hex() if isinstance(values, float) else values
        elif type_.kind is PropertyKind.EDGE:  # in the given order, as ids may change
            collect = (
                graph.collect_edge_values if ranks is None else ranks.pieces_of_edges
            )
            if graph.changing is not None:
                collect = partial(collect_by_id, graph)
            row["array"] = keep(collect(values, column.per_direction))
        elif type_.kind is PropertyKind.VERTEX and ranks is not None:
            row["array"] = keep(ranks.pieces_of_vertices(values))
        else:
            row["array"] = keep(values)
        properties.append(row)
    return properties


def _bytes_of(values: Any) -> Iterator[Any]:
    """Generate the bytes of an array, or of its pieces: little-endian, in C order."""
    for piece in [values] if isinstance(values, np.ndarray) else values:
        stored = piece.dtype.newbyteorder("<")
        yield np.ascontiguousarray(piece, stored).reshape(-1).view(np.uint8)


def _pass_through(values: Any) -> dict[str, Any]:
    """Take part in the exchanges of a write by rank 0, on other ranks."""
    if not isinstance(values, np.ndarray):
        for _ in values:
            pass
    return {}


def _text(body: dict[str, Any]) -> bytes:
    return json.dumps(body, indent=1, allow_nan=False).encode()


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a NumPy file for such an array."""
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


# -- reading


def read_state(path: str | os.PathLike[str], graph: Graph) -> Snapshot:
    """Read a saved snapshot for a graph, and check all data.

    Raises
    ------
    FileFormatError
        If the folder has no saved State, or a newer, truncated or altered one.
    StateError
        If the State was saved on another graph.
    DistributedError
        If another rank fails.
    """
    if graph.ranks is None:
        return _read_folder(path, graph)
    return graph.ranks.on_all(lambda: _read_folder(path, graph), "loading a State")  # type: ignore[no-any-return]


def _read_folder(path: str | os.PathLike[str], graph: Graph) -> Snapshot:
    folder = Path(path)
    text = b""
    for _ in range(5):
        before, text = text, STATES.read(folder)
        try:
            return _Reader(folder, graph).snapshot(text)
        except FileFormatError:
            # A writer may have replaced the manifest in the meantime.
            if text == before or text == STATES.read(folder):
                raise
    raise _wrong(
        folder, "a manifest that changed during each of five reads", "no writers"
    )


_wrong = STATES.wrong


class _Reader:
    """Reads one manifest and the files that it names."""

    def __init__(self, folder: Path, graph: Graph) -> None:
        self.folder = folder
        self.graph = graph
        self.where = folder / STATES.file

    def snapshot(self, text: bytes) -> Snapshot:
        """Return the snapshot of a manifest, after all checks."""
        body = self._parse(text)
        superstep = self._is(body["superstep"], int, "superstep")
        if superstep < 0:
            raise _wrong(self.where, superstep, "superstep: 0 or more")
        columns = {}
        for row in self._is(body["properties"], list, "properties"):
            name, column = self._column(row)
            if name in columns:
                raise _wrong(self.where, name, "a name once")
            columns[name] = column
        left = {}
        for row in self._is(body["pending"], list, "pending"):
            keys = {"program", "words", "left", "scalars"}
            self._has_keys(row, keys, "pending")
            digest = self._is(row["program"], str, "program")
            left[digest] = self._left(row)
        return Snapshot(superstep, columns, left)

    def _parse(self, text: bytes) -> dict[str, Any]:
        body = STATES.parse(self.folder, text)
        keys = {"format", "version", "graph", "superstep", "properties", "pending"}
        self._has_keys(body, keys, "manifest")
        if body["graph"] != self.graph.digest:
            raise StateError(
                "this State was saved on another graph",
                where=os.fspath(self.where),
                got=f"a graph with digest {body['graph']!r:.80}",
                expected=f"{self.graph!r} with digest {self.graph.digest!r}",
                fix="load it on the graph with the same edges in the same order",
            )
        return body

    def _is(self, value: Any, kind: type, what: str) -> Any:
        if type(value) is not kind:
            got, expected = type(value).__name__, kind.__name__
            raise _wrong(self.where, f"{what}: {got}", expected)
        return value

    def _has_keys(self, row: Any, keys: set[str], what: str) -> None:
        if set(self._is(row, dict, what)) != keys:
            raise _wrong(self.where, f"{what}: {sorted(row)}", sorted(keys))

    def _column(self, row: Any) -> tuple[str, Column]:
        kinds = {kind.value: kind for kind in PropertyKind}
        kind = kinds.get(str(row.get("kind"))) if isinstance(row, dict) else None
        if kind is None:
            raise _wrong(self.where, "a property of no kind", ", ".join(kinds))
        is_scalar = kind is PropertyKind.SCALAR
        keys = {"name", "kind", "dtype", "item_shape", "iterated", "shared"}
        keys |= {"per_direction", "value" if is_scalar else "array"}
        self._has_keys(row, keys, "property")
        name = self._is(row["name"], str, "name")
        problem = name_problem(name)
        if problem is not None:
            raise _wrong(
                self.where, f"the name {name!r:.100} {problem}", "a valid name"
            )
        flags = [
            self._is(row[flag], bool, flag)
            for flag in ("iterated", "shared", "per_direction")
        ]
        lengths = self._is(row["item_shape"], list, "item_shape")
        shape = tuple(self._is(n, int, "length") for n in lengths)
        dtype = self._is(row["dtype"], str, "dtype")
        type_ = PropertyType(kind, dtype, shape, *flags[:2])
        self._check_type(name, type_, flags[2])
        if is_scalar:
            return name, Column(type_, self._scalar(row["value"], type_), False)
        rows = {
            PropertyKind.VERTEX: (self.graph.vertex_count,),
            PropertyKind.EDGE: (self.graph.given_edge_count * (1 + flags[2]),),
            PropertyKind.VECTOR: (),
        }[kind]
        array = self._array(row["array"], type_.dtype, (*rows, *shape))
        if kind is PropertyKind.EDGE:
            array = host_values(edge_values(self.graph, array))
        elif kind is PropertyKind.VERTEX:
            array = self.graph.local_rows(array)
        return name, Column(type_, array, flags[2])

    def _check_type(self, name: str, type_: PropertyType, per_direction: bool) -> None:
        """Refuse a type that no property of a State can have."""
        kind, shape = type_.kind, type_.item_shape
        is_scalar, is_edge = kind is PropertyKind.SCALAR, kind is PropertyKind.EDGE
        fits = type_.dtype in (_SCALARS if is_scalar else STORAGE_DTYPES)
        fits = fits and all(1 <= length < 1 << 40 for length in shape)
        # The result of a reduce may have any shape of one or two axes.
        fits = fits and len(shape) <= (0 if is_scalar else 2)
        fits = fits and not (kind is PropertyKind.VECTOR and not shape)
        is_undirected = is_edge and not self.graph.directed
        fits = fits and (is_undirected or not (per_direction or type_.shared))
        fits = fits and not (per_direction and type_.shared)
        if not fits:
            raise _wrong(self.where, f"property {name!r}: {type_}", "a property's type")

    def _scalar(self, value: Any, type_: PropertyType) -> Any:
        if type_.dtype != "real":
            self._is(value, _SCALARS[type_.dtype], "value")
            if not -(1 << 63) <= value < 1 << 63:
                raise _wrong(self.where, value, "an integer of 64 bits")
            return value
        try:
            return float.fromhex(self._is(value, str, "value"))
        except (ValueError, OverflowError) as error:
            raise _wrong(self.where, value, "a number in hexadecimal digits") from error

    def _left(self, row: dict[str, Any]) -> Left:
        words, left = (
            None if row[name] is None else self._words(row[name])
            for name in ("words", "left")
        )
        if row["scalars"] is None:
            return Left(words, left, None)
        scalars = []
        for pair in self._is(row["scalars"], list, "scalars"):
            if len(self._is(pair, list, "scalar")) != 2:
                raise _wrong(self.where, "a scalar", "its name and value")
            name, digits = (self._is(part, str, "scalar") for part in pair)
            try:
                scalars.append((name, bytes.fromhex(digits)))
            except ValueError as error:
                raise _wrong(self.where, digits, "hexadecimal digits") from error
        return Left(words, left, tuple(scalars))

    def _words(self, row: Any) -> Array:
        """Return a vertex set without bits after the last vertex."""
        count = self.graph.vertex_count
        words = self._array(row, "uint32", (word_count(count),))
        tail = count % 32
        if tail and words.size and int(words[-1]) >> tail:
            raise _wrong(self.where, "a vertex beyond the last one", f"V = {count}")
        ranks = self.graph.ranks
        return words if ranks is None else ranks.local_set(words)

    def _array(self, row: Any, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return an array of the type and shape that follow from graph and manifest."""
        self._has_keys(row, {"file", "sha256"}, "array")
        name = self._is(row["file"], str, "file")
        if not _ARRAY_NAME.fullmatch(name):
            raise _wrong(
                self.where, f"a file {name!r:.100}", "the name of an array file"
            )
        stored = np.dtype(dtype).newbyteorder("<")
        header = _header(stored, shape)
        size = len(header) + math.prod(shape) * stored.itemsize
        path = self.folder / name
        try:
            handle, found = open_file(path)
        except OSError as error:
            raise _wrong(path, error, "a regular file that can be read") from error
        with os.fdopen(handle, "rb") as file:
            if found != size:
                raise _wrong(path, f"{found} bytes", f"{size} bytes")
            try:
                array = np.empty(shape, stored)
            except (MemoryError, ValueError) as error:
                raise _wrong(path, error, "an array that fits into memory") from error
            data: Any = array.reshape(-1).view(np.uint8)
            begin = file.read(len(header))
            is_whole = file.readinto(data) == data.size
        digest = hashlib.sha256(begin)
        digest.update(data)
        if begin != header or not is_whole or digest.hexdigest() != row["sha256"]:
            raise _wrong(path, "another checksum", "the one in the manifest")
        if dtype == "bool" and data.size and int(data.max()) > 1:
            raise _wrong(path, "bytes other than 0 and 1", "bools")
        return array.astype(np.dtype(dtype), copy=False)
