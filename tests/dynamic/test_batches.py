"""Batches on a store of edges, against lists that take the updates one by one."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
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

import featgraph as fg
from featgraph.base.errors import DeviceMemoryError, GraphInputError
from featgraph.dynamic import pools, rows
from featgraph.dynamic import store as stores
from featgraph.dynamic.audit import audit
from featgraph.dynamic.batches import Batch, checked_batch
from featgraph.dynamic.store import EdgeStore
from featgraph.graph.building.edges import POLICIES
from tests.dynamic.model import Edge, Model, Refused, compare, edges_in, rows_of

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
        options=st.fixed_dictionaries({
            "directed": st.booleans(),
            "duplicates": st.sampled_from(
                ["keep", "keep", "last", "last", "first", "error", "sum", "min", "max"]
            ),
            "loops": st.sampled_from(["keep", "keep", "drop", "error"]),
            "capacity": st.sampled_from([None, None, 300]),
        }),
        columns=st.sampled_from(list(COLUMNS)),
        count=st.integers(0, 12),
        shares=st.sampled_from([(8, 4), (0, 0), (0, 0), (0, 1)]),
        built=st.sampled_from(["in", "out", "both"]),
        has_ids=st.booleans(),
    )  # fmt: skip
    def begin(
        self, options: dict[str, Any], columns: str, count: int,
        shares: tuple[int, int], built: str, has_ids: bool,
    ) -> None:  # fmt: skip
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(stores, "MERGE_SHARE", shares[0])
        self.patch.setattr(stores, "COMPACT_SHARE", shares[1])
        duplicates = options["duplicates"]
        if duplicates in {"sum", "min", "max"} and columns == "several":
            columns = "weight"
        self.spec = COLUMNS[columns]
        dtype = self.spec["weight"][0].type if self.spec else None
        self.model = Model(options["directed"], duplicates, options["loops"], dtype)
        self.model.insert_vertices(count)
        self.store = EdgeStore(count, columns=self.spec, **options)
        self.store.pool(built)
        if has_ids:
            self.store.give_ids()
        self.seen: list[tuple[int, list[Edge], list[bool]]] = []

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    @rule(
        size=SIZES,
        seed=st.integers(0, 2**16),
        deletes=st.sampled_from([0.0, 0.0, 0.3, 0.5, 1.0]),
        form=st.tuples(st.booleans(), st.booleans()),
        options=st.fixed_dictionaries({
            "copies": st.sampled_from(["all", "first", "last"]),
            "missing": st.sampled_from(["ignore", "ignore", "error"]),
        }),
        fails=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def update(
        self, size: int, seed: int, deletes: float, form: tuple[bool, bool],
        options: dict[str, str], fails: bool,
    ) -> None:  # fmt: skip
        is_sorted, hub = form
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
            *ends, kinds, columns, self.spec, len(self.model.living), **options
        )
        model = self.model.copy()
        try:
            given = zip(*ends.tolist(), kinds.tolist(), rows, strict=True)
            outcomes, deleted = model.update(given, **options)
        except Refused as refused:
            place = rf"sources\[{refused.args[0]}\]"
            with pytest.raises(GraphInputError, match=place):
                self.store.apply(batch)
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
        if not changes:
            model.number = self.model.number
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
        assert (result.missing, result.outcomes.size) == (0, 0)
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


Batches.TestCase.settings = settings(
    stateful_step_count=20, max_examples=min(settings().max_examples, 300)
)
TestBatches = Batches.TestCase


def fail_in_turn(store: EdgeStore, batch: Batch) -> None:
    """Have each allocation of a batch fail; nothing may change."""
    before = digest(store)
    for turn in range(1000):
        tried = store.copy()
        with pytest.MonkeyPatch.context() as patch:
            left = [turn]
            for module in (pools, rows, stores):
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

        return partial(self._make, found)

    def _make(self, make: Any, *arguments: Any, **options: Any) -> Any:
        if self.left[0] == 0:
            raise MemoryError
        self.left[0] -= 1
        return make(*arguments, **options)


def digest(store: EdgeStore) -> Any:
    """Return all that a store keeps, in bytes."""
    arrays = [a.tobytes() for pool in store.pools.values() for a in pool.arrays()]
    for pool in store.pools.values():
        queues = [runs.tolist() for runs in pool.queues.listed()]
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


def random_store(rng: Any, count: int, edges: int, **options: Any) -> EdgeStore:
    ends = rng.integers(0, count, (2, edges))
    weights = {"weight": rng.random(edges, np.float32)}
    return EdgeStore.from_edges(*ends, weights, vertex_count=count, **options)


def random_batch(rng: Any, store: EdgeStore, size: int, share: float) -> Batch:
    """Return insertions, and deletions of which about half find an edge."""
    ends = rng.integers(0, store.vertex_count, (2, size))
    known = np.stack(edges_in(store)[:2])
    if known.size:
        is_known = rng.random(size) < 0.5
        chosen = rng.integers(0, known.shape[1], size)
        ends[:, is_known] = known[:, chosen[is_known]]
    weights = {"weight": rng.random(size, np.float32)}
    kinds = rng.random(size) < share
    return checked_batch(*ends, kinds, weights, store.columns, store.vertex_count)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("duplicates", ["keep", "last", "sum"])
def test_threads_have_the_bits_of_one(
    monkeypatch: pytest.MonkeyPatch, rng: Any, directed: bool, duplicates: str
) -> None:
    options = {"directed": directed, "duplicates": duplicates}
    alone = random_store(rng, 300, 2000, **options)
    alone.pool("out")
    alone.give_ids()
    shared = alone.copy()
    for size in (1, 40, 700):
        batch = random_batch(rng, alone, size, 0.6)
        alone.apply(batch)
        with monkeypatch.context() as patch:
            patch.setattr(rows, "SHARED", 0)
            shared.apply(batch)
        assert digest(shared) == digest(alone)
        audit(shared)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("duplicates", POLICIES)
@pytest.mark.parametrize("loops", ["keep", "drop", "error"])
def test_first_edges_are_as_a_batch_leaves_them(
    rng: Any, directed: bool, duplicates: str, loops: str
) -> None:
    """Rows, numbers, bits of values, memory and errors, with repeats and without."""
    options: Any = {"directed": directed, "duplicates": duplicates, "loops": loops}
    for name, count in product(COLUMNS, (1, 9, 70, 5000)):
        if duplicates in {"sum", "min", "max"} and name == "several":
            continue
        ends, spec = rng.integers(0, count, (2, 120)), COLUMNS[name]
        values = {  # with zeros that have a sign
            key: np.negative(rng.integers(-1, 7, (120, width or 1)).astype(dtype))
            .reshape(120 if width is None else (120, width))
            for key, (dtype, width) in spec.items()
        }  # fmt: skip
        store = EdgeStore(count, columns=spec, **options)
        try:
            store.apply(checked_batch(*ends, True, values, spec, count))
        except GraphInputError as error:
            with pytest.raises(GraphInputError, match=re.escape(str(error))):
                EdgeStore.from_edges(*ends, values, vertex_count=count, **options)
            continue
        made = EdgeStore.from_edges(*ends, values, vertex_count=count, **options)
        audit(made)
        for found in (made, store):
            found.version = 0
        assert contents(made) == contents(store)
        if loops == "keep" and name in {"weight", "half"}:
            graph = fg.Graph.from_edges(
                *ends, weights=values["weight"], vertex_count=count, directed=directed,
                duplicates=duplicates,
            )  # fmt: skip
            assert np.array_equal(edges_in(made)[:2], [graph.sources, graph.targets])
            assert np.array_equal(edges_in(made)[3]["weight"], graph.weights)


def contents(store: EdgeStore) -> Any:
    """Return the rows along "in" in bytes, without spare slots, and all counts."""
    pool = store.pools["in"]
    slots = rows.living_slots(pool, store.vertex_count)
    arrays = pool.starts, pool.stops, pool.classes, *(a[slots] for a in pool.by_slot())
    return [a.tobytes() for a in arrays], digest(store)[3], store.memory()


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize(
    ("duplicates", "copies"),
    [("keep", "all"), ("keep", "first"), ("keep", "last"), ("first", "all"),
     ("last", "all"), ("sum", "all"), ("min", "all"), ("max", "all")],
)  # fmt: skip
def test_insertions_and_deletions_of_few_pairs(
    directed: bool, duplicates: str, copies: str
) -> None:
    machine: Any = Batches()
    options = {"directed": directed, "duplicates": duplicates, "loops": "keep"}
    machine.begin(
        options=options, columns="weight", count=3, shares=(0, 0), built="both",
        has_ids=True,
    )  # fmt: skip
    try:
        for turn, size in enumerate([1, 7, 9, 40, 3, 40, 12, 30]):
            machine.patch.setattr(stores, "MERGE_SHARE", 8 * (turn % 3 == 2))
            options = {"copies": copies, "missing": "ignore"}
            machine.update(
                size=size, seed=turn, deletes=0.45, form=(False, False),
                options=options, fails=False,
            )  # fmt: skip
            machine.is_as_the_model()
    finally:
        machine.teardown()


@pytest.mark.parametrize("directed", [True, False])
def test_a_hub_grows_and_shrinks(
    monkeypatch: pytest.MonkeyPatch, rng: Any, directed: bool
) -> None:
    monkeypatch.setattr(stores, "MERGE_SHARE", 0)
    monkeypatch.setattr(stores, "COMPACT_SHARE", 0)
    store, known = EdgeStore(70, directed=directed), np.empty(0, np.int64)
    store.pool("out")
    for size, is_new in [
        (2047, True), (1, True), (1, True), (2300, True), (4000, True), (5000, False),
        (900, True), (3000, False), (2100, False),
    ]:  # fmt: skip
        sources = rng.integers(0, 69, size)
        targets = np.full(size, 69)
        batch = checked_batch(sources, targets, is_new, {}, {}, 70, copies="first")
        store.apply(batch)
        if is_new:
            known = np.append(known, sources)
        else:  # as many copies of each, the first ones
            which, counts = np.unique(sources, return_counts=True)
            for source, count in zip(which, counts, strict=True):
                known = np.delete(known, np.flatnonzero(known == source)[:count])
        audit(store)
        assert [row[0] for row in rows_of(store, "in")[69]] == known.tolist()
        assert store.given_count == known.size
        hubs = [69] if known.size >= 2048 else []
        assert store.pools["in"].hubs.tolist() == hubs


def test_long_freed_runs_are_cut() -> None:
    store = EdgeStore(3000, capacity=200_000)
    ones = np.full(9000, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "MERGE_SHARE", 0)
        patch.setattr(stores, "COMPACT_SHARE", 0)
        store.apply(checked_batch(ones, ones, True, {}, {}, 3000))
        store.apply(checked_batch(ones, ones, False, {}, {}, 3000))
        top = store.pools["in"].top
        many = np.arange(2, 2002)
        store.apply(checked_batch(many, many, True, {}, {}, 3000))
        audit(store)
        assert store.pools["in"].top == top
        assert store.edge_count == 2000
        # A row that does not fit the rest of the region leaves it to the queues.
        start, stop = store.pools["in"].region
        assert stop - start > 0
        twos = np.full(9000, 2)
        batch = checked_batch(twos, twos, True, {}, {}, 3000)
        fail_in_turn(store, batch)
        store.apply(batch)
        audit(store)
        assert store.pools["in"].region == (0, 0)
        assert store.moves == 0
        # Regions of several runs, of which rows come to some.
        store.apply(checked_batch(twos, twos, False, {}, {}, 3000))
        for k in range(4):
            fives = np.full(5000, k + 3)
            store.apply(checked_batch(fives, fives, True, {}, {}, 3000))
        for k in range(4):
            fives = np.full(5000, k + 3)
            store.apply(checked_batch(fives, fives, False, {}, {}, 3000))
        audit(store)
        hubs = np.repeat(np.arange(2100, 2103), 3000)
        store.apply(checked_batch(hubs, hubs, True, {}, {}, 3000))
        audit(store)


@pytest.mark.timeout(1800)  # 100,000 batches in the deep profile
def test_memory_stays_flat(rng: Any) -> None:
    store = random_store(rng, 400, 4000, duplicates="last")
    for _ in range(50_000 if settings().max_examples > 300 else 60):
        edges = np.stack(edges_in(store)[:2])
        leave = edges[:, rng.choice(edges.shape[1], 300, replace=False)]
        come = rng.integers(0, 400, (2, 4300 - store.edge_count))
        weights = {"weight": rng.random(come.shape[1], np.float32)}
        for ends, values in ((leave, {}), (come, weights)):
            batch = checked_batch(*ends, bool(values), values, store.columns, 400)
            store.apply(batch)
        pool = store.pools["in"]
        assert pool.top <= 1.75 * store.edge_count
        assert pool.slots <= 1.75 * store.edge_count
    store.compact()
    assert store.pools["in"].top <= 1.25 * store.edge_count
    audit(store)


def test_a_pool_without_room_grows_once(rng: Any) -> None:
    """Batches of 5 % of the edges lay all rows out after 25 % alone."""
    ends = rng.integers(0, 2000, (2, 12000))
    graph = fg.DynamicGraph.from_edges(
        *ends, vertex_count=2000, duplicates="last", target="cpu"
    )
    before, sizes = graph._store.moves, set()
    for _ in range(20):
        batch = rng.integers(0, 2000, (2, 600))
        graph.insert_edges(*batch)
        graph.delete_edges(*batch)
        sizes.add(graph.memory()["in_slots"])
    assert graph._store.moves - before <= 10
    assert len(sizes) == 1
    assert max(sizes) <= 1.75 * graph.edge_count


def test_the_pool_is_full_within_a_batch(rng: Any) -> None:
    store = EdgeStore(50, columns={}, capacity=128)
    store.apply(checked_batch(range(20), range(20), True, {}, {}, 50))
    before = digest(store)
    batch = checked_batch([3] * 200, [4] * 200, True, {}, {}, 50)
    with pytest.raises(DeviceMemoryError, match="capacity"):
        store.apply(batch)
    assert digest(store) == before
    store.capacity = None
    assert store.apply(batch).inserted == 200
    audit(store)


def test_insertions_are_numbered_anew(rng: Any) -> None:
    store = random_store(rng, 30, 100)
    store.pool("both")
    rows = [[row[:1] for row in rows] for rows in rows_of(store, "both")]
    shift = stores.NUMBERS - 100 - store.next_number
    for pool in store.pools.values():
        slots = stores.living_slots(pool, 30)
        pool.numbers[slots] += np.uint32(2 * shift)
    store.next_number += shift
    audit(store)
    for size, is_anew in ((100, False), (1, True)):
        batch = random_batch(rng, store, size, 1)
        store.apply(batch)
        audit(store)
        assert (store.next_number < stores.NUMBERS // 2) is is_anew
    assert store.changes(store.version - 1) is not None
    assert store.changes(store.version - 2) is None  # the log began anew
    now = [[row[:1] for row in rows] for rows in rows_of(store, "both")]
    assert all(n[: len(r)] == r for n, r in zip(now, rows, strict=True))
    store._renumber()
    assert store.next_number == store.given_count


def test_slots_have_a_type_that_holds_them() -> None:
    assert pools.wide_slots(2**31 - 1025) is np.int32
    assert pools.wide_slots(2**31 - 1024) is np.int64


def test_a_store_of_wide_slots(monkeypatch: pytest.MonkeyPatch, rng: Any) -> None:
    narrow = random_store(rng, 60, 200)
    monkeypatch.setattr(pools, "wide_slots", lambda slots: np.int64)
    wide = narrow.copy()
    wide.compact()
    assert wide.pools["in"].starts.dtype == np.int64
    for size in (3, 300):
        batch = random_batch(rng, narrow, size, 0.5)
        for store in (narrow, wide):
            store.apply(batch)
            audit(store)
        assert rows_of(wide, "in") == rows_of(narrow, "in")


def test_interrupts_anywhere(rng: Any) -> None:
    store = random_store(rng, 40, 300, duplicates="last")
    store.pool("out")
    store.give_ids()
    batch = random_batch(rng, store, 20, 0.5)
    after = store.copy()
    after.apply(batch)
    known = digest(store), digest(after)
    seen = set()
    for turn in range(0, 4000, 7):
        tried = store.copy()
        is_over = interrupted_at(turn, lambda tried=tried: tried.apply(batch))
        now = digest(tried)
        assert now in known
        seen.add(known.index(now))
        if is_over:
            break
    assert seen == {0, 1}
    assert is_over


def interrupted_at(turn: int, call: Callable[[], Any]) -> bool:
    """Send SIGINT at a line of the store's modules; return whether none was left."""
    left = [turn]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if "/dynamic/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
            left[0] -= 1
        return trace

    before = sys.gettrace()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)
    return left[0] > 0


