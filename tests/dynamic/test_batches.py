"""Batches on a store of edges, against lists that take the updates one by one."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

import featgraph as fg
from featgraph.base import store as bases
from featgraph.base.errors import DeviceMemoryError, GraphInputError
from featgraph.dynamic import batches, pools, rows, views
from featgraph.dynamic import graph as graphs
from featgraph.dynamic import inputs as given
from featgraph.dynamic import store as stores
from featgraph.dynamic.audit import audit
from featgraph.dynamic.batches import Batch, checked_batch
from featgraph.dynamic.store import EdgeStore
from featgraph.graph.building.edges import POLICIES
from tests.dynamic.model import (
    Edge,
    Model,
    Refused,
    compare,
    drawn_updates,
    edges_in,
    kept,
    plain,
    rows_of,
    set_shares,
    update,
)
from tests.dynamic.pairs import printed_by, require_counts
from tests.unit.test_hops import calls_within

#: Names of columns -> those of stores: type and width.
COLUMNS: dict[str, dict[str, tuple[Any, int | None]]] = {
    "none": {},
    "weight": {"weight": (np.dtype("f4"), None)},
    "half": {"weight": (np.dtype("f2"), None)},
    "integers": {"weight": (np.dtype("i8"), None)},
    "several": {
        "weight": (np.dtype("f8"), None), "time": (np.dtype("i2"), 2),
        "kind": (np.dtype("u1"), None),
    },
}  # fmt: skip
#: How many updates a batch has; runs have 4, 5, 6, 7, 8, 10 ... slots.
SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 31, 32, 33, 70])


class Batches(stateful.RuleBasedStateMachine):
    """All calls of a store, in any order."""

    @stateful.initialize(
        options=st.fixed_dictionaries({
            "count": st.integers(0, 12),
            "columns": st.sampled_from(list(COLUMNS)),
            "shares": st.sampled_from([(8, 4), (0, 0), (0, 0), (0, 1)]),
            "built": st.sampled_from(["in", "out", "both"]),
            "has_ids": st.booleans(),
            "is_shared": st.booleans(),
            "directed": st.booleans(),
            "duplicates": st.sampled_from(
                ["keep", "keep", "last", "last", "first", "error", "sum", "min", "max"]
            ),
            "loops": st.sampled_from(["keep", "keep", "drop", "error"]),
            "capacity": st.sampled_from([None, None, 128]),
        })
    )  # fmt: skip
    def begin(self, options: dict[str, Any]) -> None:
        names = "count", "columns", "shares", "built", "has_ids", "is_shared"
        count, columns, shares, built, has_ids, is_shared = map(options.pop, names)
        self.patch = pytest.MonkeyPatch()
        if is_shared:  # threads share each batch
            self.patch.setattr(rows, "SHARED", 0)
        set_shares(self.patch, *shares)
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

    @stateful.rule(
        size=SIZES,
        seed=st.integers(0, 2**16),
        deletes=st.sampled_from([0.0, 0.0, 0.3, 0.5, 1.0]),
        options=st.fixed_dictionaries({
            "copies": st.sampled_from(["all", "first", "last"]),
            "missing": st.sampled_from(["ignore", "ignore", "error"]),
        }),
        fails=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def update(
        self, size: int, seed: int, deletes: float, options: dict[str, str], fails: bool
    ) -> None:
        if not any(self.model.living):
            return
        rng = np.random.default_rng(seed)
        likely = 1.0 if deletes else 0.3
        ends, kinds, columns = drawn_updates(rng, self.store, size, deletes, likely)
        if seed % 2:
            ends = ends[:, np.lexsort(ends)]
        rows = [tuple(plain(c[k]) for c in columns.values()) for k in range(size)]
        count = len(self.model.living)
        batch = checked_batch(*ends, kinds, columns, self.spec, count, **options)
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
        except DeviceMemoryError as error:
            if "(capacity=)" not in str(error):
                raise
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

    def _remember(self) -> None:
        model = self.model
        self.seen.append((model.version, list(model.edges), list(model.living)))
        del self.seen[:-4]

    @stateful.rule(count=st.integers(0, 70))
    def insert_vertices(self, count: int) -> None:
        if len(self.model.living) > 200:
            return
        self._remember()
        result = self.store.apply(Batch(births=count))
        assert result.vertices.tolist() == self.model.insert_vertices(count)
        self.model.version += count > 0

    @stateful.rule(seed=st.integers(0, 2**16), fails=st.booleans())
    def delete_vertices(self, seed: int, fails: bool) -> None:
        living = np.flatnonzero(self.model.living)
        if not living.size:
            return
        rng = np.random.default_rng(seed)
        ids = rng.permutation(living)[: rng.integers(1, 5)].tolist()
        batch = Batch(deaths=np.array(sorted(ids), np.int32))
        if fails:
            fail_in_turn(self.store, batch)
        self._remember()
        result = self.store.apply(batch)
        assert result.deleted == self.model.delete_vertices(ids)
        assert (result.missing, result.outcomes.size) == (0, 0)
        self.model.version += 1
        self.model.number = self.store.next_number

    @stateful.rule(along=st.sampled_from(["out", "both"]))
    def build(self, along: str) -> None:
        self.store.pool(along)

    @stateful.rule()
    def give_ids(self) -> None:
        self.store.give_ids()

    @stateful.rule()
    def compact(self) -> None:
        self.store.compact()

    @stateful.rule()
    def copy(self) -> None:
        self.store = self.store.copy()

    @stateful.rule()
    @stateful.precondition(lambda self: self.model.number > 40)
    def renumber(self) -> None:
        self.store._renumber()
        edges = enumerate(self.model.edges)
        self.model.edges = [replace(edge, number=k) for k, edge in edges]
        self.model.number = len(self.model.edges)
        self.seen = []

    @stateful.invariant()
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
        require_counts(changes)
        counted = "{} inserted, {} deleted, {} changed edges".format(*changes.counts)
        versions = f"version {changes.since} to {changes.version}"
        assert repr(changes) == f"Changes from {versions}: {counted}"
        born = set(np.flatnonzero(self.model.living)) - set(np.flatnonzero(living))
        assert born <= set(changes.born.tolist())


Batches.TestCase.settings = settings(
    stateful_step_count=20, max_examples=min(settings().max_examples, 300)
)
TestBatches = Batches.TestCase


def fail_in_turn(store: EdgeStore, batch: Batch) -> None:
    """Have each allocation of a batch fail; nothing may change."""
    before, is_over, turn = kept(store), False, 0
    while not is_over:
        tried = store.copy()
        is_over = failing_at(turn, partial(tried.apply, batch), DeviceMemoryError)
        if not is_over or tried.version == store.version:
            assert kept(tried) == before
        turn += 1


def failing_at(
    turn: int, call: Callable[[], Any], error: type[Exception] = MemoryError
) -> bool:
    """Have one allocation of a call fail; return whether the call ended before."""
    left = [turn]
    with pytest.MonkeyPatch.context() as patch:
        for module in (batches, given, graphs, pools, rows, stores, views):
            patch.setattr(module, "np", Failing(left))
        with suppress(error):
            call()
            return True
    return left[0] > 0  # the pool is full


class Failing:
    """NumPy, whose functions that make arrays fail after some calls."""

    MAKERS = ("empty", "zeros", "full", "arange", "append", "concatenate", "where",
              "empty_like", "flatnonzero", "cumsum", "repeat", "stack")  # fmt: skip

    def __init__(self, left: list[int]) -> None:
        self.left = left

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return partial(self._make, found) if name in self.MAKERS else found

    def _make(self, make: Any, *arguments: Any, **options: Any) -> Any:
        if self.left[0] == 0:
            raise MemoryError
        self.left[0] -= 1
        return make(*arguments, **options)


def random_store(rng: Any, count: int, edges: int, **options: Any) -> EdgeStore:
    ends = rng.integers(0, count, (2, edges))
    weights = {"weight": rng.random(edges, np.float32)}
    return EdgeStore.from_edges(*ends, weights, vertex_count=count, **options)


def random_batch(rng: Any, store: EdgeStore, size: int, share: float) -> Batch:
    """Return updates with weights of many bits, of which a share are insertions."""
    ends, kinds, _ = drawn_updates(rng, store, size, 1 - share)
    weights = {"weight": rng.random(size, np.float32)}
    return store.checked(*ends, kinds, weights, store.vertex_count)


def test_a_batch_without_edges_compiles_no_loop_again() -> None:
    """The type of its marks of insertions, of which it has none, is that of others."""
    store = EdgeStore.from_edges([0], [1], vertex_count=2)
    store.apply(store.checked([1], [0], True, {}, 2))
    loops = pools.numba_kernels().plan_rows
    before = loops.signatures
    store.apply(Batch(births=2))
    store.compact()
    assert loops.signatures == before


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
            key: np.negative(rng.integers(-1, 7, shape).astype(dtype))
            for key, (dtype, width) in spec.items()
            for shape in [120 if width is None else (120, width)]
        }
        store = EdgeStore(count, columns=spec, **options)
        try:
            store.apply(checked_batch(*ends, True, values, spec, count))
        except GraphInputError as error:
            with pytest.raises(GraphInputError, match=re.escape(str(error))):
                EdgeStore.from_edges(*ends, values, vertex_count=count, **options)
            continue
        made = EdgeStore.from_edges(*ends, values, vertex_count=count, **options)
        audit(made)
        ours, theirs = kept(made), kept(store)
        names = {"arrays", "log", "version"}  # spare slots have any values
        assert {n for n in ours if ours[n] != theirs[n]} <= names
        if loops == "keep" and name in {"weight", "half"}:
            graph = fg.Graph.from_edges(
                *ends, weights=values["weight"], vertex_count=count, directed=directed,
                duplicates=duplicates,
            )  # fmt: skip
            assert np.array_equal(edges_in(made)[:2], [graph.sources, graph.targets])
            assert np.array_equal(edges_in(made)[3]["weight"], graph.weights)


@contextmanager
def begun(**options: Any) -> Iterator[Any]:
    """Yield a store and its model for rules that a test calls."""
    machine: Any = Batches()
    machine.begin({"loops": "keep", "capacity": None, "is_shared": False} | options)
    try:
        yield machine
    finally:
        machine.teardown()


def walk(seed: int, count: int = 6, *, merges: bool = False) -> None:
    """Apply drawn batches to a store and its model, and compare them after each.

    With `merges`, edges get ids before each, and one in three lays out all rows.
    """
    rng = np.random.default_rng(seed)

    def choose(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    options = {
        "directed": choose(True, False), "count": count,
        "duplicates": choose("keep", "keep", "last", "first", "sum", "min", "max"),
        "columns": choose("weight", "weight", "half", "several"),
        "shares": choose((0, 0), (0, 0), (0, 0), (8, 4)), "built": choose("in", "both"),
        "has_ids": choose(True, False),
    }  # fmt: skip
    with begun(**options) as machine:
        for _ in range(14):
            what = rng.integers(12)
            if merges:
                machine.patch.setattr(stores, "MERGE_SHARE", choose(0, 0, 8))
                machine.give_ids()  # batches that lay out all rows drop them
            if what == 0:
                machine.delete_vertices(seed=int(rng.integers(1 << 16)), fails=False)
            elif what == 1:
                machine.insert_vertices(count=choose(1, 2))
            else:
                machine.update(
                    size=choose(1, 3, 9, 33), seed=int(rng.integers(1 << 16)),
                    deletes=choose(0.0, 0.3, 0.5, 1.0), fails=False,
                    options={"copies": choose("all", "first", "last")},
                )  # fmt: skip
            machine.is_as_the_model()


@pytest.mark.parametrize("seed", range(16))
def test_insertions_and_deletions_of_few_pairs(seed: int) -> None:
    walk(seed, count=3, merges=True)


@pytest.mark.parametrize("directed", [True, False])
def test_a_hub_grows_and_shrinks(
    monkeypatch: pytest.MonkeyPatch, rng: Any, directed: bool
) -> None:
    set_shares(monkeypatch)
    store, known = EdgeStore(70, directed=directed), np.empty(0, np.int64)
    store.pool("out")
    for size, is_new in [
        (2047, True), (1, True), (1, True), (2300, True), (4000, True), (5000, False),
        (900, True), (3000, False), (2100, False),
    ]:  # fmt: skip
        sources = rng.integers(0, 69, size)
        update(store, sources, np.full(size, 69), is_new, copies="first")
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


def test_long_freed_runs_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    set_shares(monkeypatch)
    store = EdgeStore(3000, capacity=200_000)

    def loops(vertices: Any, count: int, is_new: bool) -> Batch:
        ends = np.repeat(vertices, count)
        return store.checked(ends, ends, is_new, {}, 3000)

    for is_new in (True, False):
        store.apply(loops([1], 9000, is_new))
    top = store.pools["in"].top
    store.apply(loops(np.arange(2, 2002), 1, True))
    audit(store)
    assert store.pools["in"].top == top
    assert store.edge_count == 2000
    # A row that does not fit the rest of the region leaves it to the queues.
    start, stop = store.pools["in"].region
    assert stop - start > 0
    batch = loops([2], 9000, True)
    fail_in_turn(store, batch)
    store.apply(batch)
    audit(store)
    assert store.pools["in"].region == (0, 0)
    assert store.moves == 0
    # Regions of several runs, of which rows come to some.
    store.apply(loops([2], 9000, False))
    for is_new in (True, False):
        for k in range(4):
            store.apply(loops([k + 3], 5000, is_new))
    audit(store)
    store.apply(loops([2100, 2101, 2102], 3000, True))
    audit(store)


@pytest.mark.timeout(1800)  # 100,000 batches in the deep profile
def test_memory_stays_flat(rng: Any) -> None:
    store = random_store(rng, 400, 4000, duplicates="last")
    for _ in range(50_000 if settings().max_examples > 300 else 60):
        edges = np.stack(edges_in(store)[:2])
        leave = edges[:, rng.choice(edges.shape[1], 300, replace=False)]
        come = rng.integers(0, 400, (2, 4300 - store.edge_count))
        weights = {"weight": rng.random(come.shape[1], np.float32)}
        update(store, *leave, False)
        update(store, *come, True, weights)
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
        store.compact()  # reads the next number, too
        audit(store)
    assert store.changes(store.version - 1) is not None
    assert store.changes(store.version - 2) is None  # the log began anew
    now = [[row[:1] for row in rows] for rows in rows_of(store, "both")]
    assert all(n[: len(r)] == r for n, r in zip(now, rows, strict=True))
    store._renumber()
    assert store.next_number == store.given_count


def test_edges_that_another_thread_inserts_are_not_listed() -> None:
    """There is no room for them: a batch came after their range was found."""
    store = EdgeStore(4)
    update(store, [0, 1, 2], [3, 3, 3])
    pool = store.pools["in"]
    rows, slots = np.full((2, 3), -1, np.int32)
    held = *pool.spans(4), pool.numbers, -1, 1
    pools.numba_kernels().place_slots(*held, rows[:1], slots[:1])
    assert rows.tolist() == [3, -1, -1]
    assert slots.tolist() == [pool.starts[3] + 1, -1, -1]


def test_slots_have_a_type_that_holds_them(
    monkeypatch: pytest.MonkeyPatch, rng: Any
) -> None:
    assert pools.wide_slots(2**31 - 1025) is np.int32
    assert pools.wide_slots(2**31 - 1024) is np.int64
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


def interrupted_at(turn: int, call: Callable[[], Any]) -> bool:
    """Send SIGINT at a line of the store's modules; return whether none was left.

    A test that calls it takes the fixture `interruptible`.
    """
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
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            call()
    finally:
        sys.settrace(before)
    return left[0] > 0


def test_a_batch_of_one_edge_takes_few_calls(rng: Any) -> None:
    """Calls of Python take most of the time of such a batch."""
    graph = fg.DynamicGraph.from_edges(
        *rng.integers(0, 500, (2, 4000)), vertex_count=500, weights=rng.random(4000),
        target="cpu",
    )  # fmt: skip

    def insert_and_delete() -> None:
        graph.insert_edges([1], [2], weights=[0.5])
        graph.delete_edges([1], [2])

    for _ in range(4):  # the first ones load what all need
        calls = calls_within(insert_and_delete)
    assert len(calls) <= 205, calls


def test_a_batch_takes_arrays_as_they_come() -> None:
    sources = np.arange(6, dtype=np.int64)[::2]
    targets = np.ones(3, np.uint8)
    targets.setflags(write=False)
    weights = {"weight": np.arange(6, dtype=np.float64)[::-2]}
    store = EdgeStore(6, columns=COLUMNS["weight"])
    update(store, sources, targets, True, weights)
    values = edges_in(store)[3]["weight"].tolist()
    assert rows_of(store, "in")[1] == [(0, 0, 5.0), (2, 2, 3.0), (4, 4, 1.0)]
    assert values == [5, 3, 1]
    weights = {"weight": [float("nan"), 2]}  # values of deletions are not read
    assert update(store, [0, 1], [1, 2], [False, True], weights).deleted == 1


def test_sums_are_rounded_once_and_refused_where_there_is_none() -> None:
    half, wide = (
        EdgeStore(2, duplicates="sum", columns=COLUMNS[name])
        for name in ("half", "integers")
    )
    for values in ([2048], [1, 1, 1]):
        ends = np.zeros(len(values), int)
        update(half, ends, ends + 1, True, {"weight": values})
    assert edges_in(half)[3]["weight"].tolist() == [2052]
    before = kept(half)
    with pytest.raises(GraphInputError, match="no sum"):
        update(half, [0, 0], [1, 1], True, {"weight": [np.inf, -np.inf]})
    assert kept(half) == before
    with pytest.raises(GraphInputError, match="no sum"):
        update(wide, [0] * 3, [1] * 3, True, {"weight": [2**62] * 3})


# -- faults planted in the passes of a batch: walks find all
#
# The lines that kernels run for a small batch are counted, too. Kernels run as
# functions of Python, in a process of their own, so that no fault is kept in a cache.
# Runs of few slots count as long ones there: small stores cut them, too.

_KERNELS, _POOL = "kernels_cpu", "pools RowPool"
#: So many graphs are tried at most to find a fault.
WALKS = 80
#: Module (and class) and function, what it has, and what it has in place of that.
FAULTS: dict[str, tuple[str, str, str, str]] = {
    # plan
    "a deletion takes one copy more": (
        _KERNELS, "_group", "pairs[NEED, pair] += 1", "pairs[NEED, pair] += 2"),
    "edges of a batch that leave again count": (
        _KERNELS, "_decide", "gained -= is_new", "gained += is_new"),
    "the last copy is one of the graph": (
        _KERNELS, "_group", "copies == LAST and", "copies == LAST and False and"),
    "the first copy is forgotten": (
        _KERNELS, "_decide", "pairs[STATE, pair] = pairs[NEED, pair] = i + 1",
        "pairs[NEED, pair] = i + 1"),
    "rows share the list of what leaves": (
        _POOL, "plan", "dtype=np.int64) - lengths", "dtype=np.int64) * 0"),
    "a full run gets an edge more": (
        _KERNELS, "plan_rows", "length > SIZES[now]", "length > SIZES[now] + 1"),
    "entries lose their order": (
        _KERNELS, "list_entries", "| 2 * i\n", "| 2 * (at.size - i - 1)\n"),
    # scan
    "a free run is taken twice": (
        _KERNELS, "place_runs", "taken[best] += 1", "taken[best] += 0"),
    "runs overlap": (
        _KERNELS, "place_runs", "+= SIZES[best]", "+= SIZES[best] - 1"),
    "freed runs are forgotten": (
        _KERNELS, "finish_rows", "runs[behind[now]] = starts[row]", "pass"),
    "rows without a run free one": (
        _KERNELS, "finish_rows", "if now and now", "if now"),
    "regions that are passed by are lost": (
        _POOL, "fit", "in free:", "in free[passed:]:"),
    "runs that are cut overlap": (
        "pools", "_split", "start += sizes[size]", "start += sizes[size] - 1"),
    # apply
    "gaps stay open": (
        _KERNELS, "write_values", "place = behind + 1", "place = behind + 2"),
    "values miss edges that have moved": (
        _KERNELS, "write_values", "to, k = to - 1, k + 1", "to, k = to, k + 1"),
    "edges that left again are written": (
        _KERNELS, "write_values", "fates[e] == APPENDS", "fates[e] & APPENDS"),
    "the first of several values stays": (
        _POOL, "prepare", "= sources[given]", "= sources[plan.heads[given]]"),
    "lengths are not counted": (
        _KERNELS, "finish_rows", "counts[min(before, HUB)] -= 1", "pass"),
    "degrees do not fall": (
        _KERNELS, "count_ends", "= degree - 1", "= degree"),
    # queues
    "numbers are given out again": (
        "rows Queues", "drop", "+= count", "+= count // 2"),
    "numbers are lost where a queue grows": (
        "rows Queues", "reserve", "self.next(counts[queue], queue))",
        "0 * self.next(counts[queue], queue))"),
    "ids are given out twice": (
        _POOL, "ids_for", "(at.size - free.size)", "(free.size, at.size)"),
    # log
    "what came and left again is logged": (
        "batches", "_net_edges", "gone[2] < number", "gone[2] >= 0"),
    "twins are logged": (
        _POOL, "list_changed", "[slots] & 1 == 0", "[slots] >= 0"),
    "equal values are logged": (
        _POOL, "list_changed", "is_other |= differs", "is_other |= True #"),
}  # fmt: skip


def plant(patch: pytest.MonkeyPatch, fault: str) -> None:
    """Have a function of the store be another one."""
    place, name, right, wrong = FAULTS[fault]
    module, _, kind = place.partition(" ")
    owner: Any = importlib.import_module(f"featgraph.dynamic.{module}")
    names = vars(owner)
    owner = getattr(owner, kind) if kind else owner
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert right in source, f"the text of {name} has changed"
    made = dict(names)
    exec(source.replace(right, wrong), made)  # noqa: S102
    patch.setattr(owner, name, made[name])


def find_faults() -> None:
    """Print what is found of each fault, and what is wrong without any."""
    bases.with_shielded_compilation = lambda function: function  # type: ignore[assignment]
    from featgraph.dynamic import kernels_cpu

    kernels_cpu.prefetch = lambda *_: None
    kernels_cpu.LONG_CLASS = 6
    found, before = {}, vars(kernels_cpu).copy()
    for fault in (None, *FAULTS):
        with pytest.MonkeyPatch.context() as patch:
            if fault is not None:
                plant(patch, fault)
            try:
                for seed in range(WALKS if fault else 3):
                    walk(seed)
            except Exception as error:
                found[str(fault)] = seed, repr(error)
        vars(kernels_cpu).update(before)
    print(json.dumps([found, lines_of_a_batch(64), lines_of_a_batch(2048)]))


def lines_of_a_batch(count: int) -> int:
    """Count the lines of kernels that a batch runs on a ring of so many vertices."""
    first, lines = np.arange(count), [0]
    made = EdgeStore.from_edges(
        first, np.roll(first, -1), vertex_count=count, duplicates="last"
    )
    made.pool("both")
    made.give_ids()
    batch = checked_batch([1, 2, 5], [2, 9, 5], [False, True, True], {}, {}, count)

    def trace(frame: Any, event: str, _: Any) -> Any:
        if "kernels" not in frame.f_code.co_filename:
            return None
        lines[0] += event == "line"
        return trace

    sys.settrace(trace)
    made.apply(batch)
    sys.settrace(None)
    return lines[0]


def test_planted_faults_are_found() -> None:
    found, *lines = printed_by(
        "tests.dynamic.test_batches.find_faults", NUMBA_DISABLE_JIT="1"
    )
    assert found.keys() == FAULTS.keys()
    assert lines[0] == lines[1] > 100
