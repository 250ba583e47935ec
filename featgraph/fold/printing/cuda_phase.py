"""What the CUDA kernels of all mappings have in common."""

from __future__ import annotations

from dataclasses import replace

from featgraph._cached import cached_property
from featgraph.fold.functions.staging import STRIDES
from featgraph.fold.lowering.areas import scratch_of
from featgraph.fold.lowering.blocks import finished_by_blocks
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.lowering.homes import home_of
from featgraph.fold.lowering.joins import parts_of
from featgraph.fold.lowering.layouts import layout_of
from featgraph.fold.lowering.passes import lower
from featgraph.fold.plan.pulled_edges import WORDS as PULLED
from featgraph.fold.plan.schedules import BLOCK_THREADS, HUB_THREADS
from featgraph.fold.printing.module import Entry
from featgraph.fold.printing.phase import PhaseToPrint
from featgraph.fold.printing.statements import (
    make_function,
    print_function,
    print_once,
)
from featgraph.fold.schedules.base import Schedule
from featgraph.fold.schedules.intersection import Intersection
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.fold.syntax.unsigned_indices import unsigned_indices

__all__ = ["CudaPhase"]

_DOCS = {
    "vertex": "Sweep the due vertices; `passed` gets those that end with True.",
    "pulled": (
        "Sweep vertices, and run the edge functions on their in-edges from sources; "
        "`targets` gets those not due before with an edge that returned True, "
        "`passed` the due ones that end with True."
    ),
    "push": "Push along the out-edges of all sources into the due targets.",
    "pushed": "Push from all neighbors into the due vertices.",
    "edge": (
        "Sweep the out-edges of the sources; "
        "`targets` gets their ends where the verdict is True."
    ),
    "changed": (
        "Sweep the edges of which something has changed, from sources; `targets` gets "
        "their ends where the verdict is True, a list the edges."
    ),
    "reduce": "Reduce the due vertices, a row of `partials` for each block.",
    "tree": "Reduce the due vertices, a row of `partials` for each word of them.",
}


_FORMS = {
    "plain": "",
    "packed": " Warps pack those that they find.",
    "listed": " They are on a list.",
}


