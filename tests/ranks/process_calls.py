"""Runs the algorithms of `test_processes` on this rank, and prints what they answer.

``python -m tests.ranks.process_calls``, with a launcher's variables.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import featgraph as fg
from tests.algorithms import test_answers
from tests.algorithms.test_answers import CALLS, GRAPH
from tests.ranks.test_calls import DERIVED, RUNS, answers, called


def prepare(put: Callable[[Any, str, Any], None]) -> None:
    """Have calls derive what they need of the whole graph, and distribute it then."""
    whole = {derive: getattr(test_answers, derive)(GRAPH) for derive in DERIVED}
    given = {n: getattr(test_answers, n)(GRAPH) for n in ("seeds", "sources")}
    for name, values in given.items():
        put(test_answers, name, lambda _, v=values: v)
    for name, made in whole.items():
        put(test_answers, name, lambda _, g=made: fg.distribute(g))


def answer_all(names: list[str]) -> dict[str, dict[str, str]]:
    """Return a digest of each answer, by algorithm and by what it is called."""
    return {
        name: {
            key: digest(value)
            for key, value in answers(
                CALLS[name](fg.distribute(GRAPH), target="cpu")
            ).items()
        }
        for name in names
    }


def digest(value: Any) -> str:
    """Return a digest that is equal for bitwise equal answers."""
    array = np.ascontiguousarray(value)
    data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    content = f"{array.dtype}{array.shape}".encode() + data
    return hashlib.sha256(content).hexdigest()


def names_called() -> list[str]:
    """Return the algorithms that are called: of those that run, the sample."""
    return [name for name in called() if name in RUNS]


if __name__ == "__main__":
    warnings.simplefilter("ignore", fg.ConvergenceWarning)
    prepare(setattr)
    fg.distributed.init(timeout=60)
    print(json.dumps(answer_all(sys.argv[1:])))
    assert "torch" not in sys.modules
