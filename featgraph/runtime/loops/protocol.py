"""What a way to run many supersteps must do (docs/design/0033-superstep-loops.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from featgraph.base.dataclass import dataclass
from featgraph.fold.plan.plan import FoldPlan
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import Agenda

__all__ = ["SHARED", "QueueRun", "SuperstepLoop", "Watched"]

#: Why only the host runs supersteps of several ranks.
SHARED = "other ranks are told behind each superstep"


@dataclass(eq=False)
class Watched:
    """What a loop is told of a run, beside the plans of its foldmaps.

    Attributes
    ----------
    device : Device
        Where it runs.
    size : int
        Vertices and edges of its graph together.
    by : str
        The option of `iterate` that looks at each superstep; "" without one.
    looks_at_results : bool
        Whether that is about results of reduces, which a device may look at.
    is_dense : bool
        Whether every vertex is active in every superstep.
    key : str
        The property that tells near vertices from far ones; "" where none wait.
    is_shared : bool
        Whether other ranks run it, too, and are told behind each superstep.
    stays_on_device : bool
        Whether they are told without the host.
    is_timed : bool
        Whether the host asks behind each superstep what ranks have taken.
    sets : str
        The option that records the set of each superstep, or gives it; "" without one.
    are_sets_here : bool
        Whether these stay on the device.
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
    """What a run of supersteps has left.

    Attributes
    ----------
    counts : list of int
        Vertices committed by each superstep.
    seconds : list of float
        The time of each.
    thresholds : list of float
        The threshold of each, if some vertices wait.
    words : words
        What is due next.
    size : int
        How many vertices that has.
    edges : int
        Edges that were gone along.
    stages : int
        How often a stage has run between them (0098).
    has_ended : bool
        Whether the last one has committed nothing.
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
    """A way to run supersteps of a run, made for one `Agenda`.

    The result is the same whichever runs: values, what is due behind each superstep,
    and how many vertices it has committed.
    """

    name: ClassVar[str]

    def __init__(self, agenda: Agenda) -> None: ...

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return why it cannot run any superstep of a run; "" if it can."""

    def run(self, run: Run, most: int) -> bool | None:
        """Run supersteps, up to `most`, and record them.

        Returns
        -------
        bool or None
            False if nothing is due; None if that is to be run in another way now.
        """
