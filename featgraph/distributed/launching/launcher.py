"""``featgraph launch``: starts ranks, watches them, ends them, and begins anew (0056).

An agent on each host has the ranks as its children; the launcher has the agents. It is
one thread, which waits for what agents report, for signals, and for points in time.
"""

from __future__ import annotations

import sys
from contextlib import closing

from featgraph.distributed.launching.agents import Agents
from featgraph.distributed.launching.attempt import Attempt
from featgraph.distributed.launching.launch import Launch
from featgraph.distributed.launching.output import Output
from featgraph.distributed.launching.roll import Loss
from featgraph.distributed.launching.signals import Signals

__all__ = ["run"]


def run(launch: Launch) -> int:
    """Run a program on ranks to its end, and again behind failures.

    Returns
    -------
    int
        The exit status: 0 where all ranks ended with 0; 128 and the number of the
        signal that ended the launcher; else 1.

    Raises
    ------
    DistributedError
        Where nothing can be started on a host.
    """
    with (
        closing(Output(launch.size, launch.logs)) as output,
        Signals() as signals,
        closing(Agents(launch.hosts, launch.agents)) as agents,
    ):
        for number in range(launch.restarts + 1):
            lost = Attempt(launch, number, agents, signals, output).run()
            if signals.seen:
                return 128 + signals.seen[0]
            if lost is None:
                return 0
            again = number < launch.restarts and agents.are_there
            _report(lost, number + 1, launch.restarts, again)
            if not again:
                break
        return 1


def _report(lost: Loss, number: int, restarts: int, again: bool) -> None:
    text = f"featgraph: {lost}"
    if again:
        text += f"; all ranks are started again ({number} of {restarts})"
    print(text, file=sys.stderr, flush=True)
