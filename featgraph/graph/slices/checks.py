"""Checks of the arrays in a folder of slices, for all of its readers.

Checksums have no key, so an altered array may have a valid checksum. All readers
therefore check more. By array (see `files.ARRAYS`):

sources, rows   in range; rows ascend within the edges into a vertex; each given edge
                occurs once; both sums of the digest equal those of the manifest; twins
                have the same sums, so that each is the reverse of a given edge
weights         the sums equal those of the manifest, also for weights of twins
offsets         ascend from 0 to E
words, outs     equal the counts of these edges
order, starts   have each vertex once, and its first edge
names           ascend, or are different words

Sums (`sums`) are added over the edges of all readers, so that no rank needs edges of
other ranks. A reader checks only the arrays that it reads.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.base.errors import FileFormatError
from featgraph.cuda.values import in_pieces
from featgraph.graph.slices.files import Manifest, Slices
from featgraph.graph.views.structure import structure_digest

__all__ = [
    "bits_of",
    "read_words",
    "require_in_range",
    "require_names",
    "require_order",
    "require_sums",
    "require_words",
    "row_bound",
    "sums_of_edges",
    "sums_of_vertices",
    "word_ends",
]

_Array: TypeAlias = NDArray[Any]
#: The fix in errors.
_AGAIN = "make the folder again: featgraph convert"


def row_bound(manifest: Manifest) -> int:
    """Return the highest row in given order, twins included, plus one."""
    return manifest.given_count * (1 if manifest.directed else 2)


def require_in_range(slices: Slices, name: str, found: _Array) -> None:
    """Raise FileFormatError unless sources or rows are in range."""
    from featgraph.graph.slices import sums  # loads Numba

    manifest = slices.manifest
    bound = manifest.vertex_count if name == "sources" else row_bound(manifest)
    if not found.size:
        return
    parts: list[_Array] = []

    def look(begin: int, end: int) -> None:
        part = np.empty(2, np.int64)
        sums.find_range(found, begin, end, part)
        parts.append(part)

    in_pieces(found.size, found.nbytes, look)
    low, high = min(part[0] for part in parts), max(part[1] for part in parts)
    if low < 0 or high >= bound:
        raise FileFormatError(
            "a number out of range",
            where=str(slices.folder / f"{name}.bin"),
            got=f"{low} to {high}",
            expected=f"0 to {bound - 1}",
        )


def sums_of_edges(
    slices: Slices,
    adjacency: tuple[_Array, _Array, _Array, _Array | None],
    first: int = 0,
    vertices: _Array | None = None,
) -> NDArray[np.uint64]:
    """Return the sums over the edges into some vertices, for `require_sums`.

    Parameters
    ----------
    slices : Slices
    adjacency : tuple of ndarray
        Offsets (int64), sources, rows in given order and weights; checked to be in
        range.
    first : int
        The number of the first vertex.
    vertices : ndarray of int32, optional
        The vertex of each number. Default: numbers are vertices.
    """
    from featgraph.graph.slices import sums  # loads Numba

    offsets, sources, rows, weights = adjacency
    bits = np.empty(0, np.uint8) if weights is None else bits_of(weights)
    if vertices is None:
        vertices = np.empty(0, np.int32)
    parts: list[_Array] = []

    def look(begin: int, end: int) -> None:
        part = np.empty(sums.SUMS, np.uint64)
        given = slices.manifest.given_count
        sums.add_slots(
            (offsets, sources, rows, bits), vertices, first, given, begin, end, part
        )
        parts.append(part)

    in_pieces(offsets.size - 1, 8 * sources.size, look)
    found: NDArray[np.uint64] = np.sum(parts, axis=0, dtype=np.uint64)
    return found


def bits_of(weights: Any) -> Any:
    """Return weights, on the host or on a GPU, as integers of the same bits."""
    return weights.view(np.dtype(f"u{weights.dtype.itemsize}"))


def sums_of_vertices(
    slices: Slices,
    outs: _Array | None,
    starts: tuple[_Array, _Array, _Array] | None,
    first: int = 0,
    share: tuple[int, int] = (0, 1),
) -> NDArray[np.uint64]:
    """Return the contributions of arrays of some vertices to the sums of edges.

    The sums `ROWS` and `OUTS` are subtracted, so that they cancel those of the edges in
    a valid folder.

    Parameters
    ----------
    slices : Slices
    outs : ndarray of int64, or None
        Out-degrees; None if the graph is undirected.
    starts : tuple of ndarray, or None
        The edge id of each vertex's first in-edge, in-degrees, and vertices.
    first : int
        The number of the first vertex.
    share : (int, int)
        The index of this reader, and the number of readers.
    """
    from featgraph.graph.slices import sums  # loads Numba

    found, given = np.zeros(sums.SUMS, np.uint64), slices.manifest.given_count
    begin, end = (given * (share[0] + i) // share[1] for i in range(2))
    parts: list[Any] = []
    in_pieces(
        end - begin,
        end - begin,
        lambda low, high: parts.append(sums.add_rows(begin + low, begin + high)),
    )
    found[sums.ROWS] = np.array(parts, np.uint64).sum()
    if outs is not None:
        found[sums.OUTS] = sums.add_outs(outs, first)
    np.negative(found, out=found)
    if starts is not None:
        found[sums.STARTS] = sums.add_starts(*starts)
    return found


def require_sums(slices: Slices, found: NDArray[np.uint64]) -> None:
    """Raise FileFormatError unless the sums of all readers are those of a graph.

    Parameters
    ----------
    slices : Slices
    found : ndarray of uint64
        The sums of edges and vertices over all readers; zero for weights not read.
    """
    from featgraph.graph.building import digests  # loads Numba
    from featgraph.graph.slices import sums

    def two(place: int) -> str:
        return digests.text_of(found[place : place + 2])

    manifest = slices.manifest
    has_order = "order" in manifest.arrays
    altered = "sources.bin, rows.bin, offsets.bin" + has_order * ", order.bin"
    ends = manifest.vertex_count, manifest.directed, two(sums.GIVEN)
    if found[sums.ROWS]:
        _fail(slices, "rows", "rows that are not those of each given edge once")
    if not manifest.directed and two(sums.TWINS) != two(sums.GIVEN):
        what = "undirected edges that do not lead both ways"
        _fail(slices, "sources", what, f"one altered of {altered}")
    if structure_digest(*ends) != manifest.digest:
        what = "edges that are not those of the digest in manifest.json"
        _fail(slices, "sources", what, f"one altered of {altered}")
    if found[sums.DESCENTS]:
        _fail(slices, "rows", "edges into a vertex that are not in given order")
    if manifest.directed and found[sums.OUTS]:
        _fail(slices, "outs", "out-degrees that are not those of the edges")
    if found[sums.GIVEN_WEIGHTS : sums.ROWS].any():
        if not manifest.directed and two(sums.TWIN_WEIGHTS) != two(sums.GIVEN_WEIGHTS):
            _fail(slices, "weights", "weights that are not the same both ways")
        digest = f"{manifest.weights_dtype} {two(sums.GIVEN_WEIGHTS)}"
        if digest != manifest.weights_digest:
            _fail(slices, "weights", "weights that are not those of the digest")
    all_starts = sums.starts_of(manifest.vertex_count, manifest.edge_count)
    if has_order and int(found[sums.STARTS]) != all_starts:
        _fail(slices, "starts", "first edges that are not those of the order")


def word_ends(count: int) -> NDArray[np.int64]:
    """Return the offsets of the words of `count` vertices, and the end of the last."""
    return np.minimum(np.arange(0, count + 32, 32), count)


def read_words(slices: Slices) -> NDArray[np.int64]:
    """Read the number of edges into each 32 vertices.

    Raises
    ------
    FileFormatError
        If words are missing, altered or negative, or their sum is not E.
    """
    words = slices.read("words")
    edges = slices.manifest.edge_count
    if words.min() < 0 or words.max() > edges or words.sum() != edges:
        _fail(slices, "words", "counts of in-edges that are not those of all edges")
    return words


def require_words(slices: Slices, ends: _Array, words: _Array) -> None:
    """Raise FileFormatError unless `words` has the in-edges of each 32 vertices.

    Parameters
    ----------
    slices : Slices
    ends : ndarray
        Offsets at `word_ends`.
    words : ndarray of int64
        The words of these vertices.
    """
    if not np.array_equal(words, np.diff(ends)):
        _fail(slices, "words", "counts of in-edges that offsets do not have")


def require_order(slices: Slices, order: _Array) -> None:
    """Raise FileFormatError unless the order is a permutation within each side."""
    sides = slices.manifest.sides or (order.size,)
    has_place = np.zeros(order.size, np.bool_)
    if int(order.min()) >= 0 and int(order.max()) < order.size:
        has_place[order] = True
    if not bool(has_place.all()):
        _fail(slices, "order", "an order that does not have each vertex once")
    for begin, end in pairwise((0, *accumulate(sides))):
        stored = order[begin:end]
        if not bool(((stored >= begin) & (stored < end)).all()):
            raise FileFormatError(
                "vertices of one side among those of another",
                where=str(slices.folder / "order.bin"),
                got=f"places {begin} to {end}",
                expected=f"the vertices {begin} to {end}, in any order",
                fix="convert again",
            )


def require_names(slices: Slices, names: _Array) -> None:
    """Raise FileFormatError unless vertex names ascend."""
    if not bool((names[1:] > names[:-1]).all()):
        _fail(slices, "names", "names of vertices that do not ascend")


def _fail(
    slices: Slices,
    name: str,
    what: str,
    got: str = "an altered array with a checksum of its own",
) -> NoReturn:
    raise FileFormatError(
        what,
        where=str(slices.folder / f"{name}.bin"),
        got=got,
        expected="arrays that fit each other",
        fix=_AGAIN,
    )
