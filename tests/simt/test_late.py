"""Replays that go on though the host would patch by now, or recompute."""

from __future__ import annotations

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.runtime.loops import foldmap_run, replay
from tests.simt.gpu import Gpu
from tests.simt.test_replay import VERTICES, gpu, shares, shares_state

__all__ = ["gpu"]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("most_active", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("late", [0, np.inf])
def test_what_is_kept_is_right_however_late(
    late: float, most_active: float, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others become active in a second call, while few are in the first."""
    monkeypatch.setattr(foldmap_run, "_may_pay", lambda *_: True)
    monkeypatch.setattr(foldmap_run, "MOST_ACTIVE", most_active)
    monkeypatch.setattr(replay, "_MOST_LATE", late)
    found = []
    for replays in (False, True):
        state, works = shares_state(), []
        with monkeypatch.context() as patch:
            patch.setattr(fg.config, "replay", replays)
            for active in (None, [3], range(VERTICES)):
                done = fg.iterate(shares, state, active=active, target="cuda")
                works += done.aggregates
        found.append((state["share"], set(works)))
    (meant, kinds), (share, _) = found
    assert {"recomputed", "patched"} <= kinds
    assert any(r.launched for r in gpu.recordings)
    # Changes of 1e-4 or more are announced.
    np.testing.assert_allclose(share, meant, atol=1e-3)
