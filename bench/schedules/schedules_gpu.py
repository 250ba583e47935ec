"""Schedules beside each other: the device's time of supersteps.

``supersteps``: the eight programs of Khorasani et al. 2015, Table IV, with each
schedule. The device's work on the supersteps of a run is timed
(`bench.schedules.device_time`), all contenders warmed before any is timed, in an order
that changes from trial to trial. Kernels are compiled before by several processes.
At the end stands how much faster ``warp_segmentation`` is than the best and the worst
``virtual_warp`` and than ``lanes``, and how far ``auto`` is behind the best of all.

``shares``: one pushed superstep from 0.1, 1, 10 and 100% of the vertices, as it is and
with ``balanced_push``. ``efficiency``: warp execution efficiency by Nsight Compute.

Answers are compared with those of ``lanes`` outside the timed region.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import NamedGraph, make_graph
from bench.record import Recorder
from bench.schedules.compile_ahead import Task, compile_ahead
from bench.schedules.device_time import Stopwatch, timed_supersteps
from bench.schedules.efficiency import measure_efficiency
from bench.schedules.eight import PROGRAMS, Captured, Inputs, capture
from bench.timing import Budget, time_call
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.superstep.frontier import Frontier

__all__ = ["ACTIVE", "SCHEDULES", "SHARES", "add_arguments", "run", "summary"]

SEED = 20261123
DEFAULTS = {
    # Small ones first.
    "graph": ["soc-Epinions1-directed", "web-NotreDame-directed", "delaunay20",
              "road1000", "uniform-20-16", "rmat45-20-16", "kron21"],
    "pushed": ["kron21", "grid4096"],
    "profiled": ["soc-Epinions1-directed", "rmat45-20-16"],
    "programs": list(PROGRAMS),
    "k": [1, 4, 8, 32],
    "repeat": 5,
    "budget": 300.0,
    "most": 200,
    "processes": 14,
    "parts": ["supersteps"],
}  # fmt: skip
PARTS = ("supersteps", "shares", "efficiency")
SCHEDULES: dict[str, dict[str, Any]] = {
    "lanes": {"schedule": "lanes"},
    "auto": {},
    "warp_segmentation": {"schedule": "warp_segmentation"},
    # More edges of a lane on the way than any schedule with lanes has.
    **{
        f"lanes x {n}": {"schedule": "lanes", "_mapping": {"unroll": n}} for n in (2, 4)
    },
    **{
        f"virtual_warp {n}": {"schedule": "virtual_warp", "lanes_per_vertex": n}
        for n in (2, 4, 8, 16, 32)
    },
}
SHARES = {"push": {"schedule": "lanes"}, "shared": {"schedule": "balanced_push"}}
#: Shares of the vertices that push.
ACTIVE = (0.001, 0.01, 0.1, 1.0)
#: Supersteps of a trial of a push.
BATCH = 10
#: Values that no order of additions changes by more, of the largest.
TOLERANCE = 1e-4
#: The share of the budget for compiling ahead.
COMPILING = 0.4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS))
    parser.add_argument("--pushed", nargs="+", help="graphs of the part `shares`")
    parser.add_argument("--profiled", nargs="+", help="those of `efficiency`")
    parser.add_argument("--most", type=int, help="supersteps of a run")
    parser.add_argument("--processes", type=int, help="that compile; 0 for none ahead")


class Session:
    """The clock, the recorder and the arguments, which all parts of a run share."""

    def __init__(self, arguments: argparse.Namespace, recorder: Recorder) -> None:
        self.budget = Budget(arguments.budget)
        self.arguments, self.recorder = arguments, recorder
        self.spent = {"graphs": 0.0, "compiling": 0.0, "preparing": 0.0, "timing": 0.0}

    def make(self, names: list[str]) -> list[NamedGraph]:
        """Make graphs, and add up the time of it."""
        begun, made = time.perf_counter(), []
        for name in names:
            made.append(make_graph(name))
            self.budget.print(f"{name} is made")
        self.spent["graphs"] += time.perf_counter() - begun
        return made


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time every cell; record errors, and go on."""
    session = Session(arguments, recorder)
    parts = {"supersteps": _supersteps, "shares": _shares, "efficiency": _efficiency}
    for part in arguments.parts:
        parts[part](session)
    spent = ", ".join(f"{name} {s:.1f} s" for name, s in session.spent.items())
    session.budget.print(f"took: {spent}")
    for line in summary(recorder.lines):
        print(line, flush=True)


# -- supersteps of the eight programs


