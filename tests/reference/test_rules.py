"""The interpreter against S1 to S7, rule by rule, with answers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference


def run(
    foldmap: Any, graph: fg.Graph, *, active: Any = None, on: Any = None, **values: Any
) -> Any:
    """Run one superstep of `foldmap` from a State of `values`."""
    state = fg.State(graph, **values)
    return reference.superstep(
        foldmap.program, *reference.from_state(state), active=active, on=on
    )


def path(count: int = 4) -> fg.Graph:
    """0 -> 1 -> 2 -> ..."""
    return fg.Graph.from_edges(range(count - 1), range(1, count), vertex_count=count)


def column(*values: float, dtype: Any = np.float32) -> Any:
    return np.array(values, dtype)


def iterated(*values: float, dtype: Any = np.float32) -> Any:
    return fg.vertex_property(column(*values, dtype=dtype), iterated=True)


def plain(*values: float, dtype: Any = np.float32) -> Any:
    return fg.vertex_property(column(*values, dtype=dtype))


# S1: x is as it was, x_next equals it until written


@fg.vertex
def shift(f, v, d):
    d.before[v] = d.x_next[v]
    d.x_next[v] = d.x[v] + 1
    d.after[v] = d.x_next[v] - d.x[v]
    return v != 2


@fg.vertex
def look_back(f, v, d):
    d.seen[v] = d.x[v] + 10 * d.x_next[v]
    return True


def test_x_is_the_start_of_the_superstep_throughout() -> None:
    out = run(
        fg.foldmap(shift, look_back),
        path(),
        x=iterated(0, 1, 2, 3),
        before=plain(9, 9, 9, 9),
        after=plain(9, 9, 9, 9),
        seen=plain(9, 9, 9, 9),
    )
    assert out.values["before"].tolist() == [0, 1, 2, 3]
    assert out.values["after"].tolist() == [1, 1, 1, 1]
    assert out.values["seen"].tolist() == [10, 21, 9, 43]  # 2 stopped
    assert out.values["x"].tolist() == [1, 2, 2, 4]  # and was dropped
    assert out.proposed["x"].tolist() == [1, 2, 3, 4]
    assert out.active_out.vertices.tolist() == [0, 1, 3]


@fg.gather(into="total")
def sum_of_next(f, u, v, e, d):
    return d.x_next[u]


@fg.vertex
def drop_even(f, v, d):
    d.x_next[v] = d.x[v] + 100
    return v % 2 == 1


def test_dropped_entries_are_not_seen_by_later_functions() -> None:
    out = run(fg.foldmap(drop_even, sum_of_next), path(), x=iterated(0, 1, 2, 3))
    # Vertices 1 and 3 gather from 0 and 2, which stopped and whose entries are gone.
    assert out.temporaries["total"].tolist() == [0, 0, 0, 2]
    assert out.values["x"].tolist() == [0, 101, 2, 103]


def test_the_given_values_are_not_changed() -> None:
    x = column(0, 1, 2, 3)
    state = fg.State(
        path(),
        x=fg.vertex_property(x, iterated=True),
        **{name: plain(0, 0, 0, 0) for name in ("before", "after", "seen")},
    )
    graph, values, signature = reference.from_state(state)
    kept = {name: value.copy() for name, value in values.items()}
    reference.superstep(fg.foldmap(shift, look_back).program, graph, values, signature)
    for name, value in kept.items():
        np.testing.assert_array_equal(values[name], value)


# S2 and S3: progress, the or over the features, commit


@fg.vertex
def some_feature(f, v, d):
    d.x_next[v, f] = d.x[v, f] + 1
    return d.x[v, f] == 5


def test_a_vertex_passes_with_any_of_its_features() -> None:
    x = np.array([[1, 5, 1], [1, 1, 1]], np.int32)
    out = run(fg.foldmap(some_feature), path(2), x=fg.vertex_property(x, iterated=True))
    assert out.values["x"].tolist() == [[2, 6, 2], [1, 1, 1]]
    assert out.active_out.vertices.tolist() == [0]


@fg.vertex
def stops_at_one(f, v, d):
    return v != 1


@fg.gather(into="total")
def incoming(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def stops_at_two(f, v, d):
    d.x_next[v] = d.total[v] + 50
    return v != 2


def test_behind_false_nothing_runs_and_a_gather_is_true() -> None:
    fold = fg.foldmap(stops_at_one, incoming)
    out = run(fold, path(), x=iterated(1, 2, 3, 4))
    assert out.temporaries["total"].tolist() == [0, 0, 2, 3]
    assert out.active_out.vertices.tolist() == [0, 2, 3]
    fold = fg.foldmap(stops_at_one, incoming, stops_at_two)
    out = run(fold, path(), x=iterated(1, 2, 3, 4))
    assert out.values["x"].tolist() == [50, 2, 3, 53]


@fg.edge
def load_up(f, u, v, e, d):
    d.load_next[e] = d.load[e] + 1
    return d.open[e]


@fg.edge
def load_more(f, u, v, e, d):
    d.load_next[e] = d.load_next[e] + 10
    fg.atomic.add(d.arrived, v, 1)
    return v != 3


def test_edges_commit_and_stop_by_themselves() -> None:
    out = run(
        fg.foldmap(load_up, load_more),
        path(),
        load=fg.edge_property(column(0, 0, 0), iterated=True),
        open=fg.edge_property(np.array([False, True, True])),
        arrived=plain(0, 0, 0, 0, dtype=np.int32),
    )
    assert out.values["load"].tolist() == [0, 11, 0]
    assert out.values["arrived"].tolist() == [0, 0, 1, 1]  # stands at once
    assert out.active_out.vertices.tolist() == [2]


# S4: where functions run


@fg.vertex
def mark(f, v, d):
    d.ran[v] = True
    return True


def nothing_ran(count: int = 4) -> Any:
    return fg.vertex_property(np.zeros(count, np.bool_))


def test_a_vertex_function_runs_on_the_active_set() -> None:
    out = run(fg.foldmap(mark), path(), active=[1, 3], ran=nothing_ran())
    assert out.values["ran"].tolist() == [False, True, False, True]


def test_with_a_gather_those_that_gather_from_it_are_due_too() -> None:
    values = {"x": plain(1, 2, 3, 4), "ran": nothing_ran()}
    for fold in (fg.foldmap(incoming, mark), fg.foldmap(mark, incoming)):
        out = run(fold, path(), active=[1], **values)
        assert out.values["ran"].tolist() == [False, True, True, False]


@fg.edge
def from_two_on(f, u, v, e, d):
    return u >= 2


def test_behind_an_edge_function_the_targets_that_passed_are_due() -> None:
    values = {"x": plain(1, 2, 3, 4), "ran": nothing_ran()}
    # Edges 1 -> 2 (False) and 2 -> 3 (True); the gather adds nothing of its own.
    for fold in (
        fg.foldmap(from_two_on, mark),
        fg.foldmap(from_two_on, incoming, mark),
    ):
        out = run(fold, path(), active=[1, 2], **values)
        assert out.values["ran"].tolist() == [False, True, True, True]
        out = run(fold, path(), active=[1], **values)
        assert out.values["ran"].tolist() == [False, True, False, False]


@fg.edge
def tick(f, u, v, e, d):
    d.ticks[e] = True
    return True


def test_behind_vertex_functions_edges_leave_those_that_passed() -> None:
    values = {"ticks": fg.edge_property(np.zeros(3, np.bool_))}
    out = run(fg.foldmap(stops_at_one, tick), path(), active=[0, 1], **values)
    assert out.values["ticks"].tolist() == [True, False, False]
    assert out.active_out.vertices.tolist() == [1]
    out = run(fg.foldmap(tick, stops_at_one), path(), active=[0, 1], **values)
    assert out.values["ticks"].tolist() == [True, True, False]
    assert out.active_out.vertices.tolist() == [0, 2]


def test_a_restriction_leaves_the_others_due() -> None:
    values = {"x": plain(1, 2, 3, 4), "ran": nothing_ran()}
    out = run(fg.foldmap(incoming, mark), path(), active=[1], on=[2, 3], **values)
    assert out.values["ran"].tolist() == [False, False, True, False]
    assert out.left_due.vertices.tolist() == [1]


def test_an_empty_active_set_runs_nothing() -> None:
    values = {"x": plain(1, 2, 3, 4), "ran": nothing_ran()}
    out = run(fg.foldmap(incoming, mark), path(), active=[], **values)
    assert not out.values["ran"].any()
    assert len(out.active_out) == 0


@fg.vertex
def grandparent(f, v, d):
    d.x_next[v] = d.x[d.x[v]]
    return d.x_next[v] != d.x[v]


def test_a_foreign_read_is_due_everywhere_while_anything_is_active() -> None:
    x = iterated(0, 0, 1, 2, dtype=np.int32)
    out = run(fg.foldmap(grandparent), path(), active=[3], x=x)
    assert out.values["x"].tolist() == [0, 0, 0, 1]
    out = run(fg.foldmap(grandparent), path(), active=[], x=x)
    assert out.values["x"].tolist() == [0, 0, 1, 2]


# S5, gathers


@fg.gather(into="low", combine="min")
def low(f, u, v, e, d):
    return d.x[u] if d.x[u] > 1 else fg.nothing


@fg.gather(into="best", combine="argmax")
def best(f, u, v, e, d):
    return d.x[u]


@fg.gather(into="worst", combine="argmin")
def worst(f, u, v, e, d):
    return d.x[u] if d.x[u] > 1 else fg.nothing


@fg.gather(into="some", combine="any")
def some(f, u, v, e, d):
    return d.x[u] > 2


@fg.gather(into="times", combine="product")
def times(f, u, v, e, d):
    return d.x[u]


def star() -> fg.Graph:
    """0, 1, 2, 3 -> 4, the last one twice; 0 -> 5."""
    return fg.Graph.from_edges([3, 2, 1, 0, 3, 0], [4, 4, 4, 4, 4, 5])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64])
def test_combines(dtype: Any) -> None:
    kind = np.dtype(dtype)
    out = run(
        fg.foldmap(low, best, worst, some, times),
        star(),
        x=plain(1, 3, 2, 3, 0, 0, dtype=dtype),
    )
    found = out.temporaries
    most = np.inf if kind.kind == "f" else np.iinfo(dtype).max
    least = -np.inf if kind.kind == "f" else np.iinfo(dtype).min
    assert found["low"].tolist() == [most] * 4 + [2, most]
    assert found["best"].tolist() == [least] * 4 + [3, 1]
    assert found["best_source"].tolist() == [-1] * 4 + [1, 0]  # smallest of 1, 3, 3
    assert found["worst"].tolist() == [most] * 4 + [2, most]
    assert found["worst_source"].tolist() == [-1] * 4 + [2, -1]
    assert found["some"].tolist() == [False] * 4 + [True, False]
    assert found["times"].tolist() == [1] * 4 + [3 * 2 * 3 * 1 * 3, 1]


def keep_larger(a, b):
    return a if abs(a) > abs(b) else b


@fg.gather(into="peak", combine=fg.combine(keep_larger, identity=0))
def peak(f, u, v, e, d):
    return d.x[u]


def test_a_combine_of_ones_own() -> None:
    out = run(fg.foldmap(peak), star(), x=plain(1, -5, 2, 3, 0, 0, dtype=np.int32))
    assert out.temporaries["peak"].tolist() == [0, 0, 0, 0, -5, 1]


@fg.gather(into="square", matrix=True)
def square(i, f, u, v, e, d):
    return d.x[u, i] * d.y[u, f]


def test_a_matrix_gather_is_a_sum_of_outer_products(rng: np.random.Generator) -> None:
    x, y = rng.integers(-5, 6, (2, 6, 3)).astype(np.int32)
    out = run(
        fg.foldmap(square), star(), x=fg.vertex_property(x), y=fg.vertex_property(y)
    )
    sources = [0, 1, 2, 3, 3]
    expected = sum(np.outer(x[u], y[u]) for u in sources)
    np.testing.assert_array_equal(out.temporaries["square"][4], expected)


@fg.gather(into="halves")
def halves(f, u, v, e, d):
    return d.x[u] / 2 if v != 4 else -d.x[u]


def test_magnitude_is_the_sum_of_absolute_contributions() -> None:
    out = run(fg.foldmap(halves), star(), x=plain(1, 3, 2, 3, 0, 0))
    assert out.magnitude["halves"].tolist() == [0, 0, 0, 0, 12, 0.5]
    assert out.degree.tolist() == [0, 0, 0, 0, 5, 1]


# S6, access


@fg.vertex
def races(f, v, d):
    d.x[v] = d.x[d.root[v]]
    return True


@fg.vertex
def writes_elsewhere(f, v, d):
    d.x[d.root[v]] = 1
    return True


@fg.vertex
def writes_current(f, v, d):
    d.z[v] = 1.0
    return True


@fg.gather(into="total")
def impure(f, u, v, e, d):
    d.x[v] = 1.0
    return d.x[u]


@fg.vertex
def reads_elsewhere(f, v, d):
    return d.total[0] > 0


@fg.vertex
def forgets(f, v, d):
    if v == 0:
        return True


@fg.vertex
def misspelt(f, v, d):
    return d.rooot[v] > 0


@fg.vertex
def fractional(f, v, d):
    d.root[v] = 0.5
    return True


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ([races], "written in place and read at another"),
        ([writes_elsewhere], "written at another vertex"),
        ([writes_current], "is iterated"),
        ([impure], "does not write"),
        ([incoming, reads_elsewhere], "where it was not gathered"),
        ([forgets], "without return"),
        ([fractional], "a real number is stored"),
    ],
)
def test_broken_rules_are_errors_that_name_the_function(
    functions: Any, message: str
) -> None:
    values = {
        "x": plain(1, 2, 3, 4),
        "z": iterated(1, 2, 3, 4),
        "root": plain(0, 0, 1, 1, dtype=np.int32),
    }
    with pytest.raises(fg.UserFunctionError, match=message) as caught:
        run(fg.foldmap(*functions), path(), **values)
    assert functions[-1].name in str(caught.value)


def test_a_misspelt_property_is_named() -> None:
    with pytest.raises(fg.StateError, match="did you mean 'root'"):
        run(fg.foldmap(misspelt), path(), root=plain(0, 0, 1, 1, dtype=np.int32))


@fg.edge
def hook(f, u, v, e, d):
    old = fg.atomic.min(d.comp, d.comp[u], d.comp[v])
    return old > d.comp[v]


def test_atomics_stand_at_once_and_give_the_old_value() -> None:
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
    out = run(fg.foldmap(hook), graph, comp=plain(3, 1, 2, 0, dtype=np.int32))
    # Rows 0 to 2 as given, then their twins; each sees what the ones before have done.
    assert out.values["comp"].tolist() == [0, 1, 0, 0]
    assert out.active_out.vertices.tolist() == [1, 2, 3]


# Twins and shared edge properties (S10)


@fg.edge
def copy_twin(f, u, v, e, d):
    d.y_next[e] = d.y[fg.reverse(e)] + d.w[e]
    return True


def test_twins_share_or_have_their_own() -> None:
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 2], directed=False)
    y = fg.edge_property(np.arange(6), iterated=True, dtype=np.int32)
    w = fg.edge_property(column(10, 20, 30, dtype=np.int32))
    out = run(fg.foldmap(copy_twin), graph, y=y, w=w)
    # Row 5 would be the twin of the loop 2 - 2, which is its own.
    assert out.values["y"].tolist() == [13, 24, 32, 10, 21, 32]
    assert out.values["w"].tolist() == [10, 20, 30]
    out = run(fg.foldmap(copy_twin), graph, active=[0], y=y, w=w)
    assert out.values["y"].tolist() == [13, 1, 2, 3, 4, 2]
