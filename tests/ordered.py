"""A schedule that sweeps vertices in an order, which it makes once for a graph.

It stands for any that needs arrays of its own: one file, and a line in the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from featgraph.fold.plan import options
from featgraph.fold.schedules import table
from featgraph.fold.schedules.base import (
    AnyInteger,
    Binding,
    GraphArray,
    KernelShape,
    Schedule,
)
from featgraph.fold.schedules.cpu import CpuSchedule
from featgraph.fold.schedules.mapping import Mapping, Work
from featgraph.fold.schedules.thread import ThreadSchedule
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, code, when

__all__ = ["OrderedSchedule", "added", "order_of"]


def order_of(graph: Any, seed: int) -> Any:
    """Return the vertices, those of each word by degree; ties in an order by seed."""
    degree = np.diff(graph.in_edges.row_offsets)
    drawn = np.random.default_rng(seed).permutation(degree.size)
    words = np.arange(degree.size) // 32
    return np.lexsort((drawn, -degree, words)).astype(np.int32)


class _Words(CpuSchedule):
    def _set_bits(self, node: Sweep, shape: KernelShape, body: Body) -> Body:
        """Return a loop over the vertices of a word, in their order."""
        each = code(f"{node.vertex} = order[nth]\nbit = {node.vertex} & 31")
        test = f"{node.words}[word] >> uint32(bit) & uint32(1) != 0"
        each += when([test, "nth < most_places"], body)
        every = "range(word * 32, min(word * 32 + 32, order.size))"
        return code(f"for nth in {every}:\n    BODY", BODY=each)


class _Threads(ThreadSchedule):
    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return a loop over the places of a thread in the order."""
        body = list(node.body)
        for flag, words in node.marks:
            body += when([flag], code(f"warp.set_bit({words}, v)"))
        test = f"warp.test_bit({node.words}, v)"
        each = code("v = order[nth]") + when([test, "nth < most_places"], body)
        every = "range(int32(cuda.grid(1)), int32(order.size), int32(cuda.gridsize(1)))"
        return [Areas(), *code(f"for nth in {every}:\n    BODY", BODY=each)]


class OrderedSchedule(Schedule):
    """Vertices with most edges first, among those of a word.

    Attributes
    ----------
    made : list of int
        The seeds of all orders that it has made.
    copied_values : list of ndarray
        The copies of edge values that it has made last.
    """

    name = "ordered"
    targets = ("cpu", "cuda")
    shares_features = False
    options: ClassVar[dict[str, Any]] = {
        "drawn_by": AnyInteger(is_launched=False, is_prepared=True),
        "most_places": AnyInteger(1 << 31),
    }
    seed = "drawn_by"
    frontier_forms = ()
    lists = (GraphArray("order", dtype="int32"),)

    def __init__(self) -> None:
        self.made: list[int | None] = []
        self.copied_values: list[Any] = []

    def choose(self, mapping: Mapping, work: Work, given: Any) -> Mapping:
        """Take what pulls along edges."""
        takes = work.sweeps_edges and not work.from_sources
        return replace(mapping, schedule=self.name) if takes else mapping

    def prepare(
        self,
        mapping: Mapping,
        view: Any,
        seed: int | None,
        conflicts: str,
        options: Any,
    ) -> dict[str, Any]:
        """Make the order."""
        assert seed is not None
        self.made.append(seed)
        return {"order": order_of(view.graph, seed)}

    def copied(self, columns: Any, prepared: Any) -> dict[str, Any]:
        """Copy values of edges, as far as the order has vertices."""
        order = prepared("order")
        self.copied_values = [c.on_host()[: order.size] for c in columns.values()]
        return {f"copied_{n}": v for n, v in enumerate(self.copied_values)}

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the facts that passes need."""
        return (_Threads if shape.threads else _Words)().bind(mapping, shape)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        return (_Threads if shape.threads else _Words)().sweep(node, binding, shape)


@contextmanager
def added(schedule: Schedule) -> Iterator[None]:
    """Have a schedule in the table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_ALL", (*table._ALL, schedule))
        patch.setitem(table.SCHEDULES, schedule.name, schedule)
        patch.setitem(options.OPTIONS, "schedule", (*table.NAMES, schedule.name))
        for name, values in schedule.options.items():
            patch.setitem(table.OWN_OPTIONS, name, values)
            patch.setitem(options.OPTIONS, name, values)
        yield
