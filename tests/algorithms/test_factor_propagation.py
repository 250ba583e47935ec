"""Belief propagation on factor graphs against enumeration and published marginals."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.factor_propagation import factor_propagation
from tests.algorithms.enumeration import joint_of, marginals_of

Array = npt.NDArray[Any]

MODES = ("sum-product", "max-product")

# Eight features everywhere: each number of features is a kernel to compile.
EIGHT = {"dtype": np.float64, "epsilon": 1e-11}


@st.composite
def factor_trees(draw: st.DrawFn) -> fg.FactorGraph:
    """Trees of tables of up to three variables with two states; some entries zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scopes = [(0, 1, 2)]
    count = 3
    for _ in range(draw(st.integers(0, 4))):
        arity = draw(st.integers(1, 3))
        old = draw(st.integers(0, count - 1))
        scope = [old, *range(count, count + arity - 1)]
        scopes.append(tuple(rng.permutation(scope).tolist()))
        count += arity - 1
    density = draw(st.sampled_from([1.0, 0.75]))
    factors = []
    for scope in scopes:
        shape = (2,) * len(scope)
        table = rng.uniform(0.1, 1, shape) * (rng.random(shape) < density)
        table.flat[0] = 0.5
        factors.append((scope, table))
    return fg.FactorGraph({f"x{v}": 2 for v in range(count)}, factors)


def joint(model: fg.FactorGraph) -> Array:
    factors = [(factor.scope, factor.table) for factor in model.factors]
    return joint_of(model.cardinalities.tolist(), factors)


@settings(deadline=None)
@given(factor_trees(), st.sampled_from(MODES))
def test_beliefs_are_exact_on_trees_of_tables(model: fg.FactorGraph, mode: str) -> None:
    result = factor_propagation(model, mode=mode, form="factors", **EIGHT, target="cpu")
    assert result.converged
    whole = joint(model)
    for name, exact in zip(model.names, marginals_of(whole, mode), strict=True):
        assert np.abs(result.marginals[name] - exact).max() <= 1e-8
    best = np.sort(whole.ravel())[-2:]
    if mode == "max-product" and best[0] < best[1] * (1 - 1e-9):
        chosen = [model.state(v, result.states[v]) for v in model.names]
        assert whole[tuple(chosen)] == whole.max()
        assert result.log_score == pytest.approx(model.log_score(chosen))


def loopy() -> fg.FactorGraph:
    """Three variables in a cycle of tables of two."""
    rng = np.random.default_rng(5)
    counts = {"a": 2, "b": 2, "c": 4}
    pairs = ("ab", "bc", "ca")
    tables = [
        (tuple(pair), rng.uniform(0.5, 1, [counts[name] for name in pair]))
        for pair in pairs
    ]
    return fg.FactorGraph(counts, [*tables, ("a", [1, 2])])


def test_both_forms_have_the_same_fixpoint(target: str) -> None:
    options = {**EIGHT, "epsilon": 1e-6, "damping": 0.5, "target": target}
    edges = factor_propagation(loopy(), form="pairwise", **options)
    vertices = factor_propagation(loopy(), form="factors", **options)
    assert edges.converged
    assert vertices.converged
    assert vertices.supersteps > edges.supersteps
    for name in "abc":
        difference = edges.marginals[name] - vertices.marginals[name]
        assert np.abs(difference).max() < 1e-4
    assert edges.states == vertices.states


WEATHER = {
    "rain": ["no", "yes"],
    "city": ["Delft"],
    "wet": ["no", "damp", "some", "yes"],
}


def weather() -> fg.FactorGraph:
    wet = np.array([[[0.7, 0.2, 0.1, 0]], [[0, 0.1, 0.4, 0.5]]])
    return fg.FactorGraph(
        WEATHER, [(["rain"], [0.7, 0.3]), (["rain", "city", "wet"], wet)]
    )


def test_evidence_goes_in_and_marginals_come_out_by_name(target: str) -> None:
    result = factor_propagation(
        weather(), evidence={"wet": "some"}, **EIGHT, target=target
    )
    share = 0.3 * 0.4 / (0.7 * 0.1 + 0.3 * 0.4)
    assert result.marginals["rain"] == pytest.approx([1 - share, share], abs=1e-9)
    assert result.marginals["city"].tolist() == [1]
    assert result.marginals["wet"].tolist() == [0, 0, 1, 0]
    assert result.states == {"rain": "yes", "city": "Delft", "wet": "some"}
    assert result.log_score == pytest.approx(np.log(0.3 * 0.4))
    everything = factor_propagation(
        weather(), evidence={"rain": 1, "city": 0, "wet": 3}, target=target
    )
    assert everything.marginals["wet"].tolist() == [0, 0, 0, 1]
    assert everything.converged


