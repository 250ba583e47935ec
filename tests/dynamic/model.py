"""A graph as lists of edges, which takes the updates of a batch one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from featgraph.dynamic import store as stores
from featgraph.dynamic.audit import audit
from featgraph.dynamic.batches import UpdateResult, on_host
from featgraph.dynamic.store import EdgeStore, living_slots

__all__ = ["Edge", "Model", "Refused", "compare"]


class Refused(Exception):
    """An update that a policy refuses: its place in the batch."""


@dataclass(frozen=True)
class Edge:
    """An edge as given, the number of its insertion, and its values by column."""

    source: int
    target: int
    number: int
    values: tuple[Any, ...] = ()


class Model:
    """The edges in the order of insertion, and which vertices live."""

    def __init__(
        self, directed: bool, duplicates: str, loops: str, dtype: Any = None
    ) -> None:
        self.directed, self.duplicates, self.loops = directed, duplicates, loops
        self.dtype = dtype
        self.edges: list[Edge] = []
        self.living: list[bool] = []
        self.freed: list[int] = []
        self.number = self.version = 0

    def copy(self) -> Model:
        made = Model(self.directed, self.duplicates, self.loops, self.dtype)
        made.__dict__.update(self.__dict__)
        made.edges, made.living = list(self.edges), list(self.living)
        made.freed = list(self.freed)
        return made

    def _is(self, edge: Edge, u: int, v: int) -> bool:
        ends = (edge.source, edge.target)
        return ends == (u, v) or (not self.directed and ends == (v, u))

    def update(
        self, updates: Iterable[tuple[int, int, bool, tuple[Any, ...]]],
        copies: str = "all", missing: str = "ignore",
    ) -> tuple[list[str], int]:  # fmt: skip
        """Return the outcome of each update, and how many edges were deleted."""
        outcomes, deleted = [], 0
        sums: dict[int, float] = {}
        for place, (u, v, is_new, values) in enumerate(updates):
            edge = Edge(u, v, self.number + place, values)
            found = [k for k, e in enumerate(self.edges) if self._is(e, u, v)]
            if is_new:
                outcomes.append(self._insert(edge, found, place, sums))
                continue
            if copies != "all":
                found = found[:1] if copies == "first" else found[-1:]
            if not found and missing == "error":
                raise Refused(place)
            outcomes.append("deleted" if found else "missing")
            deleted += len(found)
            self.edges = [e for k, e in enumerate(self.edges) if k not in found]
        for k, edge in enumerate(self.edges):
            if edge.number in sums:
                self.edges[k] = replace(edge, values=(self.dtype(sums[edge.number]),))
        self.number += len(outcomes)
        return outcomes, deleted

    def _insert(
        self, edge: Edge, found: list[int], place: int, sums: dict[int, float]
    ) -> str:
        if edge.source == edge.target and self.loops != "keep":
            if self.loops == "error":
                raise Refused(place)
            return "ignored"
        if not found or self.duplicates == "keep":
            self.edges.append(edge)
            return "inserted"
        if self.duplicates == "error":
            raise Refused(place)
        if self.duplicates == "first" or not edge.values:
            return "ignored"
        known = self.edges[found[0]]
        values = edge.values
        if self.duplicates == "sum":
            total = sums.get(known.number, float(known.values[0]))
            sums[known.number] = total + float(edge.values[0])
            values = known.values
        elif self.duplicates in {"min", "max"}:
            choose = min if self.duplicates == "min" else max
            values = (choose(known.values[0], edge.values[0]),)
        self.edges[found[0]] = replace(known, values=values)
        return "replaced"

    def insert_vertices(self, count: int) -> list[int]:
        ids = self.freed[:count]
        self.freed = self.freed[count:]
        more = range(len(self.living), len(self.living) + count - len(ids))
        self.living += [True] * len(more)
        ids += more
        for v in ids:
            self.living[v] = True
        return ids

    def delete_vertices(self, ids: list[int]) -> int:
        before = len(self.edges)
        gone = set(ids)
        self.edges = [e for e in self.edges if not gone & {e.source, e.target}]
        for v in sorted(ids):
            self.living[v] = False
            self.freed.append(v)
        return before - len(self.edges)

    def rows(self, along: str) -> list[list[tuple[Any, ...]]]:
        """Return (other end, 2 * number + side, values) by row."""
        rows: list[list[tuple[Any, ...]]] = [[] for _ in self.living]
        for e in self.edges:
            into = (e.source, 2 * e.number, *e.values)
            side = along == "both" or not self.directed
            out = (e.target, 2 * e.number + side, *e.values)
            if along != "out" or not self.directed:
                rows[e.target].append(into)
            if (along == "out" and self.directed) or (side and e.source != e.target):
                rows[e.source].append(out)
        return rows


def plain(values: Any) -> Any:
    """Return a value of a column as Python's, a row of one as a tuple."""
    return tuple(values.tolist()) if np.ndim(values) else values.item()