class CudaPhase:
    """What the kernels of all mappings have in common."""

    role = "main"
    #: The list by which blocks come to vertices of high degree.
    hubs = "hubs"
    #: What the names of its kernels end with.
    suffix = ""

    def __init__(self, one: PhaseToPrint) -> None:
        plan, phase = one.plan, one.phase
        self.one, self.plan, self.phase, self.number = one, plan, phase, one.number
        self.context, self.writer = one.context, one.writer
        self.functions = plan.functions_of(phase)
        self.form = plan.form
        form = "" if plan.form == "plain" else f"{plan.form}_"
        self.name = f"{form}{phase.kind}_phase_{one.number}{self.suffix}"
        self.gathers = any(f.kind.gathers for f in self.functions)
        self.scratch: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.parts = dict(self.scratch)

    @property
    def schedule(self) -> Schedule:
        """How vertices, edges and features go to threads."""
        return SCHEDULES[self.phase.mapping.schedule]

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        own = self.schedule.threads(self.phase.mapping)
        shares = self._strides() > 1  # a copy of a matrix
        return own if own and not shares else BLOCK_THREADS

    def run(self) -> list[Entry]:
        """Print the phase's kernels of this mapping."""
        facts = self.facts(self.threads)
        self.scratch, self.parts = scratch_of(facts), parts_of(facts)
        arguments = (*self._arguments(), *self.scratch, *self.parts)
        facts = replace(facts, arguments=arguments, covers=self.covers)
        decorator = f"kernel(cache=True, launch_bounds={self._bounds()})"
        body = unsigned_indices(lower(facts))
        made = make_function(decorator, self.name, arguments, self._doc(), body)
        print_function(self.writer, made)
        return self._entries(arguments)

    def facts(self, threads: int) -> Facts:
        """Return what passes ask about the kernel, for blocks of some threads."""
        return self.one.facts(self.schedule, threads)

    @property
    def covers(self) -> bool:
        """Whether the grid has a place for each vertex, so that no thread goes round.

        The loop alone took up to 1.6 times as long as all else that a thread did for a
        vertex of few edges (H200). Where groups work in memory of their own, or begin
        with what is worth more than one vertex, grids are smaller.
        """
        loops = bool(self.scratch) or self._strides() > 1
        loops = loops or self.phase.kind in {"reduce", "triangle"}
        lists = self.phase.mapping.lists_rows or self.phase.changed_only
        return not (loops or lists) and self.form == "plain"

    # -- around the kernel

    def _arguments(self) -> list[str]:
        hubs = self.role == "main" and self.phase.mapping.hubs
        if isinstance(self.schedule, Intersection):
            rows = self.facts(self.threads).oriented
            return ["d", *self.schedule.arguments(rows), *["hub_degree"] * hubs]
        if self.phase.changed_only:
            given = ("in_sources", "edge_twin", "edge_state", "changed_edges")
            return ["d", "sources", "targets", *given, "passed_edges", "passed_count"]
        edges = layout_of(self.plan, self.phase).arrays
        count = [self.hubs] if self.role == "hubs" else ["vertex_count"]
        if self.phase.mapping.lists_rows:
            count = ["share_rows", "share_begins", "share_count"]
        elif self.phase.mapping.window and self.role == "main" and self.form == "plain":
            count = ["windows"]
        arguments = {
            "vertex": [
                "d",
                *(PULLED if self.phase.pulls_edges else ["due"]),
                "passed",
                *["some_due"] * self.phase.finds_due,
                *(["changed_sources", "stale"] if self.phase.incremental else []),
                *count,
                *(edges if self.gathers else []),
            ],
            "push": ["d", "due", *count, *edges],
            "edge": [
                "d",
                "sources",
                "targets",
                *count,
                *edges,
                *["edge_state"] * self.plan.has_edge_state,
            ],
            "reduce": [
                "d",
                "due",
                *count,
                *["together", "part_count"] * self.phase.in_a_tree,
                "partials",
            ],
        }[self.phase.kind]
        active = self.plan.takes_active(self.phase)
        return [
            *arguments,
            *["listed"] * (self.form == "listed"),
            *["hub_degree"] * hubs,
            *["active_sources"] * active,
        ]

    def _doc(self) -> str:
        """Return what the kernel does, in words."""
        if isinstance(self.schedule, Intersection):
            return self.schedule.does
        if self.phase.changed_only:
            return _DOCS["changed"]
        if self.phase.in_a_tree:
            return _DOCS["tree"]
        doc = _DOCS["pulled" if self.phase.pulls_edges else self.phase.kind]
        if self.phase.kind == "push" and self.phase.along != "in":
            doc = _DOCS["pushed"]
        if self.role == "hubs":
            part = "" if self.hubs == "hubs" else "part of the row of a "
            doc += f" A block for each {part}hub."
        else:
            doc += _FORMS[self.form]
        if self.phase.mapping.lists_rows:
            doc += " Warps have equal shares of their edges."
        return doc

    def _bounds(self) -> int | tuple[int, int]:
        """Return threads a block, and the blocks that must fit a multiprocessor."""
        mapping = self.phase.mapping
        blocks, threads = mapping.resident, BLOCK_THREADS
        if self.role == "hubs":
            threads = mapping.hub_threads or HUB_THREADS
            blocks = mapping.hub_resident
        resident = blocks * threads // self.threads
        return (self.threads, resident) if resident else self.threads

    def _strides(self) -> int:
        """Return how many vertices a group of lanes takes in turn, at least."""
        in_blocks = any(not s.in_registers for s in self.context.staged.values())
        return STRIDES if in_blocks else 1

    def _entries(self, arguments: tuple[str, ...]) -> list[Entry]:
        main = Entry(
            self.name,
            self.number,
            self.role,
            arguments,
            dict(self.scratch),
            self.threads,
            self._bounds(),
            self._strides(),
            self.covers and self.role == "main",
            dict(self.parts),
        )
        if self.phase.kind != "reduce" or self.phase.in_a_tree:
            return [main]
        finish = f"{self.name}_finish"
        self._print_finish(finish)
        return [
            main,
            Entry(
                finish,
                self.number,
                "finish",
                ("partials", "reduced"),
                {},
                BLOCK_THREADS,
            ),
        ]

    def _print_finish(self, name: str) -> None:
        """Print the kernel that combines the rows of `partials`, pairwise."""
        facts = self.facts(self.threads)
        home = home_of(facts, facts.reduced)
        made = make_function(
            f"kernel(cache=True, launch_bounds={BLOCK_THREADS})",
            name,
            ("partials", "reduced"),
            "Combine the partial results pairwise, a block for each element.",
            unsigned_indices(finished_by_blocks(home, BLOCK_THREADS)),
        )
        print_once(self.writer, made)
