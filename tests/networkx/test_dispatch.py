"""Dispatching of NetworkX to featgraph: discovery, cached graphs, fallbacks."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

import featgraph as fg
from _featgraph_networkx import FUNCTIONS, backend, get_info
from _featgraph_networkx.claims import CLAIMS, own_arguments
from featgraph.networkx import NetworkXGraph
from featgraph.networkx import backend as served


def run_python(code: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def converted(graph: Any) -> dict[Any, Any]:
    """Return the graphs of ours that NetworkX keeps for a graph."""
    return dict(graph.__networkx_cache__.get("backends", {}).get("featgraph", {}))


def ring(count: int = 6) -> Any:
    return nx.cycle_graph(count, create_using=nx.DiGraph)


def test_importing_networkx_loads_nothing_of_featgraph() -> None:
    code = (
        "import json, sys, networkx as nx\n"
        "heavy = {'numpy', 'numba', 'featgraph'} & set(sys.modules)\n"
        "info = nx.utils.backends.backend_info['featgraph']\n"
        "print(json.dumps([sorted(heavy), sorted(info['functions'])]))"
    )
    heavy, functions = run_python(code)
    assert heavy == []
    assert functions == sorted(FUNCTIONS)


def test_what_is_announced_is_what_is_served() -> None:
    assert set(get_info()["functions"]) == set(CLAIMS)
    assert list(FUNCTIONS) == sorted(FUNCTIONS)
    for name, claimed in CLAIMS.items():
        theirs = inspect.signature(getattr(nx, name)).parameters
        ours = inspect.signature(getattr(served, name)).parameters
        assert tuple(ours) == claimed.parameters
        # Those that are new in a later NetworkX are passed over, at their defaults.
        assert [p for p in theirs if p in ours] == [*ours], name
        assert all(theirs[p].default == ours[p].default for p in ours), name


def test_a_declined_call_imports_nothing_of_featgraph() -> None:
    code = (
        "import json, sys, networkx as nx\n"
        "graph = nx.path_graph(20)\n"
        "nx.config.backend_priority = ['featgraph']\n"
        "nx.transitivity(graph); nx.dispersion(graph); nx.triangles(graph, 0)\n"
        "nx.closeness_centrality(nx.path_graph(600), 0)\n"
        "try:\n"
        "    nx.pagerank(graph, alpha=2, backend='featgraph')\n"
        "except NotImplementedError:\n"
        "    heavy = {'numpy', 'numba', 'featgraph'} & {*sys.modules}\n"
        "    print(json.dumps(sorted(heavy)))"
    )
    assert run_python(code) == []


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_a_parameter_of_a_newer_networkx_may_have_its_default(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, signature = ring(), inspect.signature(getattr(nx, name))
    empty = inspect.Parameter.empty
    own = [signature.parameters[p] for p in CLAIMS[name].parameters[1:]]
    arguments = {p.name: 0 for p in own if p.default is empty}
    before = own_arguments(name, (graph,), arguments)
    for default, other in ((None, {}), (True, False), (1.5, 2), ("a", "b")):
        more = inspect.Parameter(
            "newer", inspect.Parameter.KEYWORD_ONLY, default=default
        )
        parameters = [*signature.parameters.values()]
        parameters.insert(len(parameters) - 2, more)  # before `backend`

        def newer() -> None: ...

        vars(newer)["__signature__"] = signature.replace(parameters=parameters)
        monkeypatch.setattr(nx, name, newer)
        for given in (arguments, arguments | {"newer": default}):
            assert own_arguments(name, (graph,), given) == before
        refused = backend.can_run(name, (graph,), arguments | {"newer": other})
        assert "unknown to featgraph: newer" in str(refused)


def test_one_search_is_left_to_networkx() -> None:
    """It costs less than a conversion, and than supersteps on a small graph."""
    graph, large = ring(600), ring(CLAIMS["betweenness_centrality"].pays_from)
    should = backend.should_run
    for name, few, all_nodes in (
        ("closeness_centrality", {"u": 0}, {}),
        ("betweenness_centrality", {"k": 1}, {"k": 100}),
    ):
        assert should(name, (large,), all_nodes) is True
        assert "converted already" in str(should(name, (large,), few))
        getattr(nx, name)(graph, **few, backend="featgraph")
        assert "faster below 8000" in str(should(name, (graph,), few))
        assert should(name, (graph,), all_nodes) is True
        graph.__networkx_cache__.clear()
    weighted = {"u": 0, "distance": "weight"}
    assert "below 450000" in str(should("closeness_centrality", (graph,), weighted))


def test_the_page_lists_what_is_served_and_from_where() -> None:
    page = (Path(__file__).parents[2] / "docs" / "networkx.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| `(\w+)` \| ([\d,]+|never) \| ([\d,]+) \|", page)
    numbers = {
        name: [None if n == "never" else int(n.replace(",", "")) for n in sizes]
        for name, *sizes in rows
    }
    assert numbers == {n: [c.pays_from, c.converted] for n, c in CLAIMS.items()}


def test_docstrings_of_networkx_name_it() -> None:
    assert "featgraph : Kernels" in nx.pagerank.__doc__


def test_by_keyword_by_setting_and_by_graph(log: pytest.LogCaptureFixture) -> None:
    count = CLAIMS["pagerank"].converted
    graph = ring(count)
    wanted = dict.fromkeys(range(count), 1 / count)
    assert nx.pagerank(graph, backend="featgraph") == pytest.approx(wanted)
    ours = next(iter(converted(graph).values()))
    assert isinstance(ours, NetworkXGraph)
    assert nx.pagerank(ours) == pytest.approx(wanted)
    with nx.config(backend_priority=["featgraph"]):
        assert nx.pagerank(graph) == pytest.approx(wanted)
    with nx.config(backend_priority={"algos": [], "pagerank": ["featgraph"]}):
        assert nx.pagerank(graph) == pytest.approx(wanted)
    assert log.text.count("Using backend 'featgraph' for call to 'pagerank'") == 4


def test_by_environment_without_a_change_of_code() -> None:
    code = (
        "import json, logging, sys, networkx as nx\n"
        "lines = []\n"
        "handler = logging.Handler()\n"
        "handler.emit = lambda record: lines.append(record.getMessage())\n"
        "logger = logging.getLogger('networkx.utils.backends')\n"
        "logger.addHandler(handler); logger.setLevel('DEBUG')\n"
        "graph = nx.cycle_graph(20_000)\n"
        "nx.pagerank(graph)\n"
        "print(json.dumps([line[:60] for line in lines]))"
    )
    used = "Using backend 'featgraph' for call to 'pagerank'"
    lines = run_python(code, NETWORKX_BACKEND_PRIORITY="featgraph")
    assert any(line.startswith(used) for line in lines), lines
    lines = run_python(code, NETWORKX_BACKEND_PRIORITY="")
    assert not any(line.startswith(used) for line in lines)


def test_a_graph_is_converted_once_until_it_changes() -> None:
    graph = ring()
    before = nx.pagerank(graph, backend="featgraph")
    (ours,) = converted(graph).values()
    topology = ours.topology
    nx.pagerank(graph, alpha=0.5, backend="featgraph")
    (again,) = converted(graph).values()
    assert again is ours
    assert again.topology is topology
    graph.add_edge(0, 3)
    assert not converted(graph)
    after = nx.pagerank(graph, backend="featgraph")
    assert after != before
    assert after == pytest.approx(nx.pagerank(graph, backend="networkx"))


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph.remove_edge(0, 1),
        lambda graph: graph.add_node("new"),
        lambda graph: graph.remove_nodes_from([2]),
        lambda graph: graph.add_weighted_edges_from([(0, 1, 5.0), (0, 4, 1.0)]),
        lambda graph: nx.set_edge_attributes(graph, {(0, 1): {"weight": 7}}),
        lambda graph: graph.update(edges=[(0, 2)]),
        lambda graph: graph.clear_edges(),
    ],
)
def test_what_changes_a_graph_is_seen(change: Any) -> None:
    graph = ring()
    graph.add_edge(0, 3)
    nx.pagerank(graph, backend="featgraph")
    change(graph)
    ours = nx.pagerank(graph, backend="featgraph")
    assert ours == pytest.approx(nx.pagerank(graph, backend="networkx"))


def test_a_view_sees_what_its_graph_has_become() -> None:
    graph = ring(8)
    view = graph.subgraph(range(6))
    nx.pagerank(view, backend="featgraph")
    graph.add_edge(0, 4)
    ours = nx.pagerank(view, backend="featgraph")
    assert ours == pytest.approx(nx.pagerank(view, backend="networkx"))


def test_an_attribute_is_read_when_it_is_first_used() -> None:
    graph = ring()
    graph.add_edge(0, 3, weight=2, length=9)
    for weight in (None, "weight", "length", None):
        ours = nx.pagerank(graph, weight=weight, backend="featgraph")
        wanted = nx.pagerank(graph, weight=weight, backend="networkx")
        assert ours == pytest.approx(wanted), weight


def test_no_cache_where_networkx_has_none_set() -> None:
    graph = ring()
    with nx.config(cache_converted_graphs=False):
        nx.pagerank(graph, backend="featgraph")
    assert not converted(graph)


def test_small_graphs_stay_with_networkx(log: pytest.LogCaptureFixture) -> None:
    limit = CLAIMS["pagerank"].pays_from
    assert limit is not None
    small, large = ring(limit // 2 - 1), ring(limit // 2 + 1)
    assert f"faster below {limit}" in str(backend.should_run("pagerank", (small,), {}))
    assert backend.should_run("pagerank", (large,), {}) is True
    assert backend.should_run("pagerank", (), {"G": nx.empty_graph(limit)}) is True
    with nx.config(backend_priority=["featgraph"]):
        nx.pagerank(small)
        assert "Using backend" not in log.text
        assert "NetworkX is faster below" in log.text


def test_a_converted_graph_pays_earlier_until_it_changes() -> None:
    limit, earlier = CLAIMS["pagerank"].pays_from, CLAIMS["pagerank"].converted
    assert limit is not None
    assert earlier < limit
    graph = ring(earlier // 2 + 1)
    assert backend.should_run("pagerank", (graph,), {}) is not True
    nx.pagerank(graph, backend="featgraph")
    assert backend.should_run("pagerank", (graph,), {}) is True
    with nx.config(cache_converted_graphs=False):
        assert backend.should_run("pagerank", (graph,), {}) is not True
    graph.add_edge(0, 3)
    assert backend.should_run("pagerank", (graph,), {}) is not True


def test_what_costs_no_more_than_a_conversion_waits_for_one() -> None:
    name = "single_source_shortest_path_length"
    assert CLAIMS[name].pays_from is None
    graph = ring(CLAIMS[name].converted)
    assert "converted already" in str(backend.should_run(name, (graph, 0), {}))
    nx.pagerank(graph, backend="featgraph")
    assert backend.should_run(name, (graph, 0), {}) is True


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("pagerank", {"alpha": 1.5}, "alpha=1.5"),
        ("pagerank", {"max_iter": 0}, "max_iter"),
        ("pagerank", {"surprise": 1}, "surprise"),
        ("dispersion", {}, "does not serve dispersion"),
    ],
)
def test_can_run_returns_the_reason(
    name: str, arguments: dict[str, Any], reason: str
) -> None:
    answer = backend.can_run(name, (ring(),), arguments)
    assert isinstance(answer, str)
    assert reason in answer


def test_what_is_declined_is_answered_by_networkx(
    log: pytest.LogCaptureFixture,
) -> None:
    graph = ring(20_000)
    graph.add_edge(0, 3, weight="2.5")
    wanted = nx.pagerank(graph)
    with nx.config(backend_priority=["featgraph"]):
        assert nx.pagerank(graph) == wanted
    assert "values of 'weight' of type str: only numbers" in log.text
    with pytest.raises(NotImplementedError):
        nx.pagerank(graph, backend="featgraph")
    graph.remove_edge(0, 3)
    nx.pagerank(graph, backend="featgraph")
    # A failure that NetworkX notes in its cache is no converted graph.
    small = ring(CLAIMS["pagerank"].converted)
    small.add_edge(0, 3, weight="2.5")
    with pytest.raises(NotImplementedError):
        nx.pagerank(small, backend="featgraph")
    small_enough = len(small) + small.number_of_edges() < CLAIMS["pagerank"].pays_from
    should = backend.should_run("pagerank", (small,), {})
    assert (should is True) is not small_enough


def test_errors_are_those_of_networkx() -> None:
    graph = ring()
    graph.add_edge(0, 3)
    with pytest.raises(nx.PowerIterationFailedConvergence, match="within 2 iterations"):
        nx.pagerank(graph, max_iter=2, tol=1e-12, backend="featgraph")
    with pytest.raises(ZeroDivisionError):
        nx.pagerank(graph, personalization={0: 0}, backend="featgraph")
    with pytest.raises(NotImplementedError, match="'dispersion'"):
        nx.dispersion(nx.path_graph(3), backend="featgraph")
    assert nx.pagerank(nx.Graph(), backend="featgraph") == {}


def test_errors_of_featgraph_are_none_of_networkx() -> None:
    """A fault of this backend is seen, and not hidden by falling back."""
    assert not issubclass(fg.FeatGraphError, NotImplementedError)
