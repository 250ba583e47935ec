"""Factor graphs: construction, evidence, the pairwise form."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg

RAIN = {"rain": ["no", "yes"], "wet": ["no", "some", "yes"]}
TABLE = [[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]


def model() -> fg.FactorGraph:
    return fg.FactorGraph(RAIN, [(["rain"], [0.8, 0.2]), (["rain", "wet"], TABLE)])


def test_variables_and_states_have_numbers_and_names() -> None:
    m = model()
    assert m.names == ("rain", "wet")
    assert m.cardinalities.tolist() == [2, 3]
    assert m.states["wet"] == ("no", "some", "yes")
    assert (m.variable("wet"), m.variable(1), m.variable(np.int64(0))) == (1, 1, 0)
    assert (m.state("wet", "some"), m.state(1, 2)) == (1, 2)
    assert [factor.scope for factor in m.factors] == [(0,), (0, 1)]
    assert repr(m).startswith("FactorGraph(2 variables of up to 3 states, 2 factors")


def test_tables_are_copied_and_cannot_be_changed() -> None:
    table = np.array([0.8, 0.2])
    m = fg.FactorGraph({"x": 2}, [(["x"], table)])
    table[0] = 7
    assert m.factors[0].table.tolist() == [0.8, 0.2]
    with pytest.raises(ValueError, match="read-only"):
        m.factors[0].table[0] = 1


def test_evidence_cuts_tables_down() -> None:
    seen = model().given({"wet": "yes"})
    assert seen.states == {"rain": ("no", "yes"), "wet": ("yes",)}
    assert [f.scope for f in seen.factors] == [(0,), (0,)]
    assert seen.factors[1].table.tolist() == [0.0, 0.5]
    assert seen.unary().tolist() == [[0, 1], [1, 0]]


BAD: dict[str, tuple[Any, str]] = {
    "no variables": (lambda: fg.FactorGraph({}, []), "has variables"),
    "no states": (lambda: fg.FactorGraph({"x": 0}, []), "variable 'x'"),
    "two states alike": (lambda: fg.FactorGraph({"x": ["a", "a"]}, []), "different"),
    "a string of states": (lambda: fg.FactorGraph({"x": "ab"}, []), "variable 'x'"),
    "a name that is none": (lambda: fg.FactorGraph({3: 2}, []), "names"),
    "unknown in scope": (lambda: fg.FactorGraph(RAIN, [(["sun"], [1])]), "'sun'"),
    "a number too high": (lambda: fg.FactorGraph(RAIN, [([2], [1])]), "0 to 1"),
    "twice in a scope": (
        lambda: fg.FactorGraph(RAIN, [([0, "rain"], np.ones((2, 2)))]),
        "not a scope",
    ),
    "wrong shape": (
        lambda: fg.FactorGraph(RAIN, [(["wet", "rain"], TABLE)]),
        r"\(3, 2\)",
    ),
    "ragged": (lambda: fg.FactorGraph(RAIN, [([0], [[1], [1, 2]])]), "factor 0"),
    "negative": (lambda: fg.FactorGraph(RAIN, [([0], [1, -1])]), r"entry \[1\]"),
    "nan": (lambda: fg.FactorGraph(RAIN, [([0], [np.nan, 1])]), r"entry \[0\]"),
    "infinite": (lambda: fg.FactorGraph(RAIN, [([0], [np.inf, 1])]), "finite"),
    "unknown state": (lambda: model().given({"wet": "dry"}), "no, some, yes"),
    "state too high": (lambda: model().given({"wet": 3}), "0 to 2"),
    "unknown variable": (lambda: model().given({"sun": 1}), "'sun'"),
    "seen in two states": (lambda: model().given({"wet": 0, 1: 2}), "two states"),
    "impossible evidence": (
        lambda: model().given({"rain": "no", "wet": "yes"}),
        "factor 1 over rain, wet: the evidence is impossible",
    ),
    "a table of zeros": (
        lambda: fg.FactorGraph(RAIN, [([0], [0, 0])]).given({}),
        "nothing is possible",
    ),
    "three in a pair": (
        lambda: fg.FactorGraph(
            {"x": 2, "y": 2, "z": 2}, [([0, 1, 2], np.ones((2, 2, 2)))]
        ).pairwise(),
        "3 variables",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    make, expected = BAD[case]
    with pytest.raises(fg.GraphInputError, match=expected):
        make()


@st.composite
def pair_models(draw: st.DrawFn) -> fg.FactorGraph:
    """Small models of tables of one and two variables, over one pair often several."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    entries = st.integers(0, 4)
    factors: list[tuple[list[int], Any]] = []
    for _ in range(draw(st.integers(0, 8))):
        scope = draw(
            st.lists(
                st.integers(0, len(counts) - 1), unique=True, max_size=2, min_size=1
            )
        )
        shape = [counts[v] for v in scope]
        size = int(np.prod(shape))
        values = draw(st.lists(entries, min_size=size, max_size=size))
        factors.append((scope, np.reshape(values, shape)))
    return fg.FactorGraph({f"x{i}": n for i, n in enumerate(counts)}, factors)


@given(pair_models())
def test_the_pairwise_form_is_the_same_product(m: fg.FactorGraph) -> None:
    graph, potentials = m.pairwise()
    unary = m.unary()
    assert len({*zip(graph.sources, graph.targets, strict=True)}) == len(potentials)
    ours, theirs = [], []
    for states in itertools.product(*(range(n) for n in m.cardinalities)):
        ours.append(np.exp(m.log_score(states)))
        x = np.array(states)
        pairs = potentials[
            np.arange(len(potentials)), x[graph.sources], x[graph.targets]
        ]
        theirs.append(unary[np.arange(len(x)), x].prod() * pairs.prod())
    total, other = np.sum(ours), np.sum(theirs)
    assert (total > 0) == (other > 0)
    if total > 0:
        assert np.allclose(np.array(ours) / total, np.array(theirs) / other, atol=1e-12)
    behind = np.arange(unary.shape[1]) >= m.cardinalities[:, None]
    assert not unary[behind].any()
