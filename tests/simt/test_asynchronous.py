"""Asynchronous CUDA kernels, lane by lane, until nothing is active any more."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.cuda import dialect
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from featgraph.fold.printing.module import KernelSource
from featgraph.graph import Graph
from featgraph.program.program import Program
from tests.programs import monotone
from tests.simt.case import Case, edge, vertex
from tests.simt.superstep import Superstep

VARIANTS: dict[str, dict[str, Any]] = {
    "fa": {},
    "nfa": {"feature_parallel": False},
    "hubs": {"hubs": True},
    "checked": {"checked": True, "hubs": True},
}


def paths_state(graph: Any, k: int, rng: Any) -> Any:
    count = graph.vertex_count
    distance = np.full((count, k), np.inf)
    distance[count - 1 - rng.integers(0, 3, k), np.arange(k)] = 0
    return {
        "distance": vertex(distance, True),
        "previous": vertex(np.full((count, k), -1, np.int32), True),
        "length": edge(rng.integers(1, 64, graph.given_edge_count) / 8),
    }


def labels_state(graph: Any, k: int, rng: Any) -> Any:
    label = rng.permutation(graph.vertex_count * k).reshape(-1, k)
    is_open = rng.random(graph.given_edge_count) < 0.9
    return {"label": vertex(label.astype(np.int32), True), "open": edge(is_open)}


def components_state(graph: Any, k: int, rng: Any) -> Any:
    return {"comp": vertex(np.arange(graph.vertex_count, dtype=np.int32), True)}


CASES = {
    "distance": Case("paths", (monotone.by_road, monotone.arrive), paths_state),
    "label": Case("labels", (monotone.lowest, monotone.adopt), labels_state),
    "comp": Case("components", (monotone.neighboring, monotone.join), components_state),
}


def tiny_graph(rng: Any) -> Graph:
    """A hub, a few edges more, and a path against the order of the vertices."""
    count = 21
    source, target = rng.integers(0, count, (2, 24))
    target[:12] = 7
    source = np.concatenate([source, np.arange(count - 5, count)])
    target = np.concatenate([target, np.arange(count - 6, count - 1)])
    return Graph.from_edges(source, target, vertex_count=count)


class Run:
    """A run to the end: what the interpreter gives, and the kernels."""

    def __init__(self, key: str, k: int, **options: Any) -> None:
        rng = np.random.default_rng(k)
        self.key = key
        self.graph = tiny_graph(rng)
        self.values, signature = CASES[key].values(self.graph, k, rng)
        program: Program = CASES[key].program()
        self.expected = reference.iterate(program, self.graph, self.values, signature)
        traits = GraphTraits(32, options.pop("hubs", False), False, False)
        chosen = Options(target="cuda", asynchronous=True, **options)
        plan = make_plan(program, signature, chosen, traits)
        self.kernels: KernelSource = emit(plan)

    def finish(self, text: str | None = None) -> tuple[Any, int]:
        """Return the values at the end, and after how many supersteps that was."""
        step = Superstep(self.kernels, self.graph, self.values, text=text)
        active = np.ones(self.graph.vertex_count, bool)
        count = 0
        while active.any() and count < 50:
            result = step.run(active)
            assert not step.arrays["fault"].any()
            for name in self.kernels.plan.phases[0].commits:  # both buffers are equal
                both = (step.arrays[name], step.arrays[f"{name}_next"])
                width = self.values[name].shape[1:]  # what pads a row is anything
                here, there = (a[:, : width[0]] if width else a for a in both)
                np.testing.assert_array_equal(here, there, err_msg=name)
            active, count = result.active_out, count + 1
        return result.values, count

    def check(self, text: str | None = None) -> None:
        """Run to the end; compare with the interpreter's."""
        values, count = self.finish(text)
        np.testing.assert_array_equal(values[self.key], self.expected.values[self.key])
        assert count <= self.expected.supersteps
        if self.key == "distance":
            self._check_parents(values)

    def _check_parents(self, values: Any) -> None:
        """Each key is its source's with the edge between."""
        count = self.graph.vertex_count
        source = self.graph.in_edges.column_indices
        target = np.repeat(np.arange(count), self.graph.in_degree)
        length = values["length"][self.graph.given_index]
        over = values["distance"][source] + length[:, None]
        fits = (values["previous"][target] == source[:, None]) & (
            over == values["distance"][target]
        )
        found = np.zeros_like(values["previous"], bool)
        np.logical_or.at(found, target, fits)
        np.testing.assert_array_equal(found, values["previous"] >= 0)


