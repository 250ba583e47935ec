"""Runs a generated program on a target and holds it against the interpreter."""

from __future__ import annotations

import itertools
import linecache
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import featgraph as fg
from featgraph import reference
from featgraph.base.config import config
from tests.generated.options import for_target
from tests.generated.programs import Case

__all__ = [
    "Differs",
    "Report",
    "check",
    "checked",
    "interpret",
    "kind_of",
    "load",
    "make_state",
    "run_actions",
    "small_is_large",
]

_numbers = itertools.count()


@dataclass
class Report:
    """The outcome of one program.

    Attributes
    ----------
    status : str
        "agreed", "refused" (by all alike), "failed".
    kind : str
        What was refused, or the kind of failure.
    detail : str
        Where they differ.
    options : dict or None
        The option set that failed.
    refused_options : dict
        Message kind -> how often an option was refused.
    compared : int
        Supersteps and runs that were compared.
    """

    status: str
    kind: str = ""
    detail: str = ""
    options: dict[str, Any] | None = None
    refused_options: dict[str, int] = field(default_factory=dict)
    compared: int = 0


class Differs(Exception):
    """A target and the interpreter do not agree."""


def load(text: str) -> dict[str, Any]:
    """Run a module's text so that its functions' source can be read."""
    name = f"<generated {next(_numbers)}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = (len(text), None, lines, name)
    module: dict[str, Any] = {"__name__": "generated"}
    exec(compile(text, name, "exec"), module)  # noqa: S102
    return module


def make_state(case: Case, graph: fg.Graph) -> fg.State:
    """Return a new state."""
    given: dict[str, Any] = {}
    for name, (p, value) in case.state.items():
        iterated = p.role == "next"
        if p.of == "vertex":
            given[name] = fg.vertex_property(value, iterated=iterated)
        elif p.of == "edge":
            given[name] = fg.edge_property(
                value, iterated=iterated, per_direction=p.per_direction or None
            )
        else:
            given[name] = value
    return fg.State(graph, **given)


