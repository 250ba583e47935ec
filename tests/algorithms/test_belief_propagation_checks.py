"""Refusals of belief propagation, and faults that its verifier finds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms.belief_propagation import (
    BeliefPropagationResult,
    belief_propagation,
    verify_belief_propagation,
)
from tests.algorithms.test_belief_propagation import path, potts, shares

CHAIN = {"graph": path(3), "unary": np.ones((3, 2)), "pairwise": np.ones((2, 2, 2))}
BAD = {
    "a directed graph": ({"graph": fg.Graph.from_edges([0], [1])}, "directed=False"),
    "unary too short": ({"unary": np.ones((2, 2))}, r"\(3, K\)"),
    "unary of one axis": ({"unary": np.ones(3)}, r"\(3, K\)"),
    "unary negative": ({"unary": [[1, 1], [1, -1], [1, 1]]}, "vertex 1"),
    "unary nan": ({"unary": [[1, 1], [1, 1], [np.nan, 1]]}, "vertex 2"),
    "nothing possible": ({"unary": [[1, 1], [0, 0], [1, 1]]}, "vertex 1"),
    "pairwise of another K": ({"pairwise": np.ones((3, 3))}, r"\(2, 2, 2\)"),
    "pairwise of another E": ({"pairwise": np.ones((3, 2, 2))}, r"\(2, 2, 2\)"),
    "pairwise infinite": ({"pairwise": np.full((2, 2), np.inf)}, "shared"),
    "pairwise negative": ({"pairwise": -np.ones((2, 2, 2))}, "edge 0"),
    "log of infinity": (
        {"unary": np.full((3, 2), np.inf), "is_log": True},
        "below inf",
    ),
    "mode": ({"mode": "sum"}, "'sum-product', 'max-product'"),
    "damping of one": ({"damping": 1.0}, "damping"),
    "evidence of no vertex": ({"evidence": {3: 0}}, "0 to 2"),
    "evidence of no state": ({"evidence": {1: 2}}, "vertex 1"),
    "evidence too short": ({"evidence": [0, 1]}, r"\(3,\)"),
    "evidence of floats": ({"evidence": [0.0, 1.0, -1.0]}, "integers"),
    "evidence below -1": ({"evidence": [0, -2, 1]}, "vertex 1"),
    "evidence impossible": (
        {"unary": [[1, 1], [1, 0], [1, 1]], "evidence": {1: 1}},
        "vertex 1: the observed state is impossible",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    changed, expected = BAD[case]
    with pytest.raises(fg.GraphInputError, match=expected):
        belief_propagation(**{**CHAIN, **changed})


def spoil(result: BeliefPropagationResult, **changed: Any) -> BeliefPropagationResult:
    return dataclasses.replace(result, **changed)


def test_the_verifier_finds_faults(target: str) -> None:
    model = (
        path(3),
        np.array([[1.0, 2], [1, 1], [3, 1]]),
        potts(2, 3)[None] * np.ones((2, 1, 1)),
    )
    result = belief_propagation(*model, target=target)
    verify_belief_propagation(*model, result)
    marginals = result.marginals.copy()
    marginals[1] = [0.6, 0.5]
    with pytest.raises(AssertionError, match="vertex 1: not a distribution"):
        verify_belief_propagation(*model, spoil(result, marginals=marginals))
    marginals[1] = [0.5, 0.5]
    with pytest.raises(AssertionError, match="vertex 1: not what messages say"):
        verify_belief_propagation(*model, spoil(result, marginals=marginals))
    messages = result.messages.copy()
    messages[3] += [0, 0.01]
    belief = np.log(model[1])
    belief[1] += messages[0] + messages[3]
    belief[0] += messages[2]
    belief[2] += messages[1]
    with pytest.raises(AssertionError, match="message"):
        verify_belief_propagation(
            *model, spoil(result, marginals=shares(belief), messages=messages)
        )
    with pytest.raises(AssertionError):
        verify_belief_propagation(*model, result, evidence={0: 0})


def test_what_was_given_stays_as_it_was(target: str) -> None:
    unary, pairwise = np.ones((2, 2)), potts(2, 2)
    belief_propagation(path(2), unary, pairwise, evidence={0: 1}, target=target)
    assert unary.tolist() == [[1, 1], [1, 1]]
    assert pairwise.tolist() == [[2, 1], [1, 2]]