@pytest.mark.drawn(6)
@pytest.mark.parametrize(
    ("key", "k", "variant"),
    [
        ("distance", 3, "fa"),
        ("distance", 8, "fa"),
        ("distance", 33, "nfa"),
        ("distance", 3, "hubs"),
        ("label", 1, "fa"),
        ("label", 4, "nfa"),
        ("label", 33, "fa"),
        ("label", 10, "checked"),
        ("comp", 1, "fa"),
        ("comp", 1, "nfa"),
        ("comp", 1, "hubs"),
    ],
)
def test_runs_to_the_fixpoint(key: str, k: int, variant: str) -> None:
    Run(key, k, **VARIANTS[variant]).check()


def test_updates_are_seen_within_a_superstep() -> None:
    """The blocks of the emulator run one after the other, and so do their rounds."""
    run = Run("comp", 1, feature_parallel=False)
    run.graph = Graph.from_edges(np.arange(512), np.arange(1, 513))
    run.values = {"comp": np.arange(513, dtype=np.int32)}
    step = Superstep(run.kernels, run.graph, run.values)
    result = step.run(np.ones(513, bool))
    synchronous = np.maximum(np.arange(513) - 1, 0)
    assert (result.values["comp"] < synchronous).any()


#: Fault -> (how a statement begins, what else it holds); it is left out.
FAULTS = {
    "announced and not committed": ("d.distance[", "d.distance_next["),
    "committed and not announced": ("warp.set_bit", "(passed, "),
    "neither committed nor dropped": ("d.distance_next[", "= d.distance["),
}


class _Leave(ast.NodeTransformer):
    """Puts `pass` for the statements of a fault."""

    def __init__(self, begins: str, holds: str) -> None:
        self.begins, self.holds, self.count = begins, holds, 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Assign | ast.Expr):
            text = ast.unparse(node)
            if text.startswith(self.begins) and self.holds in text:
                self.count += 1
                return ast.Pass()
        return super().generic_visit(node)


@pytest.mark.parametrize("variant", ["fa", "nfa", "hubs"])
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(variant: str, fault: str) -> None:
    run = Run("distance", 1, **VARIANTS[variant])
    leave = _Leave(*FAULTS[fault])
    planted = ast.unparse(leave.visit(ast.parse(run.kernels.text)))
    assert leave.count
    with pytest.raises(AssertionError):
        run.check(planted)


MODES: dict[str, dict[str, Any]] = {
    "asynchronous": {"asynchronous": True},
    "near_far": {"near_far": 0.25},
    "both": {"asynchronous": True, "near_far": 0.25},
}


@pytest.mark.parametrize(
    ("name", "mode"), [*(("paths", mode) for mode in MODES), ("widths", "near_far")]
)
def test_runs_of_the_runtime(name: str, mode: str) -> None:
    """Which vertices are near, what stays due, and both buffers, on an emulated GPU."""
    if not dialect.is_installed():
        pytest.skip("needs numba-cuda, the dialect")
    from tests.simt.gpu import emulated_gpu

    program = monotone.BY_NAME[name]
    graph = tiny_graph(np.random.default_rng(4))
    options = dict(MODES[mode])
    if "near_far" in options:
        delta = 0.25 if name == "paths" else 9
        options["near_far"] = fg.NearFar(program.key, delta)
    plain, emulated, meant = (program.state(graph, 4) for _ in range(3))
    fg.iterate(program.foldmaps[0], plain, target="cpu")
    run = fg.iterate(program.foldmaps[0], meant, target="cpu", **options)
    with emulated_gpu():
        found = fg.iterate(program.foldmaps[0], emulated, target="cuda", **options)
        if name == "paths":
            monotone.check_parents(emulated)
        key = emulated[program.key]
    assert found.converged
    np.testing.assert_array_equal(key, plain[program.key])
    if mode == "near_far":
        assert found.active_counts == run.active_counts
        assert found.thresholds == run.thresholds
        assert len(set(found.thresholds)) > 2
