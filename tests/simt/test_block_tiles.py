"""Matrices in the tiles of a block, lane by lane, against the interpreter."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms.als import cholesky_half
from featgraph.device import block_tiles
from featgraph.fold.plan.options import parse_options
from tests.bank import BY_NAME
from tests.simt.emulator import Emulator, launch
from tests.simt.lanes import EmulationError
from tests.simt.programs import BY_NAME as CASES
from tests.simt.test_kernels import Run

ASKED = {"schedule": "block_tiles"}


class OfBank:
    """A program of the bank, as `Run` takes cases."""

    def __init__(self, name: str) -> None:
        self.of, self.undirected = BY_NAME[name], False

    def program(self) -> Any:
        return self.of.foldmaps[0].program

    def values(self, graph: Any, k: int, rng: Any, dtype: str = "float32") -> Any:
        """Return the values of a state, and their types."""
        state = fg.State(graph, **self.of.make_state(graph, k, rng))
        return {name: np.asarray(state[name]) for name in state}, state.signature


def case_of(name: str) -> Any:
    return CASES[name] if name in CASES else OfBank(name)


#: K that are and are no multiples of a tile, of a load, and of the lanes of a warp.
RUNS: list[tuple[str, int, dict[str, Any]]] = [
    ("least_squares", 2, {"form": "listed"}),
    ("least_squares", 3, {"hubs": True, "long_rows": True}),
    ("least_squares", 8, {}),
    ("least_squares", 9, {"dtype": "float64"}),
    ("least_squares", 17, {"long_rows": True}),
    ("least_squares", 33, {"form": "listed"}),
    ("implicit_least_squares", 4, {"long_rows": True}),
    ("implicit_least_squares", 20, {}),
    ("implicit_least_squares", 24, {"hubs": True}),
]


@pytest.mark.parametrize(
    ("name", "k", "options"), RUNS, ids=[f"{n}-{k}" for n, k, _ in RUNS]
)
def test_agrees_with_the_interpreter(
    name: str, k: int, options: dict[str, Any]
) -> None:
    run = Run(case_of(name), k, **ASKED, **options)
    assert "block_tiles.add_products" in run.kernels.text
    run.check()
