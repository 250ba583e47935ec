"""Programs with edge functions end where they do with every vertex active.

Programs are put together from few expressions each, so that all ways in which an edge
or a gather can read what changes elsewhere come up. The interpreter runs them from
what is announced, and with everything active. Where one ends elsewhere than the other,
``change_driven=False`` has to be refused. The targets run some of them, too.
"""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings

import featgraph as fg
from featgraph import reference
from featgraph.fold.analysis.changes import not_announced
from featgraph.graph import Graph

EDGE_VALUES = (
    "d.x[u] + 1",
    "d.x[u] - d.msg[fg.reverse(e)]",
    "max(d.x[u], d.msg[e] - 1)",
    "d.x[u] + 2 * d.x[v]",
    "3 * d.x[u] + d.w[e]",
    "d.msg[fg.reverse(e)] // 2 + d.msg[e]",
)
EDGE_VERDICTS = ("new != d.msg[e]", "True", "new > 3", "new < d.msg[fg.reverse(e)]")
GATHERED = (
    "d.msg_next[e]",
    "d.msg[e]",
    "d.x[u]",
    "d.msg_next[e] - d.x[u]",
    "d.msg[fg.reverse(e)]",
    "d.msg_next[fg.reverse(e)]",
)
ALONGS = ("in", "in", "out", "both")
VERTEX_VALUES = ("(3 * d.total[v] + d.x[v]) % 7", "max(d.x[v], d.total[v]) % 19")
VERTEX_VERDICTS = ("new != d.x[v]", "new > d.x[v]")
#: Functions of each foldmap, by their first letters.
FORMS = ("egv", "egv", "egv", "fegv", "gvegv", "e", "e gv", "egv e", "eegv")

TEXT = """
import featgraph as fg

@fg.edge
def send(f, u, v, e, d):
    new = ({edge}) % 11
    d.msg_next[e] = new
    return {edge_verdict}

@fg.edge
def send_more(f, u, v, e, d):
    new = (d.msg_next[e] + d.x[u]) % 5
    d.msg_next[e] = new
    return {edge_verdict}

@fg.gather(into="total", combine="{combine}", along="{along}")
def take(f, u, v, e, d):
    return {gathered}

@fg.vertex
def adopt(f, v, d):
    new = {vertex}
    d.x_next[v] = new
    return {vertex_verdict}

@fg.vertex
def is_odd(f, v, d):
    return d.x[v] % 2 == 1

@fg.gather(into="before", combine="max")
def look(f, u, v, e, d):
    return d.x[u]

@fg.vertex
def follow(f, v, d):
    d.y_next[v] = d.before[v]
    return d.before[v] > d.y[v]
"""
#: Letters of a form, each time they come.
NAMES = {"e": ("send", "send_more"), "g": ("take",), "v": ("adopt",), "f": ("is_odd",)}


def write_program(rng: np.random.Generator, folder: Path, number: int) -> list[Any]:
    """Return the foldmaps of a random program."""
    pick = {
        "edge": EDGE_VALUES, "edge_verdict": EDGE_VERDICTS, "gathered": GATHERED,
        "along": ALONGS, "combine": ("max", "sum"), "vertex": VERTEX_VALUES,
        "vertex_verdict": VERTEX_VERDICTS,
    }  # fmt: skip
    chosen = {name: str(rng.choice(given)) for name, given in pick.items()}
    path = folder / f"program_{number}.py"
    path.write_text(TEXT.format(**chosen))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    foldmaps = []
    for form in str(rng.choice(FORMS)).split():
        names = {letter: iter(of) for letter, of in NAMES.items()}
        if form.startswith("gv"):
            head, form = ["look", "follow"], form[2:] or "gv"
            if form == "gv" and len(foldmaps):
                head = []
        else:
            head = []
        functions = [*head, *(next(names[letter]) for letter in form)]
        foldmaps.append(fg.foldmap(*(getattr(module, name) for name in functions)))
    return foldmaps


