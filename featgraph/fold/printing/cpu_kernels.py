"""Kernels of the CPU target: chunks of vertices over threads, one thread a vertex.

A chunk is a range of bitvector words with about as much work as every other, so a
thread writes whole words and pull needs no atomics.
"""

from __future__ import annotations

from featgraph.fold.functions.facts import Context, Printed
from featgraph.fold.lowering.blocks import finished
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.lowering.passes import lower
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.pulled_edges import WORDS as PULLED
from featgraph.fold.plan.worklist import is_queued
from featgraph.fold.printing.cpu_queue import print_queue
from featgraph.fold.printing.module import Entry
from featgraph.fold.printing.statements import print_body
from featgraph.fold.schedules.intersection import Intersection
from featgraph.fold.schedules.table import SCHEDULES

__all__ = [
    "DECORATOR",
    "constants",
    "imports",
    "print_phase",
    "print_queue",
]

DECORATOR = "@njit(**INLINE)"
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
        "from numba import float32, float64, int32, int64, njit, prange, uint32",
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
    if any(p.mapping.loops for p in plan.phases):
        lines.append("from featgraph.device import vectors_cpu as vectors")
    return lines


def constants(plan: FoldPlan) -> list[str]:
    """Return the module's constants."""
    lines = [
        "# nnan and ninf are never allowed: inf and nan stay testable.",
        'FAST = {"reassoc", "contract", "nsz", "arcp", "afn"}',
        'CODE = {"error_model": "numpy", "fastmath": FAST}',
        "# Called by compiled code alone: no entries from Python are compiled.",
        'INLINE = {**CODE, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}',
        "# Rows are short: lanes sharing a sum of few edges cost more than they save.",
        'SWEEP = {**CODE, "fastmath": FAST - {"reassoc"}, "cache": True}',
        'KERNEL = {**CODE, "parallel": True, "cache": True}',
    ]
    if any(p.mapping.loops for p in plan.phases) or is_queued(plan):
        lines += [
            "# Within loops over edges: what they return stays in registers.",
            'INNER = {**INLINE, "forceinline": True}',
        ]
    return lines


def print_phase(
    context: Context,
    plan: FoldPlan,
    number: int,
    phase: Phase,
    printed: dict[str, Printed],
) -> list[Entry]:
    """Print the kernel of a phase (two for a reduce)."""
    return _CpuPhase(context, plan, number, phase, printed).run()


