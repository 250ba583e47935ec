"""Kernels of the CPU target: chunks of vertices over threads, one thread a vertex.

A chunk is a range of bitvector words with about as much work as every other, so a
thread writes whole words and pull needs no atomics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from featgraph.fold.codegen.cpu.arrays import CpuArrays
from featgraph.fold.codegen.cpu.queue import print_queue
from featgraph.fold.codegen.cpu.triangles import print_triangles
from featgraph.fold.codegen.cpu.vectors import VectorBody
from featgraph.fold.codegen.functions.featurewise import Context, Printed
from featgraph.fold.lowering.blocks import finished
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.lowering.layouts import layout_of
from featgraph.fold.lowering.passes import lower
from featgraph.fold.lowering.stages import has_nest
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.pulled_edges import WORDS as PULLED
from featgraph.fold.plan.worklist import is_queued
from featgraph.fold.printing.statements import print_body
from featgraph.fold.schedules.cpu import CpuSchedule

if TYPE_CHECKING:
    from featgraph.fold.codegen.module import Entry

__all__ = [
    "DECORATOR",
    "LIBRARY",
    "constants",
    "imports",
    "print_phase",
    "print_queue",
]

DECORATOR = "@njit(**INLINE)"
LIBRARY = "cpu"


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
    if phase.kind == "triangle":
        return print_triangles(context, plan, number, phase)
    body = _CpuBody(context, plan, phase, printed, LIBRARY, "{}")
    return _CpuPhase(context, plan, number, phase, printed, body).run()


class _CpuBody(VectorBody):
    """Names the features in front of everything else."""

    def name_features(self) -> None:
        """Print the names of the features; LLVM folds them into constants."""
        if self.loops or all(
            p.is_collective or p.function.is_scalar for p in self.printed.values()
        ):
            return
        self.writer.line(
            "f_0 = chunk - chunk  # not a literal, or each feature would be compiled "
            "apart"
        )
        for j in range(1, self.copies):
            self.writer.line(f"f_{j} = f_0 + {j}")


class _CpuPhase(CpuArrays):
    body: _CpuBody

    def run(self) -> list[Entry]:
        kinds = {
            "vertex": self._vertex,
            "push": self._push,
            "edge": self._edge,
            "reduce": self._reduce,
        }
        return kinds[self.phase.kind]()

    def _entry(self, name: str, role: str, arguments: list[str]) -> Entry:
        from featgraph.fold.codegen.module import Entry

        return Entry(name, self.number, role, tuple(arguments))

    @contextmanager
    def _kernel(self, arguments: list[str], doc: str) -> Iterator[None]:
        """Print the sweep of one chunk, and the kernel that calls it for every chunk.

        The sweep is a function of its own because Numba takes scalars that a parallel
        loop updates for its reductions; and a single chunk needs no parallel one. A
        thread takes the next chunk as soon as it is free: what is due often stands
        together, and Numba would give neighboring chunks to one thread. The first turn
        of each thread does it all.
        """
        writer = self.writer
        inner = [a for a in arguments if a != "chunks"]
        sweep = f"sweep_{self.number}"
        writer.line()
        writer.line()
        writer.line("@njit(**SWEEP)")
        with writer.block(
            f"def {sweep}({', '.join(['chunk', 'first_word', 'last_word', *inner])}):"
        ):
            writer.line(f'"""{doc}"""')
            # A nest declares what it works in.
            if not has_nest(self.plan, self.phase):
                self.body.name_features()
                self.arrays()
            yield
        writer.line()
        writer.line()
        writer.line("@njit(**KERNEL)")
        bounds = ["chunk", "chunks[chunk]", "chunks[chunk + 1]"]
        with writer.block(f"def {self.name}({', '.join(arguments)}):"):
            writer.line("taken = np.zeros(1, np.int64)")
            with writer.block("for turn in prange(chunks.size - 1):"):
                writer.line("chunk = cpu.atomic_add(taken, 0, 1)")
                with writer.block("while chunk < chunks.size - 1:"):
                    writer.line(f"{sweep}({', '.join([*bounds, *inner])})")
                    writer.line("chunk = cpu.atomic_add(taken, 0, 1)")

    @contextmanager
    def _words(self) -> Iterator[None]:
        with self.writer.block("for word in range(first_word, last_word):"):
            yield

    @contextmanager
    def _swept_words(self) -> Iterator[None]:
        """Print the loop over the words that a chunk has of those to sweep."""
        with self.writer.block("for place in range(first_word, last_word):"):
            self.writer.line("word = swept_words[place]")
            yield

    @contextmanager
    def _each_set_bit(self, words: str, vertex: str) -> Iterator[None]:
        writer = self.writer
        writer.line(f"pending = {words}[word]")
        with writer.block("while pending != 0:"):
            writer.line("bit = cpu.trailing_zeros(pending)")
            if self.phase.spreads:
                writer.line("done_bits |= uint32(1) << uint32(bit)")
            else:
                writer.line("pending = uint32(pending & (pending - uint32(1)))")
            writer.line(f"{vertex} = word * 32 + bit")
            yield

    def _vertex(self) -> list[Entry]:
        pulls = self.phase.pulls_edges
        nested = has_nest(self.plan, self.phase)
        layout = layout_of(self.plan, self.phase)
        arguments = ["d", *(PULLED if pulls else ["due"]), "passed", "chunks"]
        arguments.append("swept_words")
        arguments += ["changed_sources", "stale"] if self.phase.keeps else []
        takes_active = self.plan.takes_active(self.phase)
        arguments += ["active_sources"] if takes_active else []
        if any(f.kind == "gather" for f in self.plan.functions_of(self.phase)):
            arguments += layout.arrays if nested else self.phase.rows.arguments
        if self.phase.spreads:
            arguments += ["spreads", "allowed", "out_offsets", "out_targets"]
        writer = self.writer
        doc = (
            "Sweep vertices of a chunk, and run the edge functions on their in-edges "
            "from sources; `targets` gets those with an edge that returned True, "
            "`passed` the due ones that end with True."
            if pulls
            else "Sweep the due vertices of a chunk; `passed` gets those that end with "
            "True."
        )
        if nested:
            with self._kernel(arguments, doc):
                self._nest(arguments)
            return [self._entry(self.name, "main", arguments)]
        with self._kernel(arguments, doc), self._swept_words():
            writer.line("done = uint32(0)")
            if self.phase.spreads:
                writer.line("done_bits = uint32(0)")
            if pulls:
                writer.line("hit = uint32(0)")
            with self._each_set_bit("swept" if pulls else "due", "v"):
                self.body.vertex()
                if pulls:
                    with writer.block("if edge_passed:"):
                        writer.line("hit |= uint32(1) << uint32(bit)")
                with writer.block("if alive:"):
                    writer.line("done |= uint32(1) << uint32(bit)")
                    self._spread()
                self.body.copy_entries(self.phase.restores, "v", "else:")
                if self.phase.spreads:
                    writer.line("pending = uint32(due[word] & ~done_bits)")
            writer.line("passed[word] = done")
            if pulls:
                writer.line("targets[word] = hit")
        return [self._entry(self.name, "main", arguments)]

    def _spread(self) -> None:
        """Make the vertices that gather from `v` due, in later words and this one."""
        writer = self.writer
        if not self.phase.spreads:
            return
        with (
            writer.block("if spreads:"),
            writer.block("for slot in range(out_offsets[v], out_offsets[v + 1]):"),
        ):
            writer.line("target = out_targets[slot]")
            tests = "cpu.test_bit(allowed, target) and not cpu.test_bit(due, target)"
            with writer.block(f"if {tests}:"):
                writer.line("cpu.set_bit(due, target)")

    def _push(self) -> list[Entry]:
        arguments = ["d", "due", "chunks", *layout_of(self.plan, self.phase).arrays]
        arguments += ["active_sources"] * self.plan.takes_active(self.phase)
        doc = (
            "Push along the out-edges of a chunk of sources into the due targets."
            if self.phase.along == "in"
            else "Push from a chunk of neighbors into the due vertices."
        )
        with self._kernel(arguments, doc):
            self._nest(arguments)
        return [self._entry(self.name, "main", arguments)]

    def _nest(self, arguments: list[str]) -> None:
        """Print the body of a sweep from its nest."""
        facts = self._facts(("chunk", "first_word", "last_word", *arguments))
        print_body(self.writer, lower(facts))

    def _facts(self, arguments: tuple[str, ...] = ()) -> Facts:
        facts = Facts(self.context, self.plan, self.phase, self.printed, CpuSchedule())
        facts.arguments = arguments
        return facts

    def _edge(self) -> list[Entry]:
        arguments = ["d", "sources", "targets", "chunks"]
        arguments += layout_of(self.plan, self.phase).arrays
        arguments += ["edge_state"] * self.plan.keeps_edge_state
        doc = (
            "Sweep the out-edges of a chunk of sources; `targets` gets their ends "
            "where the verdict is True."
        )
        with self._kernel(arguments, doc):
            self._nest(arguments)
        return [self._entry(self.name, "main", arguments)]

    def _reduce(self) -> list[Entry]:
        arguments = ["d", "due", "partials", "chunks"]
        doc = "Reduce a chunk of vertices into its row of `partials`."
        with self._kernel(arguments, doc):
            self._nest(arguments)
        finish = f"{self.name}_finish"
        self._print_finish(finish)
        return [
            self._entry(self.name, "main", arguments),
            self._entry(finish, "finish", ["partials", "reduced"]),
        ]

    def _print_finish(self, name: str) -> None:
        """Print the kernel that combines the rows of `partials`."""
        facts, writer = self._facts(), self.writer
        accumulator = facts.accumulators[self.phase.into]
        writer.line()
        writer.line()
        writer.line("@njit(**CODE, cache=True)")
        with writer.block(f"def {name}(partials, reduced):"):
            writer.line('"""Combine the partial results in order."""')
            in_blocks = bool(facts.summed and facts.binding.block)
            features = f"range({accumulator.size})"
            print_body(writer, finished(accumulator, features, in_blocks))
