"""A new combine runs on all targets and ranks by its entry in the table alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.base.config import config
from featgraph.base.errors import PlanError, UserFunctionError
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks
from featgraph.program.combines import RULES, Rules

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.device import cpu, memory, warp
from featgraph.ranks.engines.messages import OPERATORS
from featgraph.runtime.devices.cuda_trees import _IS_PRODUCT
from tests.simt.gpu import Gpu

#: A hub has half of the edges, and takes several warps.
V, EDGES = 81, 400


def exclusive_or(a, b):
    return a ^ b


def longer(a, b):
    return (a * a + b * b) ** 0.5


BITS = ("truth values", "integers")
NEW = {
    "xor": Rules(exclusive_or, neutral=0, takes=BITS, update="{0} ^= {1}"),
    "called": Rules(exclusive_or, neutral=0, takes=BITS),
    "highest": RULES["max"],
    "multiplied": RULES["product"],
    "longer": Rules(longer, neutral=0),
}

#: Combines of integers that all tests of targets and ranks run.
TRIED = ("xor",)


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, rules in NEW.items():
            patch.setitem(RULES, name, rules)
        yield


def make_graph() -> fg.Graph:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, V, (2, EDGES))
    ends[1, : EDGES // 2] = 7
    return fg.Graph.from_edges(*ends, vertex_count=V)


WHOLE = make_graph()


def mixing(combine: str, sources: str = "all") -> fg.FoldMap:
    """Return a foldmap that combines along edges, and over all vertices."""

    @fg.gather(into="mixed", combine=combine, sources=sources)
    def around(f, u, v, e, d):
        return d.bits[u, f] + d.salt[e]

    @fg.vertex
    def mix(f, v, d):
        d.bits_next[v, f] = d.bits[v, f] ^ (d.mixed[v, f] >> 1)
        return d.bits[v, f] % 5 != 0

    @fg.reduce(into="whole", combine=combine)
    def whole(f, v, d):
        return d.bits_next[v, f]

    return fg.foldmap(around, mix, whole)


def make_state(graph: fg.Graph, k: int) -> fg.State:
    rng = np.random.default_rng(1)
    bits = rng.integers(-(1 << 62), 1 << 62, (V, k))
    salt = rng.integers(0, 1 << 20, EDGES)
    return fg.State(
        graph,
        bits=fg.vertex_property(bits, iterated=True),
        salt=fg.edge_property(salt),
    )


def interpreted(step: fg.FoldMap, k: int) -> list[Any]:
    given = reference.from_state(make_state(WHOLE, k))
    values = reference.iterate(step.program, *given, max_supersteps=2).values
    return [values[name].tolist() for name in ("bits", "whole")]


def run(step: fg.FoldMap, graph: fg.Graph, k: int, **options: Any) -> list[Any]:
    state = make_state(graph, k)
    fg.iterate(step, state, max_supersteps=2, **options)
    return [np.asarray(state[name]).tolist() for name in ("bits", "whole")]


pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"direction": "push"},
    {"deterministic": True},
    {"folding": False},
]
ON_A_GPU = [{"feature_parallel": False}, {"schedule": "thread"}]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("combine", [*TRIED, "called"])
@pytest.mark.parametrize("k", [1, 3])
def test_it_is_that_of_the_interpreter(gpu: Gpu, combine: str, k: int) -> None:
    step = mixing(combine)
    meant = interpreted(step, k)
    assert combine != "xor" or meant == interpreted(mixing("called"), k)
    for options in OPTIONS:
        assert run(step, WHOLE, k, target="cpu", **options) == meant, options
    for options in [*OPTIONS, *ON_A_GPU]:
        assert run(step, WHOLE, k, target="cuda", **options) == meant, options


@pytest.mark.parametrize("sources", ["all", "active"])
@pytest.mark.parametrize("cuts", [[0, 32, V], [0, 40, V]])
@pytest.mark.parametrize("combine", TRIED)
def test_it_is_that_of_two_ranks(combine: str, cuts: list[int], sources: str) -> None:
    step = mixing(combine, sources)
    meant = interpreted(step, 3)
    for options in OPTIONS[: 3 if sources == "all" else 1]:
        found = run_ranks(
            2,
            lambda _, options=options: run(
                step, fg.distribute(WHOLE, cuts=cuts), 3, target="cpu", **options
            ),
        )
        assert found == [meant, meant], options


@pytest.mark.parametrize("combine", [*TRIED, "highest"])
@pytest.mark.parametrize("link", ["auto", "engine", "host"])
def test_it_is_that_of_two_gpus(
    gpu: Gpu, link: str, combine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By windows where `link` is "auto"."""
    monkeypatch.setattr(config, "gpu_links", link)
    step = mixing(combine)
    found = run_ranks(
        2,
        lambda _: run(step, fg.distribute(WHOLE, cuts=[0, 32, V]), 3, target="cuda"),
    )
    assert found == [interpreted(step, 3)] * 2


