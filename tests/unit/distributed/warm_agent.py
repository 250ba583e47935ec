"""An agent that has imported all that ranks need, and forks them from itself.

``python -m tests.unit.distributed.warm_agent ENGINE`` stands for the command by which
another host runs one: importing PyTorch takes seconds, for each rank that is started
cold.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numba

from featgraph.base.interrupts import import_whole
from featgraph.ranks.engines import shared_memory
from featgraph.ranks.launching import agent
from tests.unit.distributed import faulty


def fork_rank(
    command: Sequence[str], environment: Mapping[str, str], given: Sequence[int]
) -> tuple[int, dict[str, Any]]:
    """Start a rank as `agent.start_process` does; its script is `faulty`."""
    pipes = {name: os.pipe() for name in ("out", "err")}
    process = os.fork()
    if process == 0:
        os.setsid()
        agent._control(agent._PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(pipes["out"][1], 1)
        os.dup2(pipes["err"][1], 2)
        keep = sorted({2, *given, 1 << 16})
        for low, high in itertools.pairwise(keep):
            os.closerange(low + 1, high)
        os.environ.clear()
        os.environ.update(environment)
        numba.config.reload_config()  # how many threads, before any is there
        _run(json.loads(command[-1]))
    for _, write in pipes.values():
        os.close(write)
    return process, {name: os.fdopen(read, "rb") for name, (read, _) in pipes.items()}


def _run(plan: dict[str, Any]) -> NoReturn:
    """Run the script, and end as Python does."""
    code = 0
    try:
        faulty.main(plan)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    needed = "torch.distributed" if sys.argv[1] == "gloo" else shared_memory.FLAGS
    import_whole(needed)
    agent.Agent(0, 1, start=fork_rank).run()
