"""The interface of loops, which run many supersteps (0033)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from featgraph.base.dataclass import dataclass
from featgraph.fold.plan.plan import FoldPlan
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import RunState

__all__ = ["SHARED", "QueueRun", "SuperstepLoop", "Watched"]

#: Reason why only the host runs supersteps of several ranks.
SHARED = "other ranks need an exchange after each superstep"


@dataclass(eq=False)
class Watched:
    """Properties of a run that a loop has to support, besides its plans.

    Attributes
    ----------
    device : Device
    size : int
        Vertices and edges of its graph together.
    by : str
        The option of `iterate` that inspects each superstep; "" without one.
    looks_at_results : bool
        Whether that inspects results of reduces only, which a device can do.
    is_dense : bool
        Whether every vertex is active in every superstep.
    key : str
        The property that separates near vertices from far ones; "" where none wait.
    is_shared : bool
        Whether other ranks take part, with an exchange after each superstep.
    stays_on_device : bool
        Whether that exchange needs no host.
    is_timed : bool
        Whether the host collects the times of ranks after each superstep.
    sets : str
        The option that records or sets the vertices of each superstep; "" without one.
    are_sets_here : bool
        Whether these sets stay on the device.
    """

    device: Device
    size: int
    by: str = ""
    looks_at_results: bool = False
    is_dense: bool = False
    key: str = ""
    is_shared: bool = False
    stays_on_device: bool = True
    is_timed: bool = False
    sets: str = ""
    are_sets_here: bool = False


@dataclass
class QueueRun:
    """Results of a run of supersteps by a worklist loop.

    Attributes
    ----------
    counts : list of int
        Vertices committed by each superstep.
    seconds : list of float
        The time of each superstep.
    thresholds : list of float
        The threshold of each superstep, if some vertices wait.
    words : words
        The set that is due next.
    size : int
        Its number of vertices.
    edges : int
        Number of edges that were followed.
    stages : int
        Number of stages that ran in between (0098).
    has_ended : bool
        Whether the last superstep committed nothing.
    """

    counts: list[int]
    seconds: list[float]
    thresholds: list[float]
    words: Any
    size: int
    edges: int
    stages: int = 0
    has_ended: bool = False


class SuperstepLoop(Protocol):
    """A way to run supersteps of a run, made for one `RunState`.

    All loops give the same results: values, vertices due after each superstep, and
    numbers of committed vertices.
    """

    name: ClassVar[str]

    def __init__(self, run_state: RunState) -> None: ...

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return why the loop cannot run any superstep of a run; "" if it can."""

    def run(self, run: Run, most: int) -> bool | None:
        """Run up to `most` supersteps, and record them.

        Returns
        -------
        bool or None
            False if nothing is due; None if another loop must run the next superstep.
        """
