"""On which host a rank is, by the launcher's variables or as it is declared."""

from __future__ import annotations

import socket

import pytest

from featgraph.base.errors import ArgumentError
from featgraph.distributed import NullEngine, run_ranks
from featgraph.ranks.engines.messages import hosts_of

NAMES = ("FEATGRAPH_HOST", "GROUP_RANK")


@pytest.mark.parametrize(
    ("variables", "host"),
    [
        ({}, socket.gethostname()),
        ({"GROUP_RANK": "3"}, "node 3"),
        ({"GROUP_RANK": "3", "FEATGRAPH_HOST": "node7"}, "node7"),
    ],
)
def test_a_launcher_names_its_host(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], host: str
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert NullEngine().host == host


def test_all_ranks_have_the_host_of_each() -> None:
    hosts = ["ü", "a", "ü", "b"]
    for found in run_ranks(4, hosts_of, hosts=hosts):
        assert found.tolist() == [0, 1, 0, 2]
    for found in run_ranks(2, hosts_of):
        assert found.tolist() == [0, 0]


def test_each_rank_has_a_host() -> None:
    with pytest.raises(ArgumentError, match="expected: 2, one a rank"):
        run_ranks(2, hosts_of, hosts=["a", "b", "c"])