def test_a_small_batch_takes_no_pass_over_the_graph(rng: Any) -> None:
    store = random_store(rng, 4000, 40000, duplicates="last")
    store.pool("both")
    store.give_ids()
    store.apply(random_batch(rng, store, 3, 0.5))
    batch = random_batch(rng, store, 3, 0.5)
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (pools, rows, stores):
            patch.setattr(module, "np", Sized(sizes))
        store.apply(batch)
    assert sizes
    assert max(sizes) <= 512


def test_a_batch_of_one_edge_takes_few_calls(rng: Any) -> None:
    """Calls of Python take most of the time of such a batch."""
    graph = fg.DynamicGraph.from_edges(
        *rng.integers(0, 500, (2, 4000)), vertex_count=500, weights=rng.random(4000),
        target="cpu",
    )  # fmt: skip
    root, calls = str(Path(fg.__file__).parent), list[str]()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            calls.append(code.co_qualname)

    for _ in range(4):  # the first ones load what all need
        calls.clear()
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            graph.insert_edges([1], [2], weights=[0.5])
            graph.delete_edges([1], [2])
        finally:
            sys.setprofile(before)
    assert len(calls) <= 205, calls


class Sized(Failing):
    """NumPy, whose functions that make arrays note their sizes."""

    def _make(self, make: Any, *arguments: Any, **options: Any) -> Any:
        made = make(*arguments, **options)
        self.left.append(np.size(made))
        return made


