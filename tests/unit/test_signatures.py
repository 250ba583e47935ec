"""Signatures compiled ahead equal those that calls look up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import featgraph as fg
from featgraph.base.store import is_stored
from featgraph.cuda import dialect
from featgraph.fold.compiling.compile import load_module
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.plan import WORKLIST
from tests.programs.queued import QUEUED
from tests.simt.test_queue import make
from tests.unit.test_store import cache

__all__ = ["cache"]

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)


def folded(name: str) -> Kernel:
    step, state = make(name, fg.graph.generators.grid(4, 5), 1)
    kernel = step.fold(state, target="cuda")
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.parametrize("name", sorted(QUEUED))
def test_types_of_data_are_those_that_are_found_in_it(name: str) -> None:
    """Also where all fields are alike, which is another type to the compiler."""
    plain = folded(name)
    for kernel in (plain, plain.in_form(WORKLIST)):
        source = kernel.kernel_source
        for entry in [e for e in kernel.entries if "d" in e.arguments]:
            own, other = kernel.signature(entry), kernel.signature(entry, plain.module)
            place = entry.arguments.index("d")
            arrays = [
                np.dtype("int32" if f.dtype == "offset" else f.dtype).type(0)
                if f.rank == 0
                else np.zeros(
                    (1,) * f.rank, "int32" if f.dtype == "offset" else f.dtype
                )
                for f in source.fields
            ]
            assert own[place] == numba.typeof(kernel.module.Data(*arrays))
            assert other[place] == numba.typeof(plain.module.Data(*arrays))
            assert own[:place] == other[:place]


def test_some_have_fields_that_are_alike() -> None:
    found = set()
    for name in QUEUED:
        kernel = folded(name)
        [entry, *_] = [e for e in kernel.entries if "d" in e.arguments]
        found.add(type(kernel.signature(entry)[entry.arguments.index("d")]).__name__)
    assert found == {"NamedTuple", "NamedUniTuple"}


class Text:
    """A module as those that are generated."""

    def __init__(self, stem: str) -> None:
        self.stem, self.program = stem, ""
        self.text = f"""
from typing import Any, NamedTuple
import numba

class Data(NamedTuple):
    x: Any
    {stem}: Any

@numba.njit(cache=True)
def first(d):
    return d.x[0]
"""


def test_what_another_module_calls_is_found_without_it(cache: Path) -> None:
    """As in a process that runs other programs than the one before it."""
    called, calling = load_module(Text("called")), load_module(Text("calling"))
    arrays = np.zeros(2), np.zeros(3)
    types = numba.typeof(calling.Data(*arrays))
    assert not is_stored(called.first, (types,))
    called.first(calling.Data(*arrays))
    own: Any = numba.typeof(called.Data(*arrays))
    assert is_stored(called.first, (types,))
    del sys.modules[calling.__name__], sys.modules[called.__name__]
    again = load_module(Text("called"))
    assert not is_stored(again.first, (own,))
    assert again.first(again.Data(*arrays)) == 0.0
    assert load_module(Text("calling")) is not calling
    again.first(sys.modules[calling.__name__].Data(*arrays))
    assert sum(again.first.stats.cache_hits.values()) == 1
    assert len(list(cache.rglob("called_*.nbi"))) == 1