@contextmanager
def small_is_large(chunk: int = 20_000) -> Iterator[None]:
    """Have small graphs run as large ones do, in chunks of so many edges.

    Kernels of another direction are there when they are wanted.
    """
    from featgraph.base.config import config
    from featgraph.fold.schedules import thread
    from featgraph.runtime.devices import cpu_sweeps, host_arrays
    from featgraph.runtime.superstep import directions

    places: list[tuple[Any, str, Any]] = [
        (config, "compile_behind", False),
        (thread, "FEW_EDGES", 0),
        (directions, "FEWEST_TO_SKIP", 0),
        (host_arrays, "SMALLEST_CHUNK", chunk),
        (cpu_sweeps, "SMALLEST_CHUNK", chunk),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@contextmanager
def checked(options: dict[str, Any]) -> Iterator[None]:
    """Make kernels check their indices if the options have it."""
    config.checked = bool(options.get("checked"))
    try:
        yield
    finally:
        config.checked = False


def kind_of(error: BaseException) -> str:
    """Return an error's message without names and numbers."""
    text = getattr(error, "what", None) or str(error).splitlines()[0]
    text = re.sub(r"'[^']*'", "'...'", str(text))
    text = re.sub(
        r"\b(vertex|gather|edge|reduce|triangle|[xsnpawebcmot])\d+\w*", "x", text
    )
    return f"{type(error).__name__}: {re.sub(r'[0-9]+', 'N', text)}"[:160]


def check(case: Case, target: str) -> Report:
    """Run a case under all of its options, against the interpreter."""
    with warnings.catch_warnings(), small_is_large(case.chunk):
        warnings.simplefilter("ignore")
        return _check(case, target)


def _check(case: Case, target: str) -> Report:
    try:
        steps = load(case.text)["STEPS"]
        graph = case.graph.make()
        state = make_state(case, graph)
    except fg.FeatGraphError as error:
        return Report("refused", f"declared: {kind_of(error)}", str(error))
    try:
        expected = list(interpret(case, steps, graph, state))
    except fg.FeatGraphError as error:
        return _refused_by_interpreter(case, steps, graph, error)
    except Exception as error:
        return Report("failed", f"interpreter: {kind_of(error)}", repr(error))
    report = Report("agreed")
    for options in case.options:
        try:
            with checked(options):
                report.compared += run_actions(
                    case, steps, graph, options, target, expected
                )
        except Differs as error:
            return Report("failed", "differs", str(error), options)
        except fg.FeatGraphError as error:
            found = _refused(case, steps, graph, options, target, error)
            if found is not None:
                return found
            kind = kind_of(error)
            report.refused_options[kind] = report.refused_options.get(kind, 0) + 1
        except Exception as error:
            return Report("failed", kind_of(error), repr(error)[:2000], options)
    if not report.compared:
        kinds = " | ".join(report.refused_options)
        return Report("refused", kinds, refused_options=report.refused_options)
    return report


#: Errors that the interpreter finds by the values; a fold need not see them.
_BY_VALUES = (
    "features write different values",
    "a feature reads what another one writes",
    "a feature that does not exist",
    "index out of range",
)


def _refused_by_interpreter(
    case: Case, steps: Any, graph: Any, error: fg.FeatGraphError
) -> Report:
    """Return a failure unless both targets refuse what the interpreter does."""
    kind, found = kind_of(error), {}
    for target in ("cpu", "cuda"):
        found[target] = _fold_all(case, steps, graph, target)
    if found["cpu"] != found["cuda"]:
        return Report("failed", "refused by one target only", str(found))
    if not found["cpu"] and not any(text in str(error) for text in _BY_VALUES):
        return Report("failed", f"folds, but the interpreter: {kind}", str(error))
    return Report("refused", f"interpreter: {kind}", str(error))


def _fold_all(case: Case, steps: Any, graph: Any, target: str) -> set[str]:
    """Return the kinds of refusals that folding the steps gives."""
    state, kinds = make_state(case, graph), set()
    for number in {n for action in case.actions for n in _numbers_of(action)}:
        try:
            steps[number].fold(state, target=target)
        except fg.FeatGraphError as error:
            kinds.add(kind_of(error))
    return kinds


def _refused(
    case: Case, steps: Any, graph: Any, options: Any, target: str, error: Exception
) -> Report | None:
    """Return a failure unless both targets refuse alike, or an option is the reason."""
    if "compiler refuses" in str(error) or type(error) is fg.FeatGraphError:
        return Report("failed", kind_of(error), str(error)[:2000], options)
    if isinstance(error, fg.KernelFaultError):
        return Report("failed", kind_of(error), str(error)[:2000], options)
    if options and isinstance(error, fg.PlanError):
        return None
    other = "cuda" if target == "cpu" else "cpu"
    state = make_state(case, graph)
    for action in case.actions:
        for number in _numbers_of(action):
            try:
                steps[number].fold(state, target=other)
            except fg.FeatGraphError as again:
                if kind_of(again) == kind_of(error):
                    return None
    detail = f"{target} refuses what {other} folds: {error}"
    return Report(
        "failed", f"refused by {target} only: {kind_of(error)}", detail, options
    )


def _numbers_of(action: dict[str, Any]) -> list[int]:
    return action["iterate"] if "iterate" in action else [action["call"]]


def interpret(case: Case, steps: Any, graph: Any, state: Any) -> Iterator[Any]:
    """Yield the outcome of each action: values, committed vertices, its end."""
    graph, values, signature = reference.from_state(state)
    superstep, out = 0, None
    for action in case.actions:
        active = out if action["active"] == "out" else action["active"]
        on = action["on"]
        if "call" in action:
            outcome = reference.superstep(
                steps[action["call"]].program,
                graph,
                values,
                signature,
                active=_mask(graph, active),
                on=_mask(graph, on),
                superstep=superstep,
            )
            superstep += 1
            out = outcome.active_out.mask.copy()
            values, signature = outcome.values, outcome.signature
            yield values, out, None
        else:
            programs = [(steps[n].program, _mask(graph, on)) for n in action["iterate"]]
            run = reference.iterate(
                programs,
                graph,
                values,
                signature,
                active=_mask(graph, active),
                max_supersteps=action["limit"],
                start=superstep,
            )
            superstep += run.supersteps
            values, signature = run.values, run.signature
            counts = [int(o.active_out.mask.sum()) for o in run.outcomes]
            yield values, None, (run.supersteps, run.converged, counts)


def _mask(graph: Any, vertices: Any) -> Any:
    if vertices is None or isinstance(vertices, np.ndarray):
        return vertices
    mask = np.zeros(graph.vertex_count, np.bool_)
    mask[vertices] = True
    return mask


def run_actions(
    case: Case, steps: Any, graph: Any, options: Any, target: str, expected: list[Any]
) -> int:
    """Run all actions under one option set; return how many were compared."""
    state, out = make_state(case, graph), None
    compared = 0
    for action, wanted in zip(case.actions, expected, strict=True):
        is_run = "iterate" in action
        given = for_target(options, target, is_run)
        active = out if action["active"] == "out" else action["active"]
        active, on = _mask(graph, active), _mask(graph, action["on"])
        chosen = [steps[n] for n in _numbers_of(action)]
        chosen = [s if on is None else s.on(on) for s in chosen]
        if is_run:
            _iterate(chosen, state, active, action, target, given, wanted)
        else:
            made = chosen[0](state, active_in=active, target=target, **given)
            out = made.mask.copy()
            _same("active_out", out, wanted[1])
        _same_values(state, wanted[0], case.actions.index(action))
        compared += 1
    return compared


def _iterate(
    chosen: Any,
    state: Any,
    active: Any,
    action: Any,
    target: str,
    given: Any,
    wanted: Any,
) -> None:
    run = fg.iterate(
        chosen if len(chosen) > 1 else chosen[0],
        state,
        active=active,
        max_supersteps=action["limit"],
        target=target,
        **given,
    )
    supersteps, converged, counts = wanted[2]
    if given.get("asynchronous") or given.get("near_far") is not None:
        if not (run.converged and converged):
            raise Differs(f"converged {run.converged}, the interpreter {converged}")
        return  # where it ends is all that is promised
    if given.get("change_driven") is False:
        return  # it goes once more over what has converged
    ran, seen = (run.supersteps, run.converged), list(run.active_counts)
    if "patched" in run.aggregates and converged:
        # One more superstep proves what was patched, where the limit allows it.
        if seen == [*counts, 0]:
            ran, seen = (supersteps, converged), counts
        elif seen == counts and len(seen) == action["limit"]:
            ran = (supersteps, converged)
    if ran != (supersteps, converged):
        raise Differs(
            f"run: {run.supersteps} supersteps, converged {run.converged}; the "
            f"interpreter has {supersteps}, {converged}"
        )
    if seen != counts:
        raise Differs(f"active counts {seen}, not {counts}")


def _same_values(state: Any, wanted: dict[str, Any], place: int) -> None:
    for name, value in wanted.items():
        _same(f"d.{name} behind action {place}", np.asarray(state[name]), value)


def _same(name: str, actual: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    if actual.shape != wanted.shape:
        raise Differs(f"{name}: shape {actual.shape}, not {wanted.shape}")
    if wanted.ndim and actual.dtype != wanted.dtype:
        raise Differs(f"{name}: dtype {actual.dtype}, not {wanted.dtype}")
    same = actual == wanted
    if wanted.dtype.kind == "f":
        same |= np.isnan(actual) & np.isnan(wanted)
    if not np.all(same):
        bad = np.argwhere(~np.atleast_1d(same))
        first = tuple(bad[0].tolist()) if wanted.ndim else ()
        raise Differs(
            f"{name}{list(first)} is {actual[first]!r}, the interpreter has "
            f"{wanted[first]!r}; {len(bad)} of {wanted.size} differ"
        )
