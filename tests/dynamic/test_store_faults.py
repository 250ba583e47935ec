"""Faults planted in the passes of a batch on the CPU: the model of a store finds all.

The lines that kernels run for a small batch are counted, too. Kernels run as functions
of Python, in a process of their own, so that no fault is kept in a cache. Runs of few
slots count as long ones there: small stores cut them, too.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from featgraph.base import store
from featgraph.dynamic.batches import checked_batch
from featgraph.dynamic.store import EdgeStore
from tests.dynamic.pairs import printed_by

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
    store.with_shielded_compilation = lambda function: function  # type: ignore[assignment]
    from featgraph.dynamic import kernels_cpu
    from tests.dynamic.test_batches import walk

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
        "tests.dynamic.test_store_faults.find_faults", NUMBA_DISABLE_JIT="1"
    )
    assert found.keys() == FAULTS.keys()
    assert lines[0] == lines[1] > 100
