"""Two stores that take the same batches, one on each target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms import triangle_count
from featgraph.base.errors import GraphInputError
from featgraph.dynamic.audit import audit
from featgraph.dynamic.batches import Batch, checked_batch
from featgraph.dynamic.store import EdgeStore
from tests.dynamic.model import drawn_updates, kept, set_shares, update

__all__ = [
    "check_arrays", "check_batches", "check_long_rows", "check_triangles", "printed_by",
    "require_counts", "require_same", "require_values", "stores_of",
]  # fmt: skip

Rng = np.random.Generator
_SHARES = (8, 4), (0, 0), (0, 0), (0, 1)


def check_batches(rng: Rng, vertex_count: int, batches: int, sizes: list[int]) -> None:
    """Require that drawn batches leave the same on both targets, in every bit."""
    directed = bool(rng.integers(2))
    policies = ["keep", "keep", "keep", "last", "first", "error", "sum", "min", "max"]
    duplicates = str(rng.choice(policies))
    options = {"directed": directed, "duplicates": duplicates}
    options["loops"] = str(rng.choice(["keep", "drop"]))
    spec: dict[str, tuple[np.dtype[Any], int | None]] = {}
    if duplicates in {"sum", "min", "max"} or rng.random() < 0.6:
        chosen = np.dtype(rng.choice(["f4", "f2", "i8"]))
        if duplicates == "max" and chosen.itemsize == 8:  # no draw more than before
            chosen = np.dtype("f8")
        spec["weight"] = chosen, None
    if duplicates not in {"sum", "min", "max"} and rng.random() < 0.4:
        spec["time"] = np.dtype("i4"), 3
    both = stores_of(vertex_count, columns=spec, **options)
    with pytest.MonkeyPatch.context() as patch:
        shares = _SHARES[rng.integers(4)]
        set_shares(patch, *shares)
        print(options, list(spec), shares)
        for number in range(batches):
            _between(rng, both, number)
            _update(rng, both, int(rng.choice(sizes)))
            require_same(both)


def check_triangles(
    rng: Rng, vertex_count: int, updates: int, *, chunk: int, part: int
) -> None:
    """Require that updates on the GPU count triangles as calls do.

    Rows are cut by `chunk` and `part`. Copies of edges are refused, and counts stay.
    """
    from featgraph.dynamic import triangles_cuda  # imports the dialect

    u, v = np.triu_indices(vertex_count, 1)
    kept = rng.random(u.size) < 0.6
    graph = fg.DynamicGraph.from_edges(
        u[kept], v[kept], vertex_count=vertex_count, directed=False, target="cuda"
    )
    result = triangle_count(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triangles_cuda, "CHUNK", chunk)
        patch.setattr(triangles_cuda, "PART", part)
        for step in range(3):
            low, high = np.sort(np.array(graph.edges()[:2]), 0)
            there = np.isin(u * vertex_count + v, low * vertex_count + high)
            turned = rng.permutation(u.size)[:updates]
            graph.update(u[turned], v[turned], ~there[turned])
            if step:
                graph.delete_vertices([step])
                graph.insert_vertices(1)
            assert result.update().began_anew == ""
            fresh = triangle_count(graph.freeze())
            np.testing.assert_array_equal(result.triangles, fresh.triangles)
            assert result.total == fresh.total
        graph.insert_edges([4, 5, 5], [5, 6, 4])
        with pytest.raises(GraphInputError, match="parallel"):
            result.update()
        np.testing.assert_array_equal(result._state["triangles"], fresh.triangles)


def stores_of(vertex_count: int, **options: Any) -> list[EdgeStore]:
    """Return an empty store on each target."""
    return [EdgeStore(vertex_count, target=t, **options) for t in ("cpu", "cuda")]


def _between(rng: Rng, both: list[EdgeStore], number: int) -> None:
    """Have rows of other directions, ids, vertices that come and die, and copies."""
    doing, along = rng.integers(8), str(rng.choice(["out", "both"]))
    dead = np.flatnonzero(both[0].living if both[0].living is not None else [1])[:1]
    for place, store in enumerate(both):
        if doing == 0:
            store.pool(along)
        elif doing == 1:
            store.compact()
        elif doing == 2:
            store.apply(Batch(births=3))
        elif doing == 3 and number > 1:
            store.give_ids()
        elif doing == 4 and number > 1 and store.vertex_count > 3:
            store.apply(Batch(deaths=dead.astype(np.int32)))
        elif doing == 5:
            both[place] = store.copy()


def _update(rng: Rng, both: list[EdgeStore], size: int) -> None:
    ends, kinds, columns = drawn_updates(rng, both[0], size)
    options = {"copies": str(rng.choice(["all", "first", "last"]))}
    options["missing"] = str(rng.choice(["ignore", "ignore", "ignore", "error"]))
    found = []
    for store in both:
        batch = checked_batch(
            *ends, kinds, columns, store.columns, store.vertex_count, **options
        )
        try:
            result = store.apply(batch)
            found.append([repr(result), result.outcomes.tolist()])
        except GraphInputError as error:
            found.append([str(error)])
    assert found[0] == found[1]


def require_counts(changes: Any) -> None:
    """Require that changes count the edges that they list."""
    pairs = changes.inserted, changes.deleted, changes.changed
    assert changes.counts == tuple(len(ends) for ends, _ in pairs)


def check_long_rows(
    rng: Rng, first: int, less: int, then: int, copies: str = "all"
) -> None:
    """Require the same of two long rows that lose and get many edges at a time.

    `first` edges are inserted, `less` deleted, and of `then` about half is either. If
    deletions take the first or the last of its `copies`, a pair is in a batch twice.
    """
    count, is_twice = first + first // 15, copies != "all"
    policy = "keep" if is_twice else "last"
    both = stores_of(count, duplicates=policy)
    with pytest.MonkeyPatch.context() as patch:
        set_shares(patch)
        for size, share in ((first, 1.0), (less, 0.0), (then, 0.5)):  # in their runs
            sources = rng.permutation(count)[:size] >> is_twice
            ends = sources, np.where(rng.random(size) < 0.8, 7, 3)
            kinds = rng.random(size) < share
            for store in both:
                update(store, *ends, kinds, copies=copies)
            require_same(both)


def require_same(both: list[EdgeStore]) -> None:
    """Require that two stores have the same in every slot that has an edge."""
    audit(both[1])
    ours, theirs = map(kept, both)
    del ours["arrays"], theirs["arrays"]  # spare slots have any values
    assert [n for n in ours | theirs if ours.get(n) != theirs.get(n)] == []
    changes = [store.changes(max(both[0].version - 2, 0)) for store in both]
    listed = [
        c and [e.tolist() for ends in (c.inserted, c.deleted, c.changed) for e in ends]
        for c in changes
    ]
    assert listed[0] == listed[1]
    for one in filter(None, changes):
        require_counts(one)


def check_arrays(
    patch: pytest.MonkeyPatch, upload: Any, vertex_count: int, size: int, downloads: Any
) -> None:
    """Require that arrays on a GPU, or moved there, leave what those of the host do."""
    from featgraph.dynamic import gpu_memory  # imports the dialect

    rng, first = np.random.default_rng(2), size * 5 // 9
    ends = rng.integers(0, vertex_count, (2, size)).astype(np.int32)
    weights, graphs, came = rng.random(size).astype(np.float32), [], []
    insert = rng.random(first) < 0.5
    for place, least in ((np.asarray, size + 1), (np.asarray, 0), (upload, size + 1)):
        patch.setattr(gpu_memory, "LEAST_MOVED", least)
        graph = fg.DynamicGraph.from_edges(
            *(place(e[:first]) for e in ends), weights=place(weights[:first]),
            vertex_count=vertex_count, duplicates="last", target="cuda",
        )  # fmt: skip
        more = [place(array[first:]) for array in (*ends, weights)]
        downloads.clear()
        came.append(graph.insert_edges(*more[:2], weights=more[2]).outcomes.tolist())
        assert 4 * (size - first) not in downloads
        graph.delete_edges(*(place(e[: size // 10]) for e in ends))
        *mixed, values = (place(array[-first:]) for array in (*ends, weights))
        came[-1] += graph.update(*mixed, insert, weights=values).outcomes.tolist()
        with pytest.raises(GraphInputError, match="there is no such edge"):
            graph.delete_edges(*more[:2][::-1], missing="error")
        for bad in (-1, vertex_count):
            pair = place(ends[0, :2]), place(np.array([3, bad], np.int32))
            for given in (pair, pair[::-1]):
                with pytest.raises(GraphInputError, match="vertex"):
                    graph.delete_edges(*given)
        graph.audit()
        graphs.append(graph)
    for outcomes, graph in zip(came, graphs, strict=True):
        assert outcomes == came[0]
        assert graph.digest == graphs[0].digest
        np.testing.assert_equal(graph.edges(), graphs[0].edges())


def printed_by(call: str, **environ: str) -> Any:
    """Return the JSON that ``module.function()`` prints in a process of its own."""
    module, _, name = call.rpartition(".")
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import {name}; {name}()"],
        cwd=Path(__file__).parents[2], env=os.environ | environ, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def require_values(found: Any, wanted: Any, is_exact: bool) -> None:
    """Require the same values by name, or close ones."""
    for name, value in wanted.items():
        if is_exact:
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], value, 1e-4, 1e-4, err_msg=name)
