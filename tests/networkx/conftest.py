"""Fixtures of the backend's tests: it is installed, and cache warnings are off."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import networkx as nx
import pytest

import featgraph as fg


@pytest.fixture(autouse=True)
def networkx_settings() -> Iterator[None]:
    """Ignore the warning of a cached graph, and restore NetworkX's settings."""
    assert "featgraph" in nx.utils.backends.backends, (
        "featgraph's entry points are not installed: pip install -e . again"
    )
    with nx.config(warnings_to_ignore={"cache"}):
        yield


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture the log of NetworkX's dispatching: the backend of each call, and why."""
    caplog.set_level(logging.DEBUG, logger="networkx.utils.backends")
    return caplog


@pytest.fixture
def run_on(target: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the target the default of featgraph."""
    monkeypatch.setattr(fg.config, "target", target)
    return target