def of_reals(combine: str) -> fg.FoldMap:
    @fg.vertex
    def keep(f, v, d):
        return True

    @fg.reduce(into="whole", combine=combine)
    def whole(f, v, d):
        return d.x[v, f]

    return fg.foldmap(keep, whole)


def gathering_reals(combine: str) -> fg.FoldMap:
    @fg.gather(into="whole", combine=combine)
    def whole(f, u, v, e, d):
        return d.x[u, f]

    @fg.vertex
    def keep(f, v, d):
        return d.whole[v, f] != 0

    return fg.foldmap(whole, keep)


def bytes_of(step: fg.FoldMap, graph: fg.Graph, **options: Any) -> bytes:
    x = np.random.default_rng(2).uniform(0.9, 1.1, (V, 2))
    state = fg.State(graph, x=fg.vertex_property(x))
    step(state, deterministic=True, **options)
    return np.asarray(state["whole"]).tobytes()


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_trees_combine_by_the_table(gpu: Gpu, where: str) -> None:
    """By the rules of the entry, not by the name of the combine."""
    new, known = of_reals("multiplied"), of_reals("product")
    meant = bytes_of(known, WHOLE, target=where)
    x = np.random.default_rng(2).uniform(0.9, 1.1, (V, 2))
    np.testing.assert_allclose(np.frombuffer(meant), x.prod(axis=0))
    assert bytes_of(new, WHOLE, target=where) == meant
    for cuts in ([0, 32, V], [0, 40, V]):
        found = run_ranks(
            2,
            lambda _, cuts=cuts: bytes_of(
                new, fg.distribute(WHOLE, cuts=cuts), target=where
            ),
        )
        assert found == [meant, meant]


def test_ranks_refuse_reals_that_no_tree_combines(gpu: Gpu) -> None:
    step = of_reals("longer")
    x = np.random.default_rng(2).uniform(0.9, 1.1, (V, 2))
    for target in ("cpu", "cuda"):
        alone = np.frombuffer(bytes_of(step, WHOLE, target=target))
        np.testing.assert_allclose(alone, np.sqrt((x * x).sum(axis=0)))

    def on_a_rank(_: Any) -> bytes:
        graph = fg.distribute(WHOLE, cuts=[0, 32, V])
        return bytes_of(step, graph, target="cpu")

    with pytest.raises(PlanError, match=r"(?s)by longer, .*sum, min, max, product"):
        run_ranks(2, on_a_rank)


def run_once(step: fg.FoldMap, state: fg.State, where: str) -> None:
    if where == "interpreter":
        reference.superstep(step.program, *reference.from_state(state))
    else:
        step(state, target=where)


@pytest.mark.parametrize("where", ["cpu", "cuda", "interpreter"])
def test_bits_of_reals_are_refused_before_a_superstep(gpu: Gpu, where: str) -> None:
    state = fg.State(WHOLE, x=fg.vertex_property(np.zeros((V, 2))))
    for name, make in product(("xor", "called"), (of_reals, gathering_reals)):
        with pytest.raises(UserFunctionError, match=f"{name}.*not take") as caught:
            run_once(make(name), state, where)
        error = caught.value
        assert (error.got, error.expected) == ("reals (real)", " or ".join(BITS))
        assert re.search(r"test_new_combine\.py:\d+ in whole", error.where or "")


def test_the_table_names_what_targets_and_ranks_have() -> None:
    for rules in RULES.values():
        for module in (cpu, memory, warp):
            assert hasattr(module, f"atomic_{rules.atomic or 'combine'}")
        if rules.shuffle:
            assert hasattr(warp, f"edge_lane_{rules.shuffle}")
            assert hasattr(warp, f"edge_lane_{rules.shuffle}_4") == rules.by_fours
        assert not rules.exchange or rules.exchange in OPERATORS
        assert rules.tree is None or rules.tree in _IS_PRODUCT
        assert rules.is_arg or rules.pair is not None
