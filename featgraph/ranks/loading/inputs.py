"""Checks of the edges given to each rank, on the host or on GPUs.

They are checked on GPUs if all ranks have them there, or by `target`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import require_flag
from featgraph.base.errors import GraphInputError
from featgraph.cuda.dialect import chosen_target
from featgraph.cuda.values import DeviceValues, is_on_gpu
from featgraph.graph import Graph
from featgraph.graph.building.check import checked_count, checked_sides
from featgraph.graph.building.edges import (
    MANY_EDGES,
    EdgeList,
    edges_on_gpu,
    edges_on_host,
    ends_on_gpu,
)
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.engines.raise_on_all import on_all, require_same
from featgraph.ranks.loading.chunks import Chunk, EdgeChunks

__all__ = ["ABOUT", "agree", "edges_of", "entries_of", "target_of"]

Array = npt.NDArray[Any]
#: A name of these exchanges, for errors.
ABOUT = "edges of a graph"


def edges_of(
    engine: Engine, sources: object, targets: object, options: dict[str, Any]
) -> EdgeChunks:
    """Return the checked edges given to this rank; all ranks call it.

    Parameters
    ----------
    engine : Engine
    sources, targets : object
    options : dict
        See `Graph.from_edges`.
    """
    ends, weights = (sources, targets), options["weights"]
    on_gpu = all(is_on_gpu(c) for c in (*ends, weights) if c is not None)
    target = _target_of(engine, options["target"], _size(sources), on_gpu)
    count, directed, sides = on_all(engine, lambda: _checked_options(options), ABOUT)

    def given_on_gpu() -> EdgeChunks | None:
        there = ends_on_gpu(*ends, "cuda")
        if there is None:
            return None
        found = edges_on_gpu(there, weights, count, directed, sides)
        if found is None:
            return None
        edges, own = found
        values: Any = None
        if own is not None:
            from featgraph.cuda import arrays

            is_there = isinstance(own, DeviceValues)
            values = own.array if is_there else arrays.upload(own)
        chunk = Chunk(edges.sources, edges.targets, values)
        dtype = None if values is None else np.dtype(values.dtype)
        return EdgeChunks([chunk], edges.vertex_count, directed, dtype, sides, True)

    def given_on_host() -> EdgeChunks:
        *own, found = edges_on_host(ends, weights, count, sides)
        # Kernels take arrays in native byte order.
        u, v = (a.astype(a.dtype.newbyteorder("="), copy=False) for a in own[:2])
        dtype = None if own[2] is None else own[2].dtype
        return EdgeChunks([Chunk(u, v, own[2])], found, directed, dtype, sides)

    if target == "cuda":
        made = on_all(engine, given_on_gpu, ABOUT)
        if _on_all_ranks(engine, made is not None):
            return made  # type: ignore[return-value]
    return on_all(engine, given_on_host, ABOUT)


def entries_of(engine: Engine, matrix: Any, target: object) -> EdgeChunks:
    """Return the edges of the entries of this rank's matrix; all ranks call it.

    Parameters
    ----------
    engine : Engine
    matrix : scipy.sparse array or matrix
        Of the same shape on all ranks.
    target : str or None
        See `Graph.from_biadjacency`.
    """
    size = int(getattr(matrix, "nnz", 0))
    where = _target_of(engine, target, size, on_gpu=False)

    def taken() -> EdgeList:
        return Graph.from_biadjacency(matrix, target=where)._edges

    edges = on_all(engine, taken, ABOUT)
    on_gpu = _on_all_ranks(engine, edges.is_given_on_gpu)
    if on_gpu:
        ends = edges.on_gpu.sources, edges.on_gpu.targets
        chunk = Chunk(*ends, edges.weights_on_gpu())
    else:
        chunk = Chunk(edges.sources, edges.targets, edges.weights)
    known = edges.vertex_count, False, edges.weights_dtype, edges.sides
    return EdgeChunks([chunk], *known, is_on_gpu=on_gpu)


def _target_of(engine: Engine, target: object, size: int, on_gpu: bool) -> str:
    """Return the target on which all ranks check their edges.

    Parameters
    ----------
    target : object
        The caller's target, the same on all ranks.
    size : int
        Number of edges of this rank.
    on_gpu : bool
        Whether they are on a GPU.
    """
    total = engine.all_reduce(np.array([size], np.int64), "sum", about=ABOUT)
    return target_of(engine, target, int(total[0]), on_gpu)


def target_of(engine: Engine, target: object, total: int, on_gpu: bool = False) -> str:
    """Return the target on which all ranks check `total` edges; all ranks call it.

    Parameters
    ----------
    target : object
        The caller's target, the same on all ranks.
    total : int
        Number of edges of all ranks.
    on_gpu : bool
        Whether the edges of this rank are on a GPU.
    """
    require_same(
        engine,
        f"target={target!r}",
        "target= differs between ranks",
        "one target= on all of them",
        ABOUT,
    )
    if target is None:
        return "cuda" if _on_all_ranks(engine, on_gpu) else "cpu"
    default = "cuda" if total >= MANY_EDGES else "cpu"
    chosen = on_all(engine, lambda: chosen_target(target, default), ABOUT)
    return "cuda" if _on_all_ranks(engine, chosen == "cuda") else "cpu"


def _on_all_ranks(engine: Engine, own: bool) -> bool:
    """Return whether `own` is true on all ranks; all ranks call it."""
    found = engine.all_reduce(np.array([own], np.int64), "min", about=ABOUT)
    return bool(found[0])


def _size(values: object) -> int:
    shape = getattr(values, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) == 1 else 0
    return len(values) if hasattr(values, "__len__") else 0


def _checked_options(
    options: dict[str, Any],
) -> tuple[int | None, bool, tuple[int, ...] | None]:
    """Return the number of vertices, whether edges are directed, and the sides.

    Raises
    ------
    GraphInputError
        For options that need the whole graph.
    """
    refused = {
        "duplicates": options["duplicates"] != "keep",
        "names": bool(options["names"]),
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise GraphInputError(
                "this takes the whole graph, which no rank has",
                where=f"{name}=",
                got=repr(options[name]),
                fix=f"leave {name} out, or write the graph once, with it, as slices: "
                "featgraph convert",
            )
    directed = require_flag("directed", options["directed"])
    sides, count = options["sides"], options["vertex_count"]
    if sides is not None:
        sides = checked_sides(sides, count)
        return sum(sides), directed, sides
    return None if count is None else checked_count(count), directed, None


def agree(engine: Engine, given: EdgeChunks, count: object) -> None:
    """Agree on one kind of graph and its number of vertices; all ranks call it.

    Sets ``given.vertex_count`` and ``given.weights_dtype`` alike on all ranks. Raises
    GraphInputError if ranks differ, or there are no vertices.
    """
    dtype = given.weights_dtype
    kinds = f"directed={given.directed}, vertex_count={count}, sides={given.sides}"
    kinds += f", {'no' if dtype is None else 'with'} weights"
    fix = "give all ranks the same arguments, and all or none of them weights"
    what, about = "the kind of graph differs between ranks", "the kind of graph"
    require_same(engine, kinds, what, fix, about)
    # The dtype of weights on a rank without edges does not count.
    own_type = f"{dtype}" if given.size else ""
    types = engine.all_gather(np.frombuffer(own_type.encode(), np.uint8), about=about)
    found = sorted({t.tobytes().decode() for t in types if t.size})
    if len(found) > 1:
        got = ", ".join(found)
        raise GraphInputError("weights of ranks have different types", got=got, fix=fix)
    if dtype is not None and found:
        given.weights_dtype = np.dtype(found[0])
        chunks = given.chunks
        for i, chunk in enumerate(chunks if not given.size else []):
            empty = np.empty(0, given.weights_dtype)
            chunks[i] = Chunk(chunk.sources, chunk.targets, empty)
    most = np.array([given.vertex_count], np.int64)
    given.vertex_count = int(engine.all_reduce(most, "max", about=about)[0])
    if not given.vertex_count:
        raise GraphInputError(
            "a graph needs at least one vertex",
            got="no edges on any rank and no vertex_count",
            fix="give vertex_count: vertices without edges are allowed",
        )