GOOD: dict[str, Any] = {
    "sources": [0, 1], "targets": [1, 2], "kinds": True, "columns": {"weight": [1, 2]}
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": [-1, 0]}, r"targets\[0\]"),
        ({"sources": [[0, 1]]}, "one dimension"),
        ({"columns": {"weight": [1, 2], "time": [1, 2]}}, "time"),
        ({"columns": {"weight": [[1], [2]]}}, "a value for each update"),
        ({"columns": {"weight": [1, float("nan")]}}, r"weights\[1\]"),
        ({"columns": {"weight": [1e300, 1]}}, "weights"),
        ({"columns": {"weight": ["a", "b"]}}, "weights"),
        ({"kinds": [1, 0]}, "mask"),
        ({"missing": "no"}, "missing"),
    ],
)
def test_bad_input_is_refused(given: dict[str, Any], message: str) -> None:
    spec = COLUMNS["weight"]
    named = {**GOOD, **given}
    main = [named.pop(name) for name in GOOD]
    with pytest.raises(GraphInputError, match=message):
        checked_batch(*main, spec, 3, **named)


def test_a_batch_takes_arrays_as_they_come() -> None:
    sources = np.arange(6, dtype=np.int64)[::2]
    targets = np.ones(3, np.uint8)
    targets.setflags(write=False)
    weights = {"weight": np.arange(6, dtype=np.float64)[::-2]}
    spec = COLUMNS["weight"]
    store = EdgeStore(6, columns=spec)
    store.apply(checked_batch(sources, targets, True, weights, spec, 6))
    values = edges_in(store)[3]["weight"].tolist()
    assert rows_of(store, "in")[1] == [(0, 0, 5.0), (2, 2, 3.0), (4, 4, 1.0)]
    assert values == [5, 3, 1]


