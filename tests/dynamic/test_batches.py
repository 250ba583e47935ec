"""Batches on a store of edges, against lists that take the updates one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from featgraph.dynamic import pools
from featgraph.dynamic import store as stores
from featgraph.dynamic.batches import Batch, checked_batch
from featgraph.dynamic.store import EdgeStore
from featgraph.errors import DeviceMemoryError, GraphInputError
from tests.dynamic.model import Edge, Model, Refused, compare

from hypothesis import Phase

DEV = dict(phases=[Phase.generate])
COLUMNS: dict[str, dict[str, tuple[Any, int | None]]] = {
    "none": {},
    "weight": {"weight": (np.dtype(np.float32), None)},
    "half": {"weight": (np.dtype(np.float16), None)},
    "integers": {"weight": (np.dtype(np.int64), None)},
    "several": {
        "weight": (np.dtype(np.float64), None),
        "time": (np.dtype(np.int16), 2),
        "kind": (np.dtype(np.uint8), None),
    },
}
#: How many updates a batch has; runs have 4, 5, 6, 7, 8, 10 ... slots.
SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 31, 32, 33, 70])


class Batches(RuleBasedStateMachine):
    """All calls of a store, in any order."""

    @initialize(
        directed=st.booleans(),
        duplicates=st.sampled_from(
            ["keep", "keep", "last", "last", "first", "error", "sum", "min", "max"]
        ),
        loops=st.sampled_from(["keep", "keep", "drop", "error"]),
        columns=st.sampled_from(list(COLUMNS)),
        count=st.integers(0, 12),
        shares=st.sampled_from([(8, 4), (0, 0), (0, 0), (0, 1)]),
        capacity=st.sampled_from([None, None, 300]),
        data=st.data(),
    )
    def begin(
        self, directed: bool, duplicates: str, loops: str, columns: str, count: int,
        shares: tuple[int, int], capacity: int | None, data: Any,
    ) -> None:  # fmt: skip
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(stores, "MERGE_SHARE", shares[0])
        self.patch.setattr(stores, "COMPACT_SHARE", shares[1])
        if duplicates in {"sum", "min", "max"} and columns == "several":
            columns = "weight"
        self.spec = COLUMNS[columns]
        dtype = self.spec["weight"][0].type if self.spec else None
        self.model = Model(directed, duplicates, loops, dtype)
        self.model.insert_vertices(count)
        self.store = EdgeStore(
            count, directed=directed, duplicates=duplicates, loops=loops,
            columns=self.spec, capacity=capacity,
        )  # fmt: skip
        self.seen: list[tuple[int, list[Edge], list[bool]]] = []

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    @rule(
        size=SIZES, seed=st.integers(0, 2**16), is_sorted=st.booleans(),
        deletes=st.sampled_from([0.0, 0.0, 0.3, 0.5, 1.0]),
        hub=st.booleans(), copies=st.sampled_from(["all", "first", "last"]),
        missing=st.sampled_from(["ignore", "ignore", "error"]),
        fails=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def update(
        self, size: int, seed: int, is_sorted: bool, deletes: float, hub: bool,
        copies: str, missing: str, fails: bool,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        living = np.flatnonzero(self.model.living)
        if not living.size:
            return
        ends = living[rng.integers(0, living.size, (2, size))]
        if hub:
            ends[1, rng.random(size) < 0.8] = living[-1]
        if self.model.edges and deletes:  # edges that are there
            chosen = rng.integers(0, len(self.model.edges), size)
            is_known = rng.random(size) < 0.7
            for k in np.flatnonzero(is_known):
                edge = self.model.edges[chosen[k]]
                ends[:, k] = edge.source, edge.target
        if is_sorted:
            ends = ends[:, np.lexsort(ends)]
        kinds = rng.random(size) >= deletes
        columns = self._values(rng, size)
        rows = [
            tuple(
                tuple(column[k].tolist()) if column.ndim > 1 else column[k].item()
                for column in columns.values()
            )
            for k in range(size)
        ]
        batch = checked_batch(
            *ends, kinds, columns, self.spec, len(self.model.living), copies=copies,
            missing=missing,
        )  # fmt: skip
        model = self.model.copy()
        try:
            given = zip(*ends.tolist(), kinds.tolist(), rows, strict=True)
            outcomes, deleted = model.update(given, copies, missing)
        except Refused as refused:
            with pytest.raises(GraphInputError) as caught:
                self.store.apply(batch)
            assert f"sources[{refused.args[0]}]" in str(caught.value)
            return
        if fails:
            fail_in_turn(self.store, batch)
        try:
            result = self.store.apply(batch)
        except DeviceMemoryError:
            assert self.store.capacity is not None
            return
        changes = {"inserted", "replaced", "deleted"} & set(outcomes)
        model.version += bool(changes)
        self._remember()
        self.model = model
        assert result.outcomes.tolist() == outcomes
        counts = [outcomes.count(name) for name in ("inserted", "replaced", "ignored")]
        counts += [deleted, outcomes.count("missing")]
        assert counts == [
            result.inserted, result.replaced, result.ignored, result.deleted,
            result.missing,
        ]  # fmt: skip
        assert result.version == model.version

    def _values(self, rng: Any, size: int) -> dict[str, Any]:
        return {
            name: rng.integers(0, 9, size if width is None else (size, width)).astype(
                dtype
            )
            for name, (dtype, width) in self.spec.items()
        }

    def _remember(self) -> None:
        model = self.model
        self.seen.append((model.version, list(model.edges), list(model.living)))
        del self.seen[:-4]

    @rule(count=st.integers(0, 70))
    def insert_vertices(self, count: int) -> None:
        if len(self.model.living) > 200:
            return
        self._remember()
        result = self.store.apply(Batch(births=count))
        assert result.vertices.tolist() == self.model.insert_vertices(count)
        self.model.version += count > 0

    @rule(data=st.data(), fails=st.booleans())
    def delete_vertices(self, data: Any, fails: bool) -> None:
        living = np.flatnonzero(self.model.living).tolist()
        if not living:
            return
        ids = data.draw(
            st.lists(st.sampled_from(living), min_size=1, max_size=4, unique=True)
        )
        batch = Batch(deaths=np.array(sorted(ids), np.int32))
        if fails:
            fail_in_turn(self.store, batch)
        self._remember()
        result = self.store.apply(batch)
        assert result.deleted == self.model.delete_vertices(ids)
        self.model.version += 1
        self.model.number = self.store.next_number

    @rule(along=st.sampled_from(["out", "both"]))
    def build(self, along: str) -> None:
        self.store.pool(along)

    @rule()
    def give_ids(self) -> None:
        self.store.give_ids()

    @rule()
    def compact(self) -> None:
        self.store.compact()

    @rule()
    def copy(self) -> None:
        self.store = self.store.copy()

    @rule()
    @precondition(lambda self: self.model.number > 40)
    def renumber(self) -> None:
        self.store._renumber()
        self.model.edges = [
            Edge(e.source, e.target, k, e.values)
            for k, e in enumerate(self.model.edges)
        ]
        self.model.number = len(self.model.edges)
        self.seen = []

    @invariant()
    def is_as_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        compare(self.store, self.model)
        for version, edges, living in self.seen:
            changes = self.store.changes(version)
            assert changes is not None
            self._compare_changes(changes, edges, living)

    def _compare_changes(
        self, changes: Any, edges: list[Edge], living: list[bool]
    ) -> None:
        then = {e.number: e for e in edges}
        now = {e.number: e for e in self.model.edges}

        def pairs(numbers: Any, of: dict[int, Edge]) -> list[tuple[int, int]]:
            return sorted((of[n].source, of[n].target) for n in numbers)

        def found(pair: Any) -> list[tuple[int, int]]:
            return sorted(zip(*(ends.tolist() for ends in pair), strict=True))

        assert found(changes.inserted) == pairs(now.keys() - then.keys(), now)
        assert found(changes.deleted) == pairs(then.keys() - now.keys(), then)
        both = now.keys() & then.keys()
        other = pairs([n for n in both if now[n].values != then[n].values], now)
        # A value may have changed and changed back.
        assert set(other) <= set(found(changes.changed)) <= set(pairs(both, now))
        if changes.version == changes.since + 1:
            assert found(changes.changed) == other
        born = set(np.flatnonzero(self.model.living)) - set(np.flatnonzero(living))
        assert born <= set(changes.born.tolist())


Batches.TestCase.settings = settings(stateful_step_count=20, **DEV)
TestBatches = Batches.TestCase


def fail_in_turn(store: EdgeStore, batch: Batch) -> None:
    """Have each allocation of a batch fail; nothing may change."""
    before = digest(store)
    for turn in range(1000):
        tried = store.copy()
        with pytest.MonkeyPatch.context() as patch:
            left = [turn]
            for module in (pools, stores):
                patch.setattr(module, "np", Failing(left))
            try:
                tried.apply(batch)
                return
            except DeviceMemoryError:
                pass
        assert digest(tried) == before
        if left[0] > 0:  # the pool is full
            return


class Failing:
    """NumPy, whose functions that make arrays fail after some calls."""

    MAKERS = ("empty", "zeros", "full", "arange", "append", "concatenate", "where",
              "empty_like", "flatnonzero", "cumsum", "repeat", "stack")  # fmt: skip

    def __init__(self, left: list[int]) -> None:
        self.left = left

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if name not in self.MAKERS:
            return found

        def make(*arguments: Any, **options: Any) -> Any:
            if self.left[0] == 0:
                raise MemoryError
            self.left[0] -= 1
            return found(*arguments, **options)

        return make


def digest(store: EdgeStore) -> Any:
    """Return all that a store keeps, in bytes."""
    arrays = [a.tobytes() for pool in store.pools.values() for a in pool.arrays()]
    for pool in store.pools.values():
        queues = [queue.next(len(queue)).tolist() for queue in pool.queues]
        arrays += [queues, pool.region, pool.top, pool.lost, pool.hubs.tolist()]
        arrays.append(pool.length_counts.tolist())
    living = None if store.living is None else store.living.tolist()
    queues = [
        None if queue is None else queue.next(len(queue)).tolist()
        for queue in (store.free_vertices, store.free_ids)
    ]
    scalars = {
        name: value
        for name, value in vars(store).items()
        if isinstance(value, int | str | type(None))
    }
    return arrays, living, queues, scalars, len(store._log)
