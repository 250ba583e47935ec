"""S5: combines over truth values, narrow integers, NaN and zeros, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from tests.reference import test_own_combines
from tests.simt.gpu import Gpu
from tests.simt.superstep import Superstep

COUNT = 10
COMBINES = ("sum", "product", "min", "max", "any", "argmin", "argmax")


def gathered(combine: str) -> fg.FoldMap:
    @fg.gather(into="best", combine=combine)
    def take(f, u, v, e, d):
        return d.x[u] if u != d.left_out else fg.nothing

    @fg.vertex
    def keep(f, v, d):
        d.out[v] = d.best[v]
        return True

    @fg.vertex
    def keep_source(f, v, d):
        d.out[v] = d.best[v]
        d.source[v] = d.best_source[v]
        return True

    return fg.foldmap(take, keep_source if combine.startswith("arg") else keep)


def reduced(combine: str) -> fg.FoldMap:
    @fg.reduce(into="all", combine=combine)
    def take(f, v, d):
        return d.x[v] if v != d.left_out else fg.nothing

    return fg.foldmap(take)


def values(dtype: str, rng: Any) -> Any:
    if dtype.startswith("float"):
        return rng.choice([0.0, -0.0, np.nan, 1.0, -1.0, np.inf], COUNT).astype(dtype)
    if dtype == "bool":
        return rng.random(COUNT) < 0.8
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, COUNT, dtype, endpoint=True)


def check(step: fg.FoldMap, make: Any, outputs: Any, push: bool) -> None:
    """Compare with the interpreter: the CPU and the emulated GPU, pulled and pushed."""
    state = make()
    meant = reference.superstep(step.program, *reference.from_state(state)).values
    given = {name: np.asarray(state[name]) for name in state}
    for options in [{}, {"feature_parallel": False}, {"direction": "push"}][: 2 + push]:
        chosen = Options(target="cuda", **options)
        traits = GraphTraits(4, False, False, False)
        kernels = emit(make_plan(step.program, state.signature, chosen, traits))
        everywhere = np.ones(COUNT, bool)
        emulated = Superstep(kernels, state.graph, given).run(everywhere).values
        found = [emulated]
        if "feature_parallel" not in options:
            step(state := make(), target="cpu", **options)
            assert [state[n].dtype for n in outputs] == [
                meant[n].dtype for n in outputs
            ]
            found.append(state)
        for name in outputs:
            for got in found:
                np.testing.assert_array_equal(got[name], meant[name], f"{options}")


CASES = [(combine, "bool") for combine in COMBINES]
CASES += [("sum", "uint8"), ("argmin", "int8"), ("sum", "uint32"), ("max", "uint32")]
CASES += [("min", "float32"), ("argmax", "float32"), ("any", "float32")]


@pytest.mark.drawn(8)
@pytest.mark.parametrize(("combine", "dtype"), CASES)
def test_combines(combine: str, dtype: str, rng: np.random.Generator) -> None:
    is_real = dtype.startswith("float")
    source, target = rng.integers(0, COUNT - 2, (2, 30))
    graph = fg.Graph.from_edges(source, target, vertex_count=COUNT)
    x = values(dtype, rng)
    out = dtype if is_real and combine != "any" else "int64"
    out = "bool" if combine == "any" else out

    def make() -> fg.State:
        return fg.State(
            graph,
            x=fg.vertex_property(x),
            out=fg.vertex_property(np.zeros(COUNT, out)),
            source=fg.vertex_property(0),
            left_out=3,
        )

    is_arg = combine.startswith("arg")
    outputs = ["out", "source"] if is_arg else ["out"]
    check(gathered(combine), make, outputs, True)
    if not is_arg:
        check(reduced(combine), make, ["all"], False)


@pytest.mark.parametrize("combine", ["argmin", "argmax"])
def test_zeros_tie_and_nan_is_nothing(combine: str) -> None:
    """Of 0.0 and -0.0 the smallest source wins; NaN wins nowhere."""
    nan = np.nan
    x = np.array([nan, 0.0, -0.0, -0.0, 0.0, nan, nan, nan, 0.0, 0.0], np.float32)
    graph = fg.Graph.from_edges([1, 2, 4, 3, 0, 5], [7, 7, 8, 8, 8, 9], vertex_count=10)
    for direction in ("pull", "push"):
        state = fg.State(
            graph,
            x=fg.vertex_property(x),
            out=fg.vertex_property(x),
            source=fg.vertex_property(0),
            left_out=-1,
        )
        gathered(combine)(state, target="cpu", direction=direction)
        assert state["source"][7:].tolist() == [1, 3, -1]
        assert state["out"][7:9].tolist() == [0.0, 0.0]
        assert np.isinf(state["out"][9])


def test_truth_values_are_combined_as_they_are() -> None:
    """The least of nothing but True is True, also where it is reduced."""
    graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    state = fg.State(graph, x=fg.vertex_property(np.ones(3, bool)), left_out=-1)
    for combine, wanted in [("min", True), ("max", True), ("sum", 3), ("product", 1)]:
        reduced(combine)(state, target="cpu")
        assert state["all"].tolist() == [wanted]
        assert state["all"].dtype == (bool if combine in {"min", "max"} else np.int64)


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("name", test_own_combines.CASES)
def test_types_of_own_combines(name: str, direction: str, gpu: Gpu) -> None:
    test_own_combines.test_gathers(name, direction, "cuda")
    if test_own_combines.CASES[name][-1]:
        test_own_combines.test_reduces(name, "cuda")
