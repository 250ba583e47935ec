"""Kernels of the CPU target: chunks of vertices over threads, one thread a vertex.

A chunk is a range of bitvector words with about as much work as every other, so a
thread writes whole words and pull needs no atomics.
"""

from __future__ import annotations

from featgraph.fold.lowering.blocks import finished
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.lowering.passes import lower
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.pulled_edges import WORDS as PULLED
from featgraph.fold.plan.worklist import is_queued
from featgraph.fold.printing.cpu import in_parallel, unsigned_vertices
from featgraph.fold.printing.cpu_queue import print_queue
from featgraph.fold.printing.module import Entry
from featgraph.fold.printing.phase import PhaseToPrint
from featgraph.fold.printing.statements import (
    make_function,
    print_function,
    print_once,
)
from featgraph.fold.printing.writer import Writer
from featgraph.fold.schedules.intersection import Intersection
from featgraph.fold.schedules.table import SCHEDULES

__all__ = [
    "DECORATOR",
    "constants",
    "imports",
    "print_phase",
    "print_queue",
]

DECORATOR = "njit(**INLINE)"
#: What the compiler may do to reals. With a reciprocal for a division ("arcp") the last
#: bit depends on what it moves out of a loop, too, and not on the order of a sum alone.
FAST = ("reassoc", "contract", "nsz", "arcp", "afn")
#: From where to where a chunk goes.
_WORDS = ("first_word", "last_word")


def imports(plan: FoldPlan) -> list[str]:
    """Return the import statements of the module."""
    lines = [
        "import math",
        "from collections import namedtuple",
        "",
        "import numpy as np",
    ]
    lines += [
        "from numba import float32, float64, int32, int64, njit, uint32",
        "",
    ]
    lines.append("from featgraph.device import cpu")
    if is_queued(plan):
        lines.append("from featgraph.device import queue_cpu as queue")
    if any(f.operations & {"solve", "inverse"} for f in plan.analysis.functions):
        lines.append("from featgraph.device import linalg_cpu as linalg")
    solves = any("solve" in f.operations for f in plan.analysis.functions)
    if solves:
        lines.append("from featgraph.device import cholesky_cpu as cholesky")
    if solves or any(p.tiles for p in plan.phases):
        lines.append("from featgraph.device import tiles_cpu as tiles")
    if plan.analysis.uses_numbers(cuda=False):
        lines.append("from featgraph.device import numbers_cpu as numbers")
    if any(p.mapping.is_looped for p in plan.phases):
        lines.append("from featgraph.device import vectors_cpu as vectors")
    return lines


def constants(plan: FoldPlan) -> list[str]:
    """Return the module's constants."""
    lines = [
        "# nnan and ninf are never allowed: inf and nan stay testable.",
        "FAST = {" + ", ".join(f'"{flag}"' for flag in FAST) + "}",
        'CODE = {"error_model": "numpy", "fastmath": FAST, "no_cfunc_wrapper": True}',
        "# Called by compiled code alone: no entries from Python are compiled.",
        'INLINE = {**CODE, "no_cpython_wrapper": True}',
        "# What Python calls; its other threads, which may hand over bytes, go on.",
        'CALLED = {**CODE, "cache": True, "nogil": True}',
        "# Rows are short: lanes sharing a sum of few edges cost more than they save.",
        'SWEEP = {**CALLED, "fastmath": FAST - {"reassoc"}}',
    ]
    if any(p.in_a_tree for p in plan.phases):
        lines += [
            "# What is combined has been rounded: it may come from other ranks.",
            'IN_A_TREE = {**SWEEP, "fastmath": FAST - {"reassoc", "contract"}}',
        ]
    if any(p.mapping.is_looped for p in plan.phases) or is_queued(plan):
        lines += [
            "# Within loops over edges: what they return stays in registers.",
            'INNER = {**INLINE, "forceinline": True}',
        ]
    return lines


