"""A program of ranks, one of which fails at a given place, for tests of the launcher.

Its plan has the engine of ranks, and the fault of each start with its place. Ranks
print lines of JSON.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

import featgraph as fg
from featgraph.base.activity import ACTIVITY, Activity
from featgraph.runtime.checkpoints.resumable_call import Writer

SUPERSTEPS = 12
#: Faults of a rank.
FAULTS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "memory": lambda: os._exit(137),  # as a batch system ends a process out of memory
    "computes": lambda: time.sleep(1000),
}


def main(plan: dict[str, Any]) -> None:
    """Run the program on this rank."""
    # Where a rank fails is a phase, and recordings go through all of them at once.
    fg.config.replay = False
    engine: Any = fg.distributed.init(timeout=plan["timeout"], engine=plan["engine"])
    attempt = fg.distributed.restart_count()
    if attempt < len(plan["faults"]):
        fault = plan["faults"][attempt]
        if fault["rank"] == engine.rank:
            arm(fault, engine, attempt)
    rng = np.random.default_rng(plan["seed"])
    edges = rng.integers(0, 500, (2, 3000))
    whole = fg.Graph.from_edges(*edges, vertex_count=500)
    graph = fg.distribute(whole)
    try:
        if attempt < len(plan["faults"]) and "bytes" in plan["faults"][attempt]:
            message = np.zeros(plan["faults"][attempt]["bytes"], np.uint8)
            engine.all_gather(message, about="a large message")
        found = run(graph, checkpoint=plan["folder"], every=0.0)
    except fg.WorkerLostError as error:
        names = ("rank", "host", "superstep", "phase", "checkpoint")
        report(engine, "saw", attempt, **{n: getattr(error, n) for n in names})
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:500]
        report(engine, "raised", attempt, text=text)
        raise
    digests = [found, run(graph), run(whole)]
    report(engine, "digests", attempt, by_engine=type(engine).__name__, digests=digests)


@fg.gather(into="around", combine="sum")
def of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take a neighbor's value."""
    return d.x[u]


@fg.vertex
def mix(f, v, d):  # type: ignore[no-untyped-def]
    """Move towards the neighbors' values; it never ends."""
    d.x_next[v] = 0.5 * d.x[v] + 0.01 * d.around[v] + 0.1
    return True


@fg.reduce(into="largest", combine="max")
def largest_value(f, v, d):  # type: ignore[no-untyped-def]
    """Find the largest value: a phase of its own, with an exchange."""
    return d.x_next[v]


#: Its results have the same bits on any number of ranks.
STEP = fg.foldmap(of_neighbors, mix, largest_value)


def run(graph: fg.Graph, **options: Any) -> str:
    """Run some supersteps; return a digest of the results."""
    first = np.linspace(0, 1, graph.vertex_count)
    state = fg.State(graph, x=fg.vertex_property(first, iterated=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        fg.iterate(STEP, state, max_supersteps=SUPERSTEPS, target="cpu", **options)
    values = state["x"].tobytes() + np.asarray(state["largest"]).tobytes()
    return hashlib.sha256(values).hexdigest()


def report(engine: Any, what: str, attempt: int, **fields: Any) -> None:
    line = {"what": what, "attempt": attempt, "by": engine.rank}
    print(json.dumps(line | fields), flush=True)


class Watched(Activity):
    """An activity that calls a function when a phase begins."""

    watch: ClassVar[Callable[[int | None, str], None] | None] = None

    @property
    def phase(self) -> str:  # type: ignore[override]
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name
        if self.page is not None and self.superstep is not None:
            self.show()
        if self.watch is not None:
            type(self).watch(self.superstep, name)  # type: ignore[misc]


def arm(fault: dict[str, Any], engine: Any, attempt: int) -> None:
    """Have the rank fail in a superstep and phase, or in the next call behind it.

    That call is an exchange ("exchange"), one in which a single other rank has been
    reached ("message"), or a write ("write"). A rank that fails with a large message
    ("bytes") does so when the others have begun to send theirs.
    """

    def fail() -> None:
        place = {"superstep": ACTIVITY.superstep, "phase": ACTIVITY.phase}
        report(engine, "fault", attempt, **fault | place)
        if fault["kind"] == "raise":
            raise ValueError("row 7 is bad")
        FAULTS[fault["kind"]]()

    def hook(object_: Any, name: str, is_due: Callable[..., bool]) -> None:
        whole = getattr(object_, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_due(*args):
                setattr(object_, name, whole)
                fail()
            return whole(*args, **kwargs)

        setattr(object_, name, call)

    def next_one(*_: Any) -> bool:
        return True

    sends = (getattr(engine, "_peers", None), "publish")
    if sends[0] is None:
        sends = (sys.modules["torch.distributed"], "isend")

    def watch(superstep: int | None, phase: str) -> None:
        if superstep == fault["superstep"] and phase.startswith(f"{fault['phase']} "):
            Watched.watch = None
            if fault["place"] == "phase":
                fail()
            elif fault["place"] == "exchange":
                hook(engine, "_require_usable", next_one)
            elif fault["place"] == "message":
                sent = itertools.count()
                hook(*sends, lambda *_: next(sent) > 0 or engine.size == 2)
            else:
                hook(Writer, "_write", next_one)

    if "bytes" in fault:
        hook(*sends, lambda part, *_: getattr(part, "nbytes", 0) >= fault["bytes"])
    else:
        name, Watched.watch = ACTIVITY.phase, watch
        ACTIVITY.__class__ = Watched  # type: ignore[assignment]
        ACTIVITY.phase = name
