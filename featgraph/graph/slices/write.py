"""Writers of folders of slices, from edges in given order or from a graph.

Edges are stored by target, in given order within a row, as kernels use them. Twins of
an undirected graph are stored as well, so that a rank reads complete rows.

Edges in given order, of any number, are grouped by target with an external sort: they
are distributed to one file per range of targets, each small enough to be sorted in
memory, and the sorted files are concatenated.

A folder is written under a temporary name, and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import FileFormatError, GraphInputError
from featgraph.base.files import (
    create_file,
    lock_folder,
    open_file,
    rename_whole,
    sync_folder,
    temporary_folder,
)
from featgraph.graph.building.edges import Adjacency
from featgraph.graph.building.names import VertexNames
from featgraph.graph.slices.files import (
    Manifest,
    SliceArray,
    SliceWriter,
    write_manifest,
)
from featgraph.graph.views.structure import structure_digest

__all__ = [
    "Edges",
    "Rows",
    "require_free",
    "stored_names",
    "write_rows",
    "write_slices",
    "writing",
]

Array = NDArray[Any]
#: Elements of an array that are written at a time.
_CHUNK = 1 << 22
#: Default memory for sorting, in bytes.
MEMORY_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges that can be iterated over repeatedly.

    Attributes
    ----------
    chunks : callable
        Returns an iterator over sources, targets and weights, in given order.
    vertex_count : int
    directed : bool
    weights_dtype : dtype or None
    names : ndarray of integers, or None
        As `stored_names` returns them; uint8 are the letters of words.
    order : ndarray of int32 or None
        The vertex at each place.
    sides : tuple of int, or None
        The number of vertices of each side.
    """

    chunks: Callable[[], Iterator[tuple[Array, Array, Array | None]]]
    vertex_count: int
    directed: bool
    weights_dtype: Any
    names: Array | None = None
    order: Array | None = None
    sides: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Edges by target, in given order within a row.

    Attributes
    ----------
    in_edges : Adjacency
    given_index : ndarray of integers, shape (E,)
        The row in given order of each edge; rows of twins follow those of given edges.
    weights : ndarray, shape (E,), or None
    out_degree : ndarray, shape (V,), or None
        None if out-degrees equal in-degrees.
    names : ndarray of integers, or None
        uint8: the letters of words.
    given : int
    digest, weights_digest : str
    sides : tuple of int, or None
    """

    in_edges: Adjacency
    given_index: Array
    weights: Array | None
    out_degree: Array | None
    names: Array | None
    given: int
    digest: str
    weights_digest: str
    sides: tuple[int, ...] | None


def write_rows(folder: Path, rows: Rows) -> Manifest:
    """Write arrays and manifest of sorted edges into an existing folder."""
    offsets, count = rows.in_edges.row_offsets, rows.in_edges.column_indices.size
    directed = rows.out_degree is not None
    edges = {
        "sources": (rows.in_edges.column_indices, "<i4"),
        "rows": (rows.given_index, _row_type(rows.given * (1 if directed else 2))),
    }
    if rows.weights is not None:
        edges["weights"] = rows.weights, rows.weights.dtype.str
    arrays = {name: _write_array(folder, name, *of) for name, of in edges.items()}
    vertices = _vertex_arrays(np.diff(offsets).astype(np.int64), rows.names)
    if rows.out_degree is not None:
        vertices["outs"] = rows.out_degree.astype(np.int64)
    for name, array in vertices.items():
        arrays[name] = _write_array(folder, name, array, array.dtype)
    entries = rows.digest, rows.weights_digest, rows.sides, arrays
    manifest = Manifest(offsets.size - 1, rows.given, count, directed, *entries)
    write_manifest(folder, manifest)
    return manifest


def _write_array(folder: Path, name: str, array: Array, dtype: Any) -> SliceArray:
    """Write an array in chunks, cast to a dtype; return its entry in the manifest."""
    with SliceWriter(folder, name, dtype) as writer:
        for begin in range(0, array.size, _CHUNK):
            writer.write(array[begin : begin + _CHUNK])
        return writer.finish()


def _row_type(bound: int) -> str:
    """Return the dtype of rows in given order, which are less than a bound."""
    return "<i4" if bound <= 1 << 31 else "<i8"


def _vertex_arrays(into: Array, names: Array | None) -> dict[str, Array]:
    """Return the stored arrays of all vertices, from their in-degrees."""
    found = {
        "offsets": np.concatenate(([0], np.cumsum(into))),
        "words": np.add.reduceat(into, np.arange(0, into.size, 32)),
    }
    return found | _arrays_of_names(names)


def write_slices(folder: Path, edges: Edges, memory: int = MEMORY_BYTES) -> Manifest:
    """Write arrays and manifest into an existing folder.

    Parameters
    ----------
    folder : Path
    edges : Edges
    memory : int
        Approximate bytes for sorting, besides three numbers per vertex.
    """
    counted = _Counted(edges)
    scratch = folder / "parts"
    scratch.mkdir()
    places = _places(edges.order)
    # Bytes per edge: a record, its place in sorted order, and its sorted copy.
    most = memory // 64
    in_counts = counted.into
    if edges.order is not None:
        in_counts = in_counts[edges.order]
    sorter = Sorter(scratch, in_counts, edges.weights_dtype, most)
    try:
        handed = _fill(sorter, edges, places, counted.given)
        rows = _row_type(counted.bound)
        arrays, written = _write_edges(folder, sorter, rows, edges.weights_dtype)
    finally:
        sorter.close()
    if written != handed:
        raise FileFormatError(
            "sorted edges are not those that were passed to the sort",
            where=str(scratch),
            got=f"sums {written}",
            expected=handed,
            fix="convert again; the disk or the memory may be faulty",
        )
    scratch.rmdir()
    arrays |= _write_vertices(folder, edges, counted, in_counts)
    manifest = Manifest(
        edges.vertex_count,
        counted.given,
        int(counted.into.sum()),
        edges.directed,
        structure_digest(edges.vertex_count, edges.directed, counted.ends_text),
        counted.weights_text,
        edges.sides,
        arrays,
    )
    write_manifest(folder, manifest)
    return manifest


class _Counted:
    """Degrees of vertices, and digests of all edges.

    Attributes
    ----------
    given : int
    into : ndarray of int64, shape (V,)
        In-degrees, twins included.
    out : ndarray of int64, shape (V,), or None
        Out-degrees, if directed.
    """

    def __init__(self, edges: Edges) -> None:
        from featgraph.graph.building import digests, kernels  # loads Numba

        self.given, directed = 0, edges.directed
        self.into = np.zeros(edges.vertex_count, np.int64)
        self.out = np.zeros(edges.vertex_count, np.int64) if directed else None
        ends, values = digests.no_sums(), digests.no_sums()
        for u, v, weights in edges.chunks():
            if self.out is None:
                kernels.count_both(u, v, self.into)
            else:
                kernels.count_one(v, self.into)
                kernels.count_one(u, self.out)
            digests.add_ends(ends, self.given, u, v)
            if weights is not None:
                digests.add_values(values, self.given, weights)
            self.given += u.size
        self.ends_text = digests.text_of(ends)
        dtype = edges.weights_dtype
        text = digests.text_of(values)
        self.weights_text = "" if dtype is None else f"{np.dtype(dtype)} {text}"

    @property
    def bound(self) -> int:
        """The highest row in given order, plus one."""
        return self.given * (1 if self.out is not None else 2)


def _places(order: Array | None) -> Array | None:
    if order is None:
        return None
    places = np.empty_like(order)
    places[order] = np.arange(order.size, dtype=order.dtype)
    return places


def _fill(sorter: Sorter, edges: Edges, places: Array | None, given: int) -> str:
    """Pass all edges to a sorter, each twin after its edge; ends are places.

    Return the digest of these edges.
    """
    from featgraph.graph.building import digests  # loads Numba

    sums, begin = digests.no_sums(), 0
    for source, target, weights in edges.chunks():
        u, v = source, target
        if places is not None:
            u, v = places[u], places[v]
        rows = np.arange(begin, begin + u.size)
        begin += u.size
        if not edges.directed:
            kept = np.stack([np.ones(u.size, np.bool_), u != v], 1).ravel()
            ends = np.stack([u, v], 1).ravel(), np.stack([v, u], 1).ravel()
            u, v = (end[kept] for end in ends)
            rows = np.stack([rows, rows + given], 1).ravel()[kept]
            if weights is not None:
                weights = np.repeat(weights, 2)[kept]
        digests.add_ends(sums, rows, u, v)
        sorter.add(u, v, rows, weights)
    return digests.text_of(sums)


def _write_edges(
    folder: Path, sorter: Sorter, rows: str, dtype: Any
) -> tuple[dict[str, SliceArray], str]:
    """Write sorted edges; return their entries in the manifest, and their digest."""
    from featgraph.graph.building import digests  # loads Numba

    sums = digests.no_sums()
    fields = {"sources": ("u", "<i4"), "rows": ("row", rows)}
    if dtype is not None:
        fields["weights"] = ("w", dtype)
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(SliceWriter(folder, name, kind))
            for name, (_, kind) in fields.items()
        }
        for records in sorter.sorted():
            digests.add_ends(sums, records["row"], records["u"], records["v"])
            for name, writer in writers.items():
                writer.write(records[fields[name][0]])
        entries = {name: writer.finish() for name, writer in writers.items()}
    return entries, digests.text_of(sums)


def _write_vertices(
    folder: Path, edges: Edges, counted: _Counted, into: Array
) -> dict[str, SliceArray]:
    order, arrays = edges.order, _vertex_arrays(into, edges.names)
    if counted.out is not None:
        arrays["outs"] = counted.out if order is None else counted.out[order]
    if order is not None:
        starts = np.cumsum(counted.into) - counted.into
        arrays |= {"order": order, "starts": starts[order]}
    return {
        name: _write_array(folder, name, array, array.dtype)
        for name, array in arrays.items()
    }


#: Most temporary files of a sort, all of which are open at once.
_MOST_FILES = 200


class Sorter:
    """An external sort of edges by target, which is stable.

    Parameters
    ----------
    folder : Path
        The folder for temporary files.
    in_counts : ndarray of int64, shape (V,)
        The in-degree of each vertex.
    weights_dtype : dtype or None
    most : int
        Most edges that are sorted at once, except for the edges into one vertex.
    """

    def __init__(
        self, folder: Path, in_counts: Array, weights_dtype: Any, most: int
    ) -> None:
        fields = [("u", "<i4"), ("v", "<i4"), ("row", "<i8")]
        if weights_dtype is not None:
            fields.append(("w", np.dtype(weights_dtype).str))
        self._dtype = np.dtype(fields)
        ends = np.cumsum(in_counts)
        total = int(ends[-1])
        most = max(most, -(-total // _MOST_FILES), 1)
        # The first target of each range.
        goals = np.arange(most, total, most)
        self._begins = np.unique(np.searchsorted(ends, goals, "right"))
        self._paths = [folder / f"part{i}" for i in range(self._begins.size + 1)]
        self._streams = [os.fdopen(create_file(path), "wb") for path in self._paths]

    def add(self, u: Array, v: Array, rows: Array, weights: Array | None) -> None:
        """Add edges with their rows in given order."""
        records = np.empty(u.size, self._dtype)
        records["u"], records["v"] = u, v
        records["row"] = rows
        if weights is not None:
            records["w"] = weights
        to = np.searchsorted(self._begins, v, "right")
        order = np.argsort(to, kind="stable")
        bounds = np.searchsorted(to[order], np.arange(len(self._streams) + 1))
        for i, stream in enumerate(self._streams):
            some = order[bounds[i] : bounds[i + 1]]
            if some.size:
                stream.write(records[some].data)

    def sorted(self) -> Iterator[Array]:
        """Yield all edges by target, as records, and remove their files."""
        from featgraph.graph.building.kernels import order_of  # loads Numba

        self.close()
        for path in self._paths:
            with os.fdopen(open_file(path)[0], "rb") as stream:
                records = np.fromfile(stream, self._dtype)
            path.unlink()
            targets = records["v"]
            least = targets.min() if targets.size else 0
            yield records[order_of(targets - least)]  # smaller keys: fewer passes

    def close(self) -> None:
        """Close all files, also if flushing one fails, as on a full disk."""
        with ExitStack() as stack:
            for stream in self._streams:
                stack.callback(stream.close)


# -- names of vertices


def stored_names(names: VertexNames | None) -> Array | None:
    """Return names as slices store them: integers, or letters (uint8).

    Raises
    ------
    GraphInputError
        If names are neither integers nor text.
    """
    if names is None or isinstance(names, np.ndarray):
        return names
    for name in names:
        if not isinstance(name, str) or "\0" in name:
            raise GraphInputError(
                "a vertex name that slices cannot store",
                got=f"{name!r:.60} ({type(name).__name__})",
                expected="integers, or text without NUL characters",
                fix="name the vertices by text",
            )
    text = "".join(f"{name}\0" for name in names)
    try:
        return np.frombuffer(text.encode(), np.uint8)
    except UnicodeEncodeError as error:
        raise GraphInputError(
            "a vertex name that UTF-8 cannot store", got=str(error)[:200]
        ) from None


def _arrays_of_names(names: Array | None) -> dict[str, Array]:
    """Return stored names as a dict with the name of their array."""
    if names is None:
        return {}
    return {"letters" if names.dtype == np.uint8 else "names": names}


# -- folders under a temporary name


def require_free(path: Path) -> None:
    """Raise GraphInputError if a path exists, even as a broken link."""
    if os.path.lexists(path):
        raise GraphInputError(
            "the path exists already",
            where=str(path),
            fix="remove it, or choose another name",
        )


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Make a temporary folder next to a path, and rename it to the path at the end.

    Temporary folders of killed processes for the same path are removed.

    Raises
    ------
    GraphInputError
        If the path exists already.
    """
    require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    with ExitStack() as ends:
        folder = _locked_folder(path, ends)
        try:
            yield folder
            for file in folder.iterdir():
                sync_folder(file)
            sync_folder(folder)
            require_free(path)
            rename_whole(folder, path)
        except OSError as error:
            if error.filename is None:  # such as a full disk
                error.filename = str(folder)
            raise


def _locked_folder(path: Path, ends: ExitStack) -> Path:
    """Make a temporary folder, which is locked while this process writes it."""
    while True:
        folder = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        ends.enter_context(temporary_folder(folder))
        with contextlib.suppress(OSError):
            ends.enter_context(lock_folder(folder, waits=False))
        if folder.is_dir():  # not removed as abandoned before it was locked
            return folder


def _remove_abandoned(path: Path) -> None:
    """Remove temporary folders for this name that no process is writing."""
    begin, end = f"{path.name}.", ".part"
    for folder in path.parent.iterdir():
        if not (folder.name.startswith(begin) and folder.name.endswith(end)):
            continue
        if len(folder.name) != len(begin) + 8 + len(end) or not folder.is_dir():
            continue
        # Another process may have locked the folder, or remove it meanwhile.
        with contextlib.suppress(OSError), lock_folder(folder, waits=False) as ours:
            if ours:
                shutil.rmtree(folder, ignore_errors=True)