def print_phase(one: PhaseToPrint) -> list[Entry]:
    """Print the kernel of a phase (two for a reduce).

    The kernel calls the sweep of one chunk for every chunk. The sweep is a function of
    its own: a single chunk needs no threads.
    """
    writer, phase, number = one.writer, one.phase, one.number
    facts = one.facts(SCHEDULES[phase.mapping.schedule])
    name, sweep = f"{phase.kind}_phase_{number}", f"sweep_{number}"
    arguments = _ARGUMENTS[phase.kind](facts)
    inner = [a for a in arguments if a != "chunks"]
    ends = ("first", "last") if phase.kind == "triangle" else _WORDS
    facts.arguments = ("chunk", *ends, *inner)
    flags = "IN_A_TREE" if phase.in_a_tree else "SWEEP"
    body = lower(facts)
    if phase.kind != "triangle":  # whose loops over pairs of rows take longer for it
        body = unsigned_vertices(body, facts.plan.traits.wide_offsets)
    made = make_function(f"njit(**{flags})", sweep, facts.arguments, _doc(facts), body)
    print_function(writer, made)
    all_chunks = in_parallel(sweep, inner)
    made = make_function("njit(**CALLED)", name, arguments, "", all_chunks)
    print_function(writer, made)
    entries = [Entry(name, number, "main", tuple(arguments))]
    if phase.kind == "reduce" and not phase.in_a_tree:
        entries.append(_print_finish(writer, facts, number, f"{name}_finish"))
    return entries


def _of_vertices(facts: Facts) -> list[str]:
    plan, phase = facts.plan, facts.phase
    arguments = ["d", *(PULLED if phase.pulls_edges else ["due"]), "passed", "chunks"]
    arguments.append("swept_words")
    arguments += ["changed_sources", "stale"] if phase.incremental else []
    arguments += ["active_sources"] if plan.takes_active(phase) else []
    if any(f.kind.gathers for f in plan.functions_of(phase)):
        arguments += facts.layout.arrays
    if phase.spreads:
        arguments += ["spreads", "allowed", *facts.layout_along("out").arrays]
    return arguments


def _of_push(facts: Facts) -> list[str]:
    active = ["active_sources"] * facts.plan.takes_active(facts.phase)
    return ["d", "due", "chunks", *facts.layout.arrays, *active]


def _of_edges(facts: Facts) -> list[str]:
    state = ["edge_state"] * facts.plan.has_edge_state
    if facts.phase.changed_only:
        rows = "in_sources", "edge_twin"
        return ["d", "sources", "targets", "chunks", *rows, *state, "changed_edges"]
    return ["d", "sources", "targets", "chunks", *facts.layout.arrays, *state]


def _of_reduce(facts: Facts) -> list[str]:
    return ["d", "due", "partials", "chunks"]


def _of_triangles(facts: Facts) -> list[str]:
    return ["d", "chunks", *_intersection(facts).arguments(facts.oriented)]


#: What the kernel of a phase is given, by the kind of the phase.
_ARGUMENTS = {
    "vertex": _of_vertices,
    "push": _of_push,
    "edge": _of_edges,
    "reduce": _of_reduce,
    "triangle": _of_triangles,
}

_DOCS = {
    "vertex": (
        "Sweep the due vertices of a chunk; `passed` gets those that end with True."
    ),
    "pulled": (
        "Sweep vertices of a chunk, and run the edge functions on their in-edges from "
        "sources; `targets` gets those with an edge that returned True, `passed` the "
        "due ones that end with True."
    ),
    "push": "Push along the out-edges of a chunk of sources into the due targets.",
    "pushed": "Push from a chunk of neighbors into the due vertices.",
    "edge": (
        "Sweep the out-edges of a chunk of sources; `targets` gets their ends where "
        "the verdict is True."
    ),
    "changed": (
        "Sweep the edges of a chunk of which something has changed, from sources; "
        "`targets` gets their ends where the verdict is True."
    ),
    "reduce": "Reduce a chunk of vertices into its row of `partials`.",
}


def _doc(facts: Facts) -> str:
    """Return what the sweep of a chunk does, in words."""
    phase = facts.phase
    if phase.kind == "triangle":
        return _intersection(facts).does
    if phase.changed_only:
        return _DOCS["changed"]
    if phase.kind == "push" and phase.along != "in":
        return _DOCS["pushed"]
    return _DOCS["pulled" if phase.pulls_edges else phase.kind]


def _intersection(facts: Facts) -> Intersection:
    schedule = facts.schedule
    if not isinstance(schedule, Intersection):
        raise TypeError(f"{schedule.name} does not intersect rows")
    return schedule


def _print_finish(writer: Writer, facts: Facts, number: int, name: str) -> Entry:
    """Print the kernel that combines the rows of `partials`."""
    accumulator = facts.accumulators[facts.reduced]
    arguments = ("partials", "reduced")
    in_blocks = bool(facts.summed and facts.binding.block)
    body = finished(accumulator, in_blocks)
    doc = "Combine the partial results in order."
    made = make_function("njit(**CODE, cache=True)", name, arguments, doc, body)
    print_once(writer, made)
    return Entry(name, number, "finish", arguments)
