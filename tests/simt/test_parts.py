"""A reduce combines any number of parts to as many elements as it has."""

from __future__ import annotations

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from tests.simt.emulator import Emulator

#: More elements than blocks that are launched.
WIDTH, BLOCKS = 3, 2


def either(a, b):
    return a + b - a * b


#: Each, that of NumPy, what parts are, and what one part of each element is.
COMBINES = {
    "sum": ("sum", np.sum, 1, 2),
    "max": ("max", np.max, -1, 2),
    "product": ("product", np.prod, 1, 3),
    "all": ("all", np.all, True, False),
    "custom": (fg.combine(either, identity=0.0), np.max, 0, 1),
}


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 300])
@pytest.mark.parametrize("name", COMBINES)
def test_any_number_of_parts(name: str, rows: int, rng: np.random.Generator) -> None:
    combine, meant, usual, once = COMBINES[name]

    @fg.reduce(into="total", combine=combine)
    def take(f, v, d):
        return d.x[v, f]

    dtype = bool if name == "all" else np.float32
    graph = fg.Graph.from_edges([0], [1])
    state = fg.State(graph, x=fg.vertex_property(np.zeros((2, WIDTH), dtype)))
    traits = GraphTraits(4, False, False, False)
    program = fg.foldmap(take).program
    kernels = emit(make_plan(program, state.signature, Options(target="cuda"), traits))
    [finish] = [entry for entry in kernels.entries if entry.role == "finish"]

    parts = np.full((rows, WIDTH), usual, dtype)
    parts[rng.integers(0, rows, WIDTH), np.arange(WIDTH)] = once
    expected = meant(parts, axis=0)
    found = np.logical_not(expected).astype(dtype)
    emulator = Emulator()
    module = emulator.load(kernels.text)
    emulator.launch(module, finish.name, BLOCKS, finish.block, [parts, found])
    np.testing.assert_array_equal(found, expected)
