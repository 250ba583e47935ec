"""Values that one lane of a vertex writes and others read, in any order of lanes."""

from __future__ import annotations

import pytest

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from tests.reference.test_uniform import STEPS, check
from tests.simt import lanes
from tests.simt.gpu import emulated_gpu


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("name", STEPS)
def test_agrees_with_the_interpreter(
    name: str, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "ORDER", order)
    with emulated_gpu():
        check(name, "cuda")