def _supersteps(session: Session) -> None:
    arguments = session.arguments
    named = session.make(arguments.graph)
    inputs = [Inputs(n.graph) for n in named]
    cells = [(n, i, p) for n, i in zip(named, inputs, strict=True)
             for p in arguments.programs]  # fmt: skip
    if arguments.processes:
        tasks = {
            Task.of(p, options, i): None for _, i, p in cells
            for options in SCHEDULES.values()
        }  # fmt: skip
        limit = COMPILING * arguments.budget
        seconds = compile_ahead(list(tasks), arguments.processes, limit)
        session.spent["compiling"] += seconds
        session.budget.print(f"{len(tasks)} kernels were compiled in {seconds:.1f} s")
    session.recorder.require_gpu()
    device = choose_device("cuda")
    watch = Stopwatch(device)
    for n, i, program in cells:
        cell = f"{n.name} | {program}"
        if session.budget.left < 0:
            session.recorder.add(
                "no time left", [], part="supersteps", cell=cell, graph=n.describe()
            )
            continue
        session.recorder.attempt(
            "prepare",
            lambda *given: Cell(*given).run(), session, n, i, program, cell, watch,
            cell=cell, part="supersteps", graph=n.describe(),
        )  # fmt: skip


class Cell:
    """A program on a graph, with every schedule."""

    def __init__(
        self, session: Session, named: NamedGraph, inputs: Inputs, program: str,
        cell: str, watch: Stopwatch,
    ) -> None:  # fmt: skip
        self.session, self.watch = session, watch
        self.fields = {"part": "supersteps", "cell": cell, "graph": named.describe()}
        begun = time.perf_counter()
        base = {"target": "cuda", "direction": "pull"}
        self.captured = capture(program, inputs, **base)
        most = self.captured.options.get("max_supersteps", math.inf)
        self.base = base | {"max_supersteps": min(session.arguments.most, most)}
        session.spent["preparing"] += time.perf_counter() - begun

    def run(self) -> None:
        """Warm all contenders, check them, and time them in turn."""
        session, begun = self.session, time.perf_counter()
        first: dict[str, float] = {}
        checks: dict[str, Any] = {}
        supersteps: dict[str, int] = {}
        known: Any = None
        for name, schedule in SCHEDULES.items():
            took = session.recorder.attempt(name, self._once, schedule, **self.fields)
            if took is None:  # it raised, and that is recorded
                continue
            first[name], supersteps[name] = took[0], len(took[1])
            answer = self.captured.answer()
            known = answer if known is None else known
            checks[name] = compare(answer, known)
        session.spent["compiling"] += time.perf_counter() - begun
        begun = time.perf_counter()
        trials: dict[str, list[float]] = {name: [] for name in first}
        exposed = dict.fromkeys(first, 0)
        names = list(first)
        for number in range(session.arguments.repeat):
            if number and session.budget.left < 0:
                session.budget.print(
                    f"{self.fields['cell']}: time for {number} trials only"
                )
                break
            turn = number * 3 % max(len(names), 1)
            for name in names[turn:] + names[:turn]:
                self.watch.exposed = 0
                _, laps = self._once(SCHEDULES[name])
                trials[name].append(sum(laps) / max(len(laps), 1))
                exposed[name] += self.watch.exposed
        session.spent["timing"] += time.perf_counter() - begun
        for name in names:
            session.recorder.add(
                name, trials[name], **self.fields, supersteps=supersteps[name],
                exposed=exposed[name], checks=checks[name],
                first_call_ms=round(first[name], 1),
                mapping=_mapping(self.captured, self.base | SCHEDULES[name]),
            )  # fmt: skip

    def _once(self, schedule: dict[str, Any]) -> tuple[float, list[float]]:
        """Run from the beginning; return the ms of the call, and of each superstep."""
        options = self.base | schedule
        self.watch.read()  # drops the laps of a run that raised
        with timed_supersteps(self.watch, choose_device("cuda")):
            took = time_call(lambda: self.captured.iterate(**options))
        return took, self.watch.read()


def _mapping(captured: Captured, options: dict[str, Any]) -> str:
    """Return in words how edges go to lanes."""
    steps = captured.steps if isinstance(captured.steps, list) else [captured.steps]
    kept = {k: v for k, v in options.items() if k not in {"target", "max_supersteps"}}
    if "change_driven" in captured.options:
        kept["change_driven"] = captured.options["change_driven"]
    plan = steps[0].prepare(captured.state, choose_device("cuda"), kept).plan
    return "; ".join(phase.describe_mapping() for phase in plan.phases)