def test_values_of_deletions_are_not_looked_at() -> None:
    spec = COLUMNS["weight"]
    weights = {"weight": [float("nan"), 2]}
    batch = checked_batch([0, 1], [1, 2], [False, True], weights, spec, 3)  # type: ignore[arg-type]
    assert EdgeStore(3, columns=spec).apply(batch).missing == 1


def test_sums_are_rounded_once_and_refused_where_there_is_none() -> None:
    spec = COLUMNS["half"]
    store = EdgeStore(2, duplicates="sum", columns=spec)
    store.apply(checked_batch([0], [1], True, {"weight": [2048]}, spec, 2))
    store.apply(checked_batch([0] * 3, [1] * 3, True, {"weight": [1, 1, 1]}, spec, 2))
    assert edges_in(store)[3]["weight"].tolist() == [2052]
    before = digest(store)
    infinite = {"weight": [np.inf, -np.inf]}
    with pytest.raises(GraphInputError, match="no sum"):
        store.apply(checked_batch([0, 0], [1, 1], True, infinite, spec, 2))
    assert digest(store) == before
    wide: Any = COLUMNS["integers"]
    store = EdgeStore(2, duplicates="sum", columns=wide)
    large = {"weight": [2**62, 2**62, 2**62]}
    with pytest.raises(GraphInputError, match="no sum"):
        store.apply(checked_batch([0] * 3, [1] * 3, True, large, wide, 2))


