"""Kept sources equal what is generated: a change of the folder shows as a diff.

``pytest tests/golden --update-golden`` writes them anew. Paths in comments are those of
the repository, so that the files are the same everywhere.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featgraph.algorithms.k_truss import step as k_truss
from featgraph.algorithms.label_propagation import step as label_propagation
from featgraph.algorithms.sssp import step as sssp
from featgraph.algorithms.triangle_count import step as triangle_count
from featgraph.fold.printing.emit import emit
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.planner import make_plan
from tests.bank import BY_NAME
from tests.programs.exclusive import LEARN
from tests.programs.monotone import BY_NAME as MONOTONE
from tests.programs.queued import QUEUED
from tests.texts.paths import normalised

HERE = Path(__file__).parent

DIRECTIONS = {
    "auto": {},
    "pull": {"direction": "pull"},
    "push": {"direction": "push"},
    "patch": {"direction": "pull", "change_driven": True},
    "asynchronous": {"asynchronous": True},
    "mark": {"schedule": "mark"},
    "packed": {"direction": "pull"},
    "listed": {"direction": "pull"},
    "worklist": {},
    "long": {"direction": "pull"},
}
#: The CPU target has one mapping; on CUDA, lanes share a vertex (FA) or do not (NFA).
MAPPINGS = {
    "cpu": ("cpu", {}),
    "cuda_fa": ("cuda", {"feature_parallel": True}),
    "cuda_nfa": ("cuda", {"feature_parallel": False}),
}
#: Schedules that are asked for, with label propagation alone, or a learner.
SCHEDULES = {
    "virtual_warp": ("cuda", {"schedule": "virtual_warp", "lanes_per_vertex": 16}),
    "warp_segmentation": ("cuda", {"schedule": "warp_segmentation"}),
    "balanced_push": ("cuda", {"schedule": "balanced_push"}),
    "levels_cpu": ("cpu", {"schedule": "levels"}),
    "levels_cuda": ("cuda", {"schedule": "levels"}),
    "blocks_cuda": ("cuda", {"schedule": "blocks"}),
    "node_locked_cuda": ("cuda", {"schedule": "node_locked"}),
}
#: Few of the bank: argmin, a reduce, edges and twins, matrices, atomics.
PROGRAMS = {
    "bfs": (8,),
    "pagerank": (8,),
    "belief_propagation": (3,),
    "least_squares": (3, 8),
    "implicit_least_squares": (20,),
    "edge_atomics": (3,),
}

CASES = [
    ("label_propagation", label_propagation, k, mapping, direction)
    for k in (3, 8, 33)
    for mapping in MAPPINGS
    for direction in ("pull", "push", "patch")
    if direction != "patch" or k != 8
] + [
    (name, BY_NAME[name].foldmaps[0], k, mapping, "pull")
    for name, widths in PROGRAMS.items()
    for k in widths
    for mapping in MAPPINGS
]
CASES += [
    ("paths", MONOTONE["paths"].foldmaps[0], 3, mapping, "asynchronous")
    for mapping in MAPPINGS
]
CASES += [
    ("label_propagation", label_propagation, 8, mapping, form)
    for mapping in ("cuda_fa", "cuda_nfa")
    for form in ("packed", "listed")
]
CASES += [
    ("label_propagation", label_propagation, k, mapping, "long")
    for mapping, k in (("cpu", 3), ("cpu", 33), ("cuda_fa", 8), ("cuda_nfa", 3))
]
CASES += [
    ("label_propagation", label_propagation, k, schedule, direction)
    for schedule, k, direction in (
        ("virtual_warp", 3, "pull"),
        ("warp_segmentation", 8, "pull"),
        ("balanced_push", 8, "push"),
    )
]
CASES += [("pagerank", BY_NAME["pagerank"].foldmaps[0], 3, "cpu", "pull")]
CASES += [("search", QUEUED["search"][0], k, "cpu", "auto") for k in (1, 2)]
CASES += [
    (name, step, k, "cuda_nfa", "worklist")
    for name, step, k in (
        ("search", QUEUED["search"][0], 2),
        ("peeling", QUEUED["peeling"][0], 1),
        ("sssp", sssp, 1),
    )
]
CASES += [
    case
    for mapping in ("cpu", "cuda_fa")
    for case in (
        ("triangle_count", triangle_count, 1, mapping, "mark"),
        ("k_truss", k_truss, 1, mapping, "pull"),
    )
]


CASES += [
    ("learn", LEARN, 16, schedule, "auto")
    for schedule in ("levels_cpu", "levels_cuda", "blocks_cuda", "node_locked_cuda")
]


def name_of(case: tuple[Any, ...]) -> str:
    name, _, k, mapping, direction = case
    return f"{name}_k{k}_{mapping}_{direction}"


def with_long_rows(kernel: Kernel) -> Kernel:
    """Return the kernel of a graph whose rows are summed in blocks, and of hubs."""
    plan = kernel.plan
    traits = replace(plan.traits, long_rows=True, has_hubs=True, has_giant=True)
    signature = plan.analysis.signature
    return Kernel(emit(make_plan(label_propagation.program, signature, plan.options, traits)))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_golden(case: tuple[Any, ...], request: pytest.FixtureRequest) -> None:
    _, step, k, mapping, direction = case
    target, options = (MAPPINGS | SCHEDULES)[mapping]
    kernel = step.fold(k=k, target=target, **options, **DIRECTIONS[direction])
    if direction in {"packed", "listed", "worklist"}:
        kernel = kernel.in_form(direction)
    if direction == "long":
        kernel = with_long_rows(kernel)
    made = normalised(kernel.source)
    kept = HERE / f"{name_of(case)}.py.txt"
    if request.config.getoption("--update-golden", default=False):
        kept.write_text(made, encoding="utf-8")
        return
    assert kept.exists(), "run: pytest tests/golden --update-golden"
    expected = kept.read_text(encoding="utf-8")
    diff = "\n".join(
        difflib.unified_diff(
            expected.splitlines(),
            made.splitlines(),
            kept.name,
            "generated",
            lineterm="",
        )
    )
    assert not diff, f"{diff}\n\nIf that is meant: pytest tests/golden --update-golden"


def test_no_file_is_left_over(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden", default=False):
        pytest.skip("they are being written")
    kept = {path.name for path in HERE.glob("*.py.txt")}
    assert kept == {f"{name_of(case)}.py.txt" for case in CASES}


def test_no_path_of_this_machine_is_kept() -> None:
    for path in HERE.glob("*.py.txt"):
        comments = [x for x in path.read_text().split("\n") if x.startswith("# ")]
        places = [x for x in comments if ".py:" in x]
        assert places
        for place in places:
            assert place.startswith(("# algorithms/", "# tests/programs/")), place