def random_state(rng: np.random.Generator) -> fg.State:
    count = int(rng.choice([3, 6, 9]))
    source, target = rng.integers(0, count, (2, int(rng.integers(2, 2 * count))))
    graph = Graph.from_edges(source, target, vertex_count=count, directed=False)
    edges = graph.given_edge_count
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(0, 7, count), iterated=True),
        y=fg.vertex_property(np.zeros(count, np.int64), iterated=True),
        msg=fg.edge_property(rng.integers(0, 9, 2 * edges), iterated=True),
        w=fg.edge_property(rng.integers(0, 5, edges)),
    )


LIMIT = 60


def dense_run(foldmaps: list[Any], state: fg.State) -> tuple[list[Any], bool]:
    """Run the interpreter with everything active; values after each superstep."""
    graph, values, signature = reference.from_state(state)
    found, idle = [values], 0
    for number in range(LIMIT):
        program = foldmaps[number % len(foldmaps)].program
        outcome = reference.superstep(
            program, graph, values, signature, superstep=number
        )
        values, signature = outcome.values, outcome.signature
        found.append(values)
        idle = 0 if outcome.active_out.mask.any() else idle + 1
        if idle == len(foldmaps):
            return found, True
    return found, False


def is_refused(foldmaps: list[Any], state: fg.State) -> bool:
    plans = [step.fold(state, target="cpu").plan for step in foldmaps]
    programs = [plan.analysis.functions for plan in plans]
    return any(
        not_announced(p, programs[:n] + programs[n + 1 :]) is not None
        for n, p in enumerate(programs)
    )


def same(some: Any, others: Any) -> bool:
    return all(np.array_equal(some[name], others[name]) for name in ("x", "y", "msg"))


def ends_elsewhere(foldmaps: list[Any], state: fg.State) -> bool:
    """Whether the announced set gives other values than the full active set."""
    given = reference.from_state(state)
    programs = [step.program for step in foldmaps]
    run = reference.iterate(programs, *given, max_supersteps=LIMIT)
    dense, _ = dense_run(foldmaps, state)
    if len(foldmaps) == 1:  # superstep by superstep
        values = [o.values for o in run.outcomes]
        values += [run.values] * (len(dense) - 1 - len(values))
        pairs = itertools.islice(zip(values, dense[1:], strict=False), LIMIT)
        return not all(same(a, b) for a, b in pairs)
    return run.converged and not same(run.values, dense[-1])


def test_what_ends_elsewhere_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    apart = accepted = 0
    for number in range(PROGRAMS):
        foldmaps = write_program(rng, tmp_path, number)
        states = [random_state(rng) for _ in range(2)]
        refused = is_refused(foldmaps, states[0])
        differs = any(ends_elsewhere(foldmaps, state) for state in states)
        names = [f.name for step in foldmaps for f in step.program.functions]
        text = (tmp_path / f"program_{number}.py").read_text()
        assert refused or not differs, f"{names}\n{text}"
        apart += differs
        accepted += not refused
    assert apart > PROGRAMS // 20
    assert accepted > PROGRAMS // 10


PROGRAMS = 30 if settings.get_current_profile_name() == "deep" else 16


def accepted_programs(folder: Path) -> Iterator[tuple[list[Any], fg.State]]:
    rng = np.random.default_rng(5)
    for number in range(1000):
        foldmaps = write_program(rng, folder, number)
        state = random_state(rng)
        if not is_refused(foldmaps, state):
            yield foldmaps, state


def test_targets_agree(tmp_path: Path, target: str) -> None:
    """Under "auto", True and False, and by the interpreter's own iterate."""
    for foldmaps, state in itertools.islice(accepted_programs(tmp_path), 3):
        programs = [step.program for step in foldmaps]
        meant = reference.iterate(
            programs, *reference.from_state(state), max_supersteps=LIMIT
        )
        for change_driven in ("auto", True, False):
            made = fg.State(
                state.graph,
                **{
                    n: (fg.edge_property if n in {"msg", "w"} else fg.vertex_property)(
                        state[n], iterated=n != "w"
                    )
                    for n in state
                },
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fg.ConvergenceWarning)
                run = fg.iterate(
                    foldmaps, made, max_supersteps=LIMIT, target=target,
                    change_driven=change_driven,
                )  # fmt: skip
            if change_driven is not False:
                assert (run.supersteps, run.converged) == (
                    meant.supersteps, meant.converged
                )  # fmt: skip
            if meant.converged or (change_driven is not False):
                assert same(made, meant.values), (change_driven, programs)