class _CpuPhase:
    """The kernels of one phase, printed from its nest."""

    def __init__(
        self,
        context: Context,
        plan: FoldPlan,
        number: int,
        phase: Phase,
        printed: dict[str, Printed],
    ) -> None:
        self.writer = context.writer
        self.plan, self.number, self.phase = plan, number, phase
        self.name = f"{phase.kind}_phase_{number}"
        schedule = SCHEDULES[phase.mapping.schedule]
        self.facts = Facts(context, plan, phase, printed, schedule)

    def run(self) -> list[Entry]:
        kinds = {
            "vertex": self._vertex,
            "push": self._push,
            "edge": self._edge,
            "reduce": self._reduce,
            "triangle": self._triangle,
        }
        return kinds[self.phase.kind]()

    def _kernel(self, arguments: list[str], doc: str) -> Entry:
        """Print the sweep of one chunk, and the kernel that calls it for every chunk.

        The sweep is a function of its own because Numba takes scalars that a parallel
        loop updates for its reductions; and a single chunk needs no parallel one. A
        thread takes the next chunk as soon as it is free: what is due often stands
        together, and Numba would give neighboring chunks to one thread. The first turn
        of each thread does it all.
        """
        writer, sweep = self.writer, f"sweep_{self.number}"
        inner = [a for a in arguments if a != "chunks"]
        ends = ("first", "last") if self.phase.kind == "triangle" else _WORDS
        self.facts.arguments = ("chunk", *ends, *inner)
        for line in ("", "", "@njit(**SWEEP)"):
            writer.line(line)
        with writer.block(f"def {sweep}({', '.join(self.facts.arguments)}):"):
            writer.line(f'"""{doc}"""')
            print_body(writer, lower(self.facts))
        for line in ("", "", "@njit(**KERNEL)"):
            writer.line(line)
        bounds = ["chunk", "chunks[chunk]", "chunks[chunk + 1]"]
        with writer.block(f"def {self.name}({', '.join(arguments)}):"):
            writer.line("taken = np.zeros(1, np.int64)")
            with writer.block("for turn in prange(chunks.size - 1):"):
                writer.line("chunk = cpu.atomic_add(taken, 0, 1)")
                with writer.block("while chunk < chunks.size - 1:"):
                    writer.line(f"{sweep}({', '.join([*bounds, *inner])})")
                    writer.line("chunk = cpu.atomic_add(taken, 0, 1)")
        return self._entry(self.name, "main", arguments)

    def _entry(self, name: str, role: str, arguments: list[str]) -> Entry:
        return Entry(name, self.number, role, tuple(arguments))

    def _vertex(self) -> list[Entry]:
        plan, phase, pulls = self.plan, self.phase, self.phase.pulls_edges
        arguments = ["d", *(PULLED if pulls else ["due"]), "passed", "chunks"]
        arguments.append("swept_words")
        arguments += ["changed_sources", "stale"] if phase.keeps else []
        arguments += ["active_sources"] if plan.takes_active(phase) else []
        if any(f.kind == "gather" for f in plan.functions_of(phase)):
            arguments += self.facts.layout.arrays
        if phase.spreads:
            arguments += ["spreads", "allowed", *self.facts.layout_along("out").arrays]
        doc = (
            "Sweep vertices of a chunk, and run the edge functions on their in-edges "
            "from sources; `targets` gets those with an edge that returned True, "
            "`passed` the due ones that end with True."
            if pulls
            else "Sweep the due vertices of a chunk; `passed` gets those that end with "
            "True."
        )
        return [self._kernel(arguments, doc)]

    def _push(self) -> list[Entry]:
        arguments = ["d", "due", "chunks", *self.facts.layout.arrays]
        arguments += ["active_sources"] * self.plan.takes_active(self.phase)
        doc = (
            "Push along the out-edges of a chunk of sources into the due targets."
            if self.phase.along == "in"
            else "Push from a chunk of neighbors into the due vertices."
        )
        return [self._kernel(arguments, doc)]

    def _edge(self) -> list[Entry]:
        arguments = ["d", "sources", "targets", "chunks", *self.facts.layout.arrays]
        arguments += ["edge_state"] * self.plan.keeps_edge_state
        doc = (
            "Sweep the out-edges of a chunk of sources; `targets` gets their ends "
            "where the verdict is True."
        )
        return [self._kernel(arguments, doc)]

    def _triangle(self) -> list[Entry]:
        schedule = self.facts.schedule
        if not isinstance(schedule, Intersection):
            raise TypeError(f"{schedule.name} does not intersect rows")
        rows = self.facts.oriented
        return [self._kernel(["d", "chunks", *schedule.arguments(rows)], schedule.does)]

    def _reduce(self) -> list[Entry]:
        arguments = ["d", "due", "partials", "chunks"]
        doc = "Reduce a chunk of vertices into its row of `partials`."
        return [self._kernel(arguments, doc), self._finish(f"{self.name}_finish")]

    def _finish(self, name: str) -> Entry:
        """Print the kernel that combines the rows of `partials`."""
        facts, writer = self.facts, self.writer
        accumulator = facts.accumulators[self.phase.into]
        for line in ("", "", "@njit(**CODE, cache=True)"):
            writer.line(line)
        arguments = ["partials", "reduced"]
        with writer.block(f"def {name}({', '.join(arguments)}):"):
            writer.line('"""Combine the partial results in order."""')
            in_blocks = bool(facts.summed and facts.binding.block)
            features = f"range({accumulator.size})"
            print_body(writer, finished(accumulator, features, in_blocks))
        return self._entry(name, "finish", arguments)
