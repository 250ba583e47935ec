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
    """Take what NetworkX's dispatching says, which backend ran what and why not."""
    caplog.set_level(logging.DEBUG, logger="networkx.utils.backends")
    return caplog


@pytest.fixture
def run_on(target: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make featgraph run on the target where none is asked for."""
    monkeypatch.setattr(fg.config, "target", target)
    return target
