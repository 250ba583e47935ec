"""Generators on a GPU draw what the CPU draws."""

from __future__ import annotations

from typing import Any

import pytest

from featgraph.graph import generators

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", [0, 2**40 + 5])
def test_generators_draw_the_same_edges_everywhere(seed: int) -> None:
    makers: list[Any] = [
        lambda target: generators.rmat(17, 8, seed=seed, target=target),
        lambda target: generators.uniform(2**31 - 1, 10**6, seed=seed, target=target),
        lambda target: generators.grid(700, 900, target=target),
        lambda target: generators.rmat(
            9, 300, seed=seed, directed=False, duplicates="first", target=target
        ),
    ]
    for make in makers:
        here, there = make("cpu"), make("cuda")
        assert there._edges.is_given_on_gpu
        assert not here._edges.is_given_on_gpu
        assert here.digest == there.digest
