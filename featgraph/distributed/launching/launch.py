"""What ``featgraph launch`` starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from featgraph.distributed.launching.hosts import Host

__all__ = ["Launch"]


@dataclass(frozen=True)
class Launch:
    """What is started.

    Attributes
    ----------
    command : sequence of str
        The program of each rank.
    hosts : sequence of Host
    agents : sequence of list of str
        The command that runs the agent of each host.
    restarts : int
        How often all ranks are started again behind a failure.
    grace : float
        Seconds that survivors have to end by themselves.
    gpus : str
        "own": each rank has a GPU of its own, or nothing runs; "auto": where there are
        any.
    logs : Path or None
        See `Output`.
    """

    command: Sequence[str]
    hosts: Sequence[Host]
    agents: Sequence[list[str]]
    restarts: int = 0
    grace: float = 5.0
    gpus: str = "auto"
    logs: Path | None = None

    @property
    def size(self) -> int:
        """How many ranks."""
        return sum(host.ranks for host in self.hosts)
