"""A forecast is held to the byte counter, on 1 to 4 ranks, superstep by superstep."""

from __future__ import annotations

import json

import pytest

from featgraph.distributed import run_ranks
from tests.ranks.process_forecast import sent_and_foretold
from tests.ranks.test_processes import run_processes


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_send_what_was_foretold(ranks: int) -> None:
    found = run_ranks(ranks, sent_and_foretold)
    for forms in found:
        for form, sent, foretold in forms:
            assert sent == foretold, form
        # Fewer bytes, form by form: else nothing was compared.
        totals = [sum(sent) for _, sent, _ in forms]
        assert totals == sorted(totals, reverse=True)
        assert len(set(totals)) == (0 if ranks == 1 else 3)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_processes_that_share_memory_do(ranks: int) -> None:
    outputs, codes = run_processes(ranks, "tests.ranks.process_forecast")
    assert codes == [0] * ranks
    found = [json.loads(text) for text in outputs]
    assert found == run_ranks(ranks, sent_and_foretold)
    assert all(sent == foretold for forms in found for _, sent, foretold in forms)
