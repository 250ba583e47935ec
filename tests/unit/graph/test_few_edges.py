"""Graphs of few edges, built by NumPy, equal those that compiled loops build."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.graph.building import build, edges, few
from featgraph.graph.building.oriented import orient
from featgraph.graph.views.structure import _builder
from tests.strategies import graphs


def built(module: Any, graph: fg.Graph) -> dict[str, Any]:
    """Return all that a module builds of the edges of a graph, by its name."""
    own = graph._edges
    rows = [module.build_in_edges(own), module.build_incident_columns(own)]
    found: dict[str, Any] = {"in": rows[0], "incident": rows[1]}
    ins = lambda: rows[0]  # noqa: E731
    found["given"] = module.build_given_index(own, ins)
    found |= {f"{s}_degree": module.build_degree(own, s) for s in ("in", "out")}
    if graph.directed:
        found["out"] = outs = module.build_out_columns(own)
        found["out_ids"] = module.build_out_ids(own, ins, outs)
        found["ids"] = module.build_incident_ids(own, ins, rows[1])
    else:
        found["twins"] = module.build_twins(own, ins)
    return found


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_both_build_the_same(graph: fg.Graph) -> None:
    by_loops, found = built(build, graph), built(few, graph)
    for name, expected in by_loops.items():
        pairs = [(found[name], expected)]
        if not isinstance(expected, np.ndarray):
            names = "row_offsets", "column_indices"
            pairs = [(getattr(found[name], n), getattr(expected, n)) for n in names]
        for array, wanted in pairs:
            np.testing.assert_array_equal(array, wanted, err_msg=name)
            assert array.dtype == wanted.dtype, name
            assert not array.flags.writeable, name


def oriented(graph: fg.Graph, few: bool) -> Any:
    """Return all of a graph that is oriented, or what it is refused for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("featgraph.graph.building.oriented.FEW", edges.FEW if few else -1)
        try:
            found = orient(graph)
        except fg.GraphInputError as error:
            return str(error)
        rows = [getattr(found, name) for name in ("upper", "lower", "both")]
        return [found.vertices, found.degree_order, found.work] + [
            array
            for each in rows
            for array in (each.row_offsets, each.column_indices, each.edge_ids)
        ]


@settings(max_examples=60, deadline=None)
@given(graphs(directed=False), st.booleans())
def test_both_orient_the_same(graph: fg.Graph, has_repeats: bool) -> None:
    if not has_repeats:
        graph = fg.Graph.from_edges(
            graph.sources, graph.targets, vertex_count=graph.vertex_count,
            directed=False, duplicates="first",
        )  # fmt: skip
    by_loops, found = oriented(graph, few=False), oriented(graph, few=True)
    assert type(by_loops) is type(found)
    if isinstance(by_loops, str):
        assert found == by_loops
        return
    for array, expected in zip(found, by_loops, strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype


@pytest.mark.parametrize(("count", "ends"), [(1, 5), (5, 1)])
def test_many_edges_or_vertices_are_left_to_loops(
    count: int, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fg.Graph.from_edges([0] * ends, [0] * ends, vertex_count=count)
    assert _builder(graph) is few
    monkeypatch.setattr(edges, "FEW", 4)
    assert _builder(graph) is build


def test_the_highest_numbers_of_few_vertices_fit_16_bits() -> None:
    ends = np.array([0, edges.FEW - 1, 1, edges.FEW - 1])
    graph = fg.Graph.from_edges(ends, ends[::-1], vertex_count=edges.FEW)
    assert graph._edges.is_few
    assert graph.given_index.tolist() == [3, 1, 0, 2]


def test_few_edges_need_no_compiler() -> None:
    script = (
        "import sys, featgraph as fg\n"
        "graph = fg.Graph.from_edges([0, 1, 2, 2], [1, 2, 2, 0], directed=False)\n"
        "graph.in_edges, graph.twins, graph.given_index, graph.in_degree\n"
        "graph.oriented.both, graph.oriented.lower, graph.oriented.work\n"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
