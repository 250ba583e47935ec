"""Plans and kernels of triangle functions."""

from __future__ import annotations

import ast
import builtins
import re

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.analysis.gathers import find_sums
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.schedules import intersect_rows
from featgraph.fold.tree.passes import TreeError
from featgraph.program.signature import GENERATED, TRIANGLES
from tests.programs.triangles import PROGRAMS, make_state

GRAPH = fg.Graph.from_edges([0, 1, 2], [1, 2, 0], directed=False)
WAYS = [("cpu", "mark"), ("cpu", "merge"), ("cuda", "mark"), ("cuda", "search")]


def state() -> fg.State:
    return fg.State(GRAPH, **make_state(GRAPH, np.random.default_rng(0)))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("where", "schedule"), WAYS)
def test_names_are_reserved(name: str, where: str, schedule: str) -> None:
    """A function of the user's must not be called as a kernel's local is."""
    foldmap = PROGRAMS[name]
    kernel = foldmap.fold(state(), target=where, schedule=schedule)
    used: set[str] = set()
    for node in ast.parse(kernel.source).body:
        is_kernel = isinstance(node, ast.FunctionDef) and re.match(
            r"sweep_|triangle_phase_", node.name
        )
        if is_kernel:
            used |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            used |= {a.arg for a in node.args.args}
    used = {n for n in used if not re.search(r"_\d+$", n) and n not in dir(builtins)}
    own = {f.name for f in foldmap.program.functions}
    assert used - own <= GENERATED | TRIANGLES


@fg.triangle
def place(u, v, w, e_uv, e_uw, e_vw, d):
    """Share its name with an array of the kernel."""
    fg.atomic.add(d.at_vertex, u, 1)


def test_a_function_named_as_a_local_runs() -> None:
    given = state()
    fg.trianglemap(place)(given, target="cpu")
    assert given["at_vertex"].sum() == 1


def test_only_plain_additions_wait() -> None:
    plans = {
        name: make_plan(f.program, state().signature, Options(), GraphTraits())
        for name, f in PROGRAMS.items()
    }
    sums = {
        function.name: {
            (s.into, s.role) for s in find_sums(function, plan.analysis.signature)
        }
        for plan in plans.values()
        for function in plan.analysis.functions
        if function.kind.intersects
    }
    assert ("share", "v") in sums["everywhere"]
    assert len(sums["everywhere"]) == 8
    # Neither minima, nor features, nor twins, nor old values, but what a loop adds.
    assert sums["otherwise"] == {("share", "u"), ("at_edge", "e_uw")}


def trees_behind(name: str, where: str, schedule: str) -> dict[str, str]:
    """Return the tree of each kernel of `everywhere` behind a pass."""
    kernel = PROGRAMS["everywhere"].fold(state(), target=where, schedule=schedule)
    return {tree.kernel: tree.text for tree in kernel.trees() if tree.name == name}


@pytest.mark.parametrize(("where", "schedule"), WAYS)
def test_all_schedules_begin_with_one_tree(where: str, schedule: str) -> None:
    trees = trees_behind("stages", where, schedule)
    assert len(trees) == 1 + (where == "cuda" and schedule == "mark")
    assert set(trees.values()) == {
        "Intersect(may_wait=[u, v, w, e_uv, e_uw, e_vw]):\n    Triangle(everywhere)"
    }


def test_sums_wait_as_long_as_a_corner_stays() -> None:
    waits = {
        kernel.rpartition(" ")[2]: re.findall(r"Waits\((.*)\):", tree)
        for where, schedule in WAYS
        for kernel, tree in trees_behind("intersections", where, schedule).items()
    }
    of_row = ["[v]", "[u, e_uv]", "[w, e_vw], index=found"]
    assert waits["MarkSchedule"] == waits["MergeSchedule"] == of_row
    assert waits["SearchSchedule"] == ["[u]", "[v, e_uv]"]
    # Lanes of a block have the row in common, and groups of them a vertex below it.
    assert waits["BitmapSchedule"] == ["[v], scope=vertex", *of_row[1:]]


def test_lanes_that_add_up_together_go_round_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: a loop that each group of lanes may leave by itself."""
    monkeypatch.setattr(intersect_rows, "agreed", lambda body, company: body)
    with pytest.raises(TreeError, match=r"meet to sum the edge.*for first in range"):
        trees_behind("sums", "cuda", "mark")


def test_plans_show_how_rows_are_intersected() -> None:
    given = state()

    def mapping(name: str, **options: str) -> str:
        return str(PROGRAMS[name].fold(given, **options).plan)

    assert "marked" in mapping("everywhere", target="cpu")
    assert "merged" in mapping("everywhere", target="cpu", schedule="merge")
    long = "a bitmap for each long row"
    assert long in mapping("everywhere", target="cuda", schedule="mark")
    assert long not in mapping("everywhere", target="cuda")
    behind = mapping("behind_edges", target="cuda", schedule="mark")
    assert "on the triangles of edges that passed" in behind
    assert long not in behind
    assert "sweeps triangles" in behind


def sweeps_changed(*functions: object, **options: str) -> bool:
    """Whether edge functions run on changed edges alone."""
    plan = fg.foldmap(*functions).fold(state(), **options).plan
    return any("something has changed" in line for line in str(plan).splitlines())


@fg.edge
def asks_vertices(f, u, v, e, d):
    return d.kind[u] > d.at_edge[e]


@fg.edge
def asks_numbers(f, u, v, e, d):
    return u > d.at_edge[e]


@fg.edge
def counts_itself(f, u, v, e, d):
    d.at_edge[e] = d.at_edge[e] + 1
    return d.at_edge[e] > 3


@fg.edge
def asks_what_reverse_commits(f, u, v, e, d):
    d.open_next[e] = False
    return d.open[fg.reverse(e)]


@fg.triangle
def least_of(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.min(d.at_edge, e_uv, 1)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_edges_are_left_out_that_have_not_changed(where: str) -> None:
    edge, triangle = PROGRAMS["behind_changed_edges"].program.functions
    assert sweeps_changed(edge, triangle, target=where)
    for other in (
        asks_vertices, asks_numbers, counts_itself, asks_what_reverse_commits,
    ):  # fmt: skip
        assert not sweeps_changed(other, triangle, target=where)
    assert not sweeps_changed(edge, least_of, target=where)
    assert not sweeps_changed(edge, target=where)
    program = PROGRAMS["behind_changed_edges"].program
    for options in (Options(target=where, checked=True), Options(target=where)):
        plan = make_plan(program, state().signature, options, GraphTraits())
        assert all(p.changed_only is not options.checked for p in plan.phases)
