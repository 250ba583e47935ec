"""Kernels of the CPU target: chunks of vertices over threads, one thread a vertex.

A chunk is a range of bitvector words with about as much work as every other, so a
thread writes whole words and pull needs no atomics.
"""

from __future__ import annotations

from featgraph.base.dataclass import replace
from featgraph.fold.passes.nests.blocks import finished
from featgraph.fold.passes.nests.passes import lower
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.worklist import is_queued, why_not_staged
from featgraph.fold.printing.cpu import compiled, in_parallel, unsigned_vertices
from featgraph.fold.printing.cpu_queue import print_queue
from featgraph.fold.printing.module import Entry
from featgraph.fold.printing.phase import PhaseToPrint
from featgraph.fold.printing.statements import make_function, print_function

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
#: In modules without reals.
_UNCOUNTED = [
    "# Arrays are the caller's, who counts references to them.",
    'CODE |= {"_nrt": False}',
]


def imports(plan: FoldPlan) -> list[str]:
    """Return the import statements of the module."""
    solves = any("solve" in f.operations for f in plan.analysis.functions)
    systems = any(f.operations & {"solve", "inverse"} for f in plan.analysis.functions)
    modules = {
        "cpu": True,
        "queue_cpu as queue": is_queued(plan),
        "linalg_cpu as linalg": systems,
        "cholesky_cpu as cholesky": solves,
        "tiles_cpu as tiles": solves or any(p.tiles for p in plan.phases),
        "numbers_cpu as numbers": plan.analysis.uses_numbers(cuda=False),
        "vectors_cpu as vectors": any(p.mapping.is_looped for p in plan.phases),
    }
    lines = ["import math", "from collections import namedtuple", ""]
    lines += ["import numpy as np"]
    lines += ["from numba import float32, float64, int32, int64, njit, uint32", ""]
    lines += [
        f"from featgraph.device import {n}" for n, used in modules.items() if used
    ]
    return lines


def constants(plan: FoldPlan) -> list[str]:
    """Return the module's constants."""
    lines = [
        "# nnan and ninf are never allowed: inf and nan stay testable.",
        "FAST = {" + ", ".join(f'"{flag}"' for flag in FAST) + "}",
        'CODE = {"error_model": "numpy", "fastmath": FAST, "no_cfunc_wrapper": True}',
        *([] if plan.analysis.has_reals else _UNCOUNTED),
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
    is_inlined = any(f.is_inlined for f in plan.analysis.functions)
    if is_inlined or any(p.mapping.is_looped for p in plan.phases) or is_queued(plan):
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
    schedule = phase.schedule
    facts = one.facts(schedule)
    arrays = (*schedule.arrays(phase.mapping), *one.ordered)
    name, sweep = f"{phase.kind}_phase_{number}", f"sweep_{number}"
    places = dict.fromkeys(["chunks", *(array.name for array in arrays)])
    places |= dict.fromkeys(schedule.launched)
    arguments = phase.kind.arguments(facts, list(places), [])
    inner = [a for a in arguments if a not in {"chunks", "turns"}]
    facts.arguments = ("chunk", *phase.kind.chunk, *inner)
    flags = "IN_A_TREE" if phase.in_a_tree else "SWEEP"
    body = lower(facts)
    if not phase.kind.intersects:  # whose loops over pairs of rows take longer for it
        body = unsigned_vertices(body, facts.plan.traits.wide_offsets)
    title, plan = phase.kind.title(facts), facts.plan
    sweeps = compiled(flags, body, plan)
    made = make_function(sweeps, sweep, facts.arguments, title, body)
    print_function(writer, made)
    all_chunks = in_parallel(sweep, inner, phase.kind.in_turns)
    made = make_function("njit(**CALLED)", name, arguments, "", all_chunks)
    print_function(writer, made)
    main = Entry(name, number, "main", tuple(arguments))
    entries = [replace(main, schedule=schedule, arrays=arrays)]
    if phase.kind.reduces and not phase.in_a_tree:
        in_blocks = bool(facts.summed and facts.binding.block)
        accumulator = facts.accumulators[facts.reduced]
        size = facts.binding.features.any_width or str(accumulator.size)
        body, in_numpy = finished(
            accumulator, in_blocks, size,
            called_by_loops=not why_not_staged(plan),
        )  # fmt: skip
        doc = "Combine the partial results in order."
        decorator = "" if in_numpy else compiled("CALLED", body, plan)
        entries.append(one.finish(f"{name}_finish", decorator, doc, body))
    return entries
