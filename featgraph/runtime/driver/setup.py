"""From what `iterate` is asked for to the agenda of a run, and the loops for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from featgraph.fold.plan.options import IN_PLACE
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.loops.agenda import Agenda
from featgraph.runtime.loops.host import HostLoop
from featgraph.runtime.loops.near_far import (
    NEAR_FAR,
    NearFar,
    Waiting,
    checked_near_far,
)
from featgraph.runtime.loops.pending import begin_pending, recall_pending
from featgraph.runtime.loops.protocol import SuperstepLoop, Watched
from featgraph.runtime.loops.replay import ReplayLoop
from featgraph.runtime.loops.step import (
    Step,
    check_any_order,
    check_dense,
    connect_steps,
)
from featgraph.runtime.loops.stopping import StoppingTest
from featgraph.runtime.loops.watching import make_watching
from featgraph.runtime.loops.worklist import WorklistLoop, pays_to_wait
from featgraph.runtime.superstep.exchange import exchange_of
from featgraph.runtime.superstep.foldmap import FoldMap

__all__ = ["Asked", "make_agenda", "make_loops"]

#: In the order in which they are asked: the last one runs whatever is due.
LOOPS: tuple[type[SuperstepLoop], ...] = (WorklistLoop, ReplayLoop, HostLoop)


@dataclass(eq=False)
class Asked:
    """What `iterate` was asked for.

    Attributes
    ----------
    active : object
        The vertices to begin with; None for what is left of an earlier call.
    by : str
        The option that calls a function behind each superstep; "" without one.
    log : object
        The result whose largest entry is logged; None for none.
    test : StoppingTest or None
        Ends the run when it is met.
    goes_on : bool
        Whether `then=` may continue where nothing is due.
    """

    foldmaps: list[FoldMap]
    state: State
    device: Device
    active: Any = None
    recompute_every: int | None = None
    near_far: NearFar | None = None
    by: str = ""
    log: Any = None
    test: StoppingTest | None = None
    goes_on: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def make_agenda(asked: Asked) -> tuple[Agenda, Watched]:
    """Return the agenda of a run, and what loops are told of it.

    Raises
    ------
    UserFunctionError, StateError, PlanError
        If functions, state and options do not fit.
    """
    state, device = asked.state, asked.device
    options, every = asked.options, asked.recompute_every
    steps = [Step(f, state, device, options, every) for f in asked.foldmaps]
    connect_steps(steps)
    is_dense = steps[0].change_driven is False
    if is_dense:  # every vertex is active in every superstep
        check_dense(steps, asked.active, asked.goes_on)
    is_asynchronous = steps[0].plan.options.asynchronous
    if is_asynchronous:
        check_any_order(steps, IN_PLACE)
    size = state.graph.vertex_count + state.graph.edge_count
    watching = make_watching(asked.log, asked.test, [step.plan for step in steps])
    is_shared = state.graph.ranks is not None
    by, looks_at_results = asked.by, False
    if watching.extremes and not by:
        by, looks_at_results = "watch=" if asked.test is None else "until=", True
    watched = Watched(
        device, size, by, looks_at_results, is_dense, is_shared=is_shared,
        stays_on_device=exchange_of(state.graph, device).stays_on_device,
    )  # fmt: skip
    waiting = _make_waiting(asked, steps, watched)
    for step in steps:
        step.may_be_incremental = not (waiting or is_asynchronous)
        step.spreads = waiting is None
        step.may_sweep_all &= waiting is None  # far vertices wait
    if asked.active is None:
        pending = [recall_pending(f, state, device) for f in asked.foldmaps]
    else:
        holder = exchange_of(state.graph, device).holder
        pending = begin_pending(asked.active, state, holder, len(asked.foldmaps))
    if waiting is not None:
        watched = replace(watched, key=waiting.key)
    return Agenda(steps, pending, waiting, watching), watched


def _make_waiting(asked: Asked, steps: list[Step], watched: Watched) -> Waiting | None:
    """Return what tells near vertices from far ones, if any are to wait."""
    near_far = checked_near_far(asked.near_far)
    if near_far is None:
        return None
    plans = [step.plan for step in steps]
    in_a_loop = not WorklistLoop.refuses(plans, replace(watched, key=near_far.key))
    if watched.device.name != "cpu":
        in_a_loop = in_a_loop and near_far.optional and pays_to_wait(steps[0])
    may_wait = in_a_loop and not watched.is_shared
    if near_far.optional and (not may_wait or steps[0].change_driven is True):
        return None
    check_any_order(steps, NEAR_FAR)
    bound = steps[0].plain.bound
    return Waiting(near_far, plans, asked.state, bound.exchange, in_a_loop)


def make_loops(
    agenda: Agenda, watched: Watched
) -> tuple[list[SuperstepLoop], dict[str, str]]:
    """Return the loops that can run supersteps, and why each other cannot, by name."""
    plans = [step.plan for step in agenda.steps]
    refused = {loop.name: loop.refuses(plans, watched) for loop in LOOPS}
    loops = [loop(agenda) for loop in LOOPS if not refused[loop.name]]
    return loops, {name: why for name, why in refused.items() if why}