def rows_of(store: EdgeStore, along: str) -> list[list[tuple[Any, ...]]]:
    pool = store.pools[along]
    found = []
    for v in range(store.vertex_count):
        slots = range(pool.starts[v], pool.stops[v])
        found.append([
            (int(pool.ends[s]), int(pool.numbers[s]),
             *(plain(c[s]) for c in pool.columns.values()))
            for s in slots
        ])  # fmt: skip
    return found


def set_shares(patch: pytest.MonkeyPatch, merge: int = 0, compact: int = 0) -> None:
    """Set the shares of batches that lay out all rows; none does by default."""
    patch.setattr(stores, "MERGE_SHARE", merge)
    patch.setattr(stores, "COMPACT_SHARE", compact)


def edges_in(store: EdgeStore) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return ends, numbers and columns of the edges in the order of insertion."""
    (rows, slots), pool = map(on_host, store._slots()), store.pools["in"].on_host()
    columns = {name: column[slots] for name, column in pool.columns.items()}
    return pool.ends[slots], rows, pool.numbers[slots], columns


def kept(store: EdgeStore) -> dict[str, Any]:
    """Return all that a store keeps but its target, by name.

    The last entry has its arrays with spare slots.
    """
    made: dict[str, Any] = {
        name: value for name, value in vars(store).items()
        if isinstance(value, int | str | type(None)) and name != "target"
    }  # fmt: skip
    made["log"] = store._log._size
    made["living"] = None if store.living is None else store.living.tolist()
    for name in ("free_vertices", "free_ids"):
        queue = getattr(store, name)
        made[name] = None if queue is None else queue.listed()[0].tolist()
    pools = {along: pool.on_host() for along, pool in store.pools.items()}
    for along, pool in pools.items():
        slots = living_slots(pool, store.vertex_count)
        made[f"{along} memory"] = [*pool.region, pool.top, pool.lost, pool.slots]
        arrays = pool.starts, pool.stops, pool.classes, pool.length_counts, pool.hubs
        arrays += *pool.queues.listed(), *(a[slots] for a in pool.by_slot())
        made |= {f"{along} {n}": array.tobytes() for n, array in enumerate(arrays)}
    made["arrays"] = [a.tobytes() for pool in pools.values() for a in pool.arrays()]
    return made


def drawn_updates(
    rng: np.random.Generator, store: EdgeStore, size: int, deletes: float | None = None,
    likely: float = 0.5,
) -> tuple[Any, Any, dict[str, Any]]:  # fmt: skip
    """Draw ends, kinds and values: to and from hubs, and, likely, of known edges."""
    ids = np.arange(store.vertex_count)
    if store.living is not None:
        ids = np.flatnonzero(store.living)
    ends = ids[rng.integers(0, ids.size, (2, size))]
    for row in range(2):
        if rng.random() < 0.3:  # a hub
            ends[row, rng.random(size) < 0.9] = ids[0]
    if store.edge_count and rng.random() < likely:  # edges that are there
        known = np.stack(edges_in(store)[:2])
        at = rng.integers(0, known.shape[1], size // 2)
        ends[:, : size // 2] = known[:, at]
    if deletes is None:
        kinds = rng.random(size) >= rng.choice([0.0, 0.0, 0.4, 1.0])
    else:
        kinds = rng.random(size) >= deletes
    columns = {
        name: (
            rng.integers(0, 9, size if width is None else (size, width))
            * (0.1 if dtype == "f8" else 1)
        ).astype(dtype)  # all bits of a float64
        for name, (dtype, width) in store.columns.items()
    }
    return ends, kinds, columns


def update(
    store: EdgeStore, sources: Any, targets: Any, kinds: Any = True, values: Any = (),
    **options: Any,
) -> UpdateResult:  # fmt: skip
    """Apply updates, which are checked as those of a graph are."""
    count, values = store.vertex_count, dict(values)
    return store.apply(store.checked(sources, targets, kinds, values, count, **options))


def compare(store: EdgeStore, model: Model) -> None:
    """Require that a store equals a model, and that all its arrays are consistent."""
    audit(store)
    assert store.vertex_count == len(model.living)
    assert store.living_count == sum(model.living)
    assert store.given_count == len(model.edges)
    assert store.version == model.version
    assert store.next_vertices(len(model.freed)).tolist() == model.freed
    for along in store.pools:
        assert rows_of(store, along) == model.rows(along)
    sources, targets, numbers, columns = edges_in(store)
    values = [list(map(plain, column)) for column in columns.values()]
    found = list(zip(sources.tolist(), targets.tolist(), (numbers >> 1).tolist(),
                     *values, strict=True))  # fmt: skip
    assert found == [(e.source, e.target, e.number, *e.values) for e in model.edges]