@pytest.mark.parametrize("directed", [True, False])
def test_changes_are_net(directed: bool) -> None:
    spec = COLUMNS["weight"]
    store = EdgeStore(5, directed=directed, duplicates="last", columns=spec)

    def update(u: int, v: int, weight: float | None) -> None:
        values = {} if weight is None else {"weight": [weight]}
        store.apply(checked_batch([u], [v], weight is not None, values, spec, 5))

    def changes(since: int) -> list[list[tuple[int, int]]]:
        found = store.changes(since)
        assert found is not None
        pairs = (found.inserted, found.deleted, found.changed)
        return [list(zip(*(e.tolist() for e in pair), strict=True)) for pair in pairs]

    for step in [(3, 1, 1.0), (0, 2, 1.0), (3, 1, 2.0), (4, 0, 1.0), (4, 0, 2.0),
                 (0, 2, None), (4, 0, None)]:  # fmt: skip
        update(*step)
    assert changes(7) == [[], [], []]
    assert changes(5) == [[], [(0, 2), (4, 0)], []]
    assert changes(2) == [[], [(0, 2)], [(3, 1)]]
    assert changes(0) == [[(3, 1)], [], []]
    assert changes(4) == [[], [(0, 2), (4, 0)], []]
    assert store.changes(-1) is None