def test_a_table_is_split_by_its_own_variables_only(target: str) -> None:
    """Variables of other numbers of states than the table's: nothing is mixed up."""
    result = factor_propagation(weather(), form="factors", **EIGHT, target=target)
    for name, exact in zip(WEATHER, marginals_of(joint(weather())), strict=True):
        assert result.marginals[name] == pytest.approx(exact, abs=1e-5)


def contradiction() -> fg.FactorGraph:
    same, differ = np.eye(2), 1 - np.eye(2)
    scopes = [("a", "b"), ("b", "c"), ("a", "c")]
    tables = [same, same, differ]
    return fg.FactorGraph(
        {name: ["n", "y"] for name in "abc"}, list(zip(scopes, tables, strict=True))
    )


@pytest.mark.parametrize("form", ["pairwise", "factors"])
def test_contradicting_evidence_names_the_variable(form: str, target: str) -> None:
    chain = fg.FactorGraph(
        {name: ["n", "y"] for name in "abcd"},
        [((u, v), 1 - np.eye(2)) for u, v in ("ab", "bc", "cd")],
    )
    expected = r"(variable '[bc]'|the table over b, c): .*contradicts itself"
    with pytest.raises(fg.GraphInputError, match=expected):
        factor_propagation(
            chain, evidence={"a": "y", "d": "y"}, form=form, target=target
        )
    with pytest.raises(fg.GraphInputError, match=r"factor 0 over a, b: .*impossible"):
        factor_propagation(chain, evidence={"a": "y", "b": "y"}, target=target)
    # On a cycle it need not be seen: every edge by itself can be satisfied.
    assert factor_propagation(contradiction(), form="pairwise", target=target).converged


BAD = {
    "form": ({"form": "both"}, "'auto', 'pairwise', 'factors'"),
    "mode": ({"mode": "max"}, "'sum-product', 'max-product'"),
    "damping": ({"damping": -0.1}, "damping"),
    "three variables": ({"form": "pairwise"}, "3 variables"),
    "unknown": ({"evidence": {"sun": 1}}, "'sun'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    options, expected = BAD[case]
    with pytest.raises(fg.GraphInputError, match=expected):
        factor_propagation(weather(), **options)


def test_a_table_that_is_too_large_is_named() -> None:
    names = {f"x{v}": 2 for v in range(13)}
    model = fg.FactorGraph(names, [(list(names), np.ones((2,) * 13))])
    with pytest.raises(fg.GraphInputError, match=r"x0, x1.*too many entries") as error:
        factor_propagation(model)
    assert error.value.got == 8192


def published(folder: Path, name: str) -> dict[str, dict[str, float]]:
    """Return the exact marginals kept beside a network."""
    found: dict[str, dict[str, float]] = {}
    with gzip.open(folder / f"{name}.marginals.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            states = found.setdefault(row["variable"], {})
            states[row["state"]] = float(row["probability"])
    return found


# Chains and trees of tables are exact; Asia has one cycle (lung, bronc, smoke, dysp).
@pytest.mark.parametrize(
    ("name", "most"), [("asia", 0.02), ("cancer", 1e-6), ("earthquake", 1e-6)]
)
def test_networks_have_their_published_marginals(
    name: str, most: float, target: str, data_dir: Path
) -> None:
    model = fg.read_bif(data_dir / "bn" / f"{name}.bif.gz")
    result = factor_propagation(model, **EIGHT, target=target)
    assert result.converged
    for variable, states in published(data_dir / "bn", name).items():
        found = dict(
            zip(model.states[variable], result.marginals[variable], strict=True)
        )
        for state, probability in states.items():
            assert found[state] == pytest.approx(probability, abs=most)


def test_without_evidence_parents_count_as_independent(
    target: str, data_dir: Path
) -> None:
    """Children without evidence have no influence: the rest has a closed form."""
    model = fg.read_bif(data_dir / "bn" / "asia.bif.gz")
    result = factor_propagation(model, **EIGHT, target=target)
    for factor in model.factors:
        child, *parents = (result.marginals[model.names[v]] for v in factor.scope)
        expected = factor.table
        for row in reversed(parents):
            expected = expected @ row
        assert child == pytest.approx(expected, abs=1e-9)


def test_evidence_of_a_competition_model(target: str, data_dir: Path) -> None:
    folder = data_dir / "uai2014"
    model = fg.read_uai(folder / "Promedus_24.uai.gz")
    evidence = fg.read_uai_evidence(folder / "Promedus_24.uai.evid.gz")
    exact = fg.read_uai_marginals(folder / "Promedus_24.uai.MAR.gz")
    result = factor_propagation(model, evidence=evidence, **EIGHT, target=target)
    assert result.converged
    for variable, state in evidence.items():
        assert result.marginals[str(variable)][state] == 1
    errors = [
        np.abs(result.marginals[str(variable)] - row).max()
        for variable, row in enumerate(exact)
    ]
    assert max(errors) < 0.05