def compare(answer: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Compare an answer with that of the first contender."""
    error = 0.0
    for name, values in answer.items():
        theirs = expected[name]
        if values.dtype.kind != "f":
            if not (values == theirs).all():
                return {"ok": False, "error": math.inf}
            continue
        ours, theirs = (
            np.nan_to_num(a, posinf=-1, neginf=-1) for a in (values, theirs)
        )
        scale = float(np.abs(theirs).max(initial=1e-30))
        error = max(error, float(np.abs(ours - theirs).max(initial=0)) / scale)
    return {"ok": error <= TOLERANCE, "error": error}


# -- pushes from a share of the vertices


@fg.gather(into="given", combine="sum", sources="active")
def values_of_active(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Take a value of an active neighbor, weighted by the edge."""
    return d.weight[e] * d.x[u, f]


@fg.vertex
def keep(f, v, d):  # type: ignore[no-untyped-def]
    """Keep the sum, and announce nothing."""
    d.y[v, f] = d.given[v, f]
    return False


pushed = fg.foldmap(values_of_active, keep)


def pushed_state(graph: fg.Graph, k: int) -> fg.State:
    """Return a State of the pushed superstep, of `k` features."""
    rng = np.random.default_rng(SEED)
    values = rng.integers(0, 16, (graph.vertex_count, k)).astype(np.float32)
    weights = rng.integers(1, 4, graph.given_edge_count).astype(np.float32)
    return fg.State(
        graph,
        x=fg.vertex_property(values),
        y=fg.vertex_property(np.zeros_like(values)),
        weight=fg.edge_property(weights),
    )


def _shares(session: Session) -> None:
    """Time a pushed superstep from a share of the vertices, without its answer."""
    session.recorder.require_gpu()
    device = choose_device("cuda")
    watch = Stopwatch(device)
    for named in session.make(session.arguments.pushed):
        rng = np.random.default_rng(SEED)
        masks = {
            share: rng.random(named.graph.vertex_count) < share for share in ACTIVE
        }
        for k in session.arguments.k:
            state = pushed_state(named.graph, k)
            for share, mask in masks.items():
                cell = f"{named.name} | {share:.1%} active"
                if session.budget.left < 0:
                    session.recorder.add(
                        "no time left", [], part="shares", cell=cell, k=k
                    )
                    continue
                fields = {
                    "part": "shares", "cell": cell, "k": k, "active": int(mask.sum()),
                    "edges": int(named.graph.out_degree[mask].sum()),
                    "graph": named.describe(),
                }  # fmt: skip
                given = session, watch, state, mask, fields
                session.recorder.attempt("pushes", _push, *given, **fields)


def _push(
    session: Session, watch: Stopwatch, state: fg.State, mask: Any, fields: Any
) -> None:
    device, known = choose_device("cuda"), None
    words = device.sets.upload(fg.ActiveSet(state.graph, mask).words.copy())
    supersteps, trials, checks = {}, {}, {}

    def once(superstep: Any) -> None:
        superstep.run(Frontier(words, active_count=fields["active"]))

    for name, schedule in SHARES.items():
        options = {"direction": "push", **schedule}
        supersteps[name] = pushed.prepare(state, device, options)
        once(supersteps[name])
        answer = {"y": np.array(state["y"])}
        known = known or answer
        checks[name], trials[name] = compare(answer, known), []
    for number in range(session.arguments.repeat):
        for name in list(SHARES)[:: 1 if number % 2 else -1]:
            for _ in range(BATCH):
                watch.resume()
                once(supersteps[name])
                watch.lap()
            trials[name].append(statistics.median(watch.read()))
    for name in SHARES:
        session.recorder.add(name, trials[name], checks=checks[name], **fields)


# -- warp execution efficiency


def _efficiency(session: Session) -> None:
    """Count the lanes that work in instructions of warps, by Nsight Compute."""
    names = list(SCHEDULES)
    for graph in session.arguments.profiled:
        for program in session.arguments.programs:
            cell = f"{graph} | {program}"
            if session.budget.left < 0:
                session.budget.print(f"no time left for {cell}")
                continue
            found = session.recorder.attempt(
                "ncu", measure_efficiency, graph, program, SCHEDULES,
                session.budget.left + 60, part="efficiency", cell=cell,
            )  # fmt: skip
            for name, (efficiency, instructions) in zip(
                names, found or (), strict=False
            ):
                session.recorder.add(
                    name, [], part="efficiency", cell=cell,
                    warp_execution_efficiency=round(efficiency, 4),
                    warp_instructions=instructions,
                )  # fmt: skip
                session.budget.print(f"{cell} | {name}: {efficiency:.1%}")


# -- the summary


def summary(lines: list[dict[str, Any]]) -> list[str]:
    """Return a line for each cell, and the means over all of them."""
    cells: dict[str, dict[str, float]] = {}
    for line in lines:
        if line.get("part") == "supersteps" and "median_ms" in line:
            cells.setdefault(line["cell"], {})[line["contender"]] = line["median_ms"]
    out = []
    ratios: dict[str, list[float]] = {}
    for cell, ms in cells.items():
        own = {n: t for n, t in ms.items() if n != "auto" and " x " not in n}
        warps = [t for n, t in own.items() if n.startswith("virtual_warp")]
        ours = ms.get("warp_segmentation")
        if ours is None or not warps or "lanes" not in ms:
            continue
        best = min(own, key=own.__getitem__)
        found = {
            "best virtual_warp / segments": min(warps) / ours,
            "worst virtual_warp / segments": max(warps) / ours,
            "lanes / segments": ms["lanes"] / ours,
            "lanes / best": ms["lanes"] / own[best],
            "auto / best": ms.get("auto", math.nan) / own[best],
        }
        for name, value in found.items():
            ratios.setdefault(name, []).append(value)
        shown = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        out.append(f"{cell}: {ours:.4g} ms with segments, {shown} ({best})")
    for name, values in ratios.items():
        mean = statistics.geometric_mean(values)
        out.append(
            f"{name}: {mean:.3f} in the geometric mean of {len(values)} cells, "
            f"{min(values):.2f} to {max(values):.2f}"
        )
    return out
