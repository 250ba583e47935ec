"""What the CUDA kernels of all mappings have in common."""

from __future__ import annotations

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import replace
from featgraph.fold.passes.bodies.staging import STRIDES
from featgraph.fold.passes.nests.areas import scratch_of
from featgraph.fold.passes.nests.blocks import finished_by_blocks
from featgraph.fold.passes.nests.facts import Facts
from featgraph.fold.passes.nests.homes import home_of
from featgraph.fold.passes.nests.joins import parts_of
from featgraph.fold.passes.nests.passes import lower
from featgraph.fold.printing.module import Entry
from featgraph.fold.printing.phase import PhaseToPrint
from featgraph.fold.printing.statements import make_function, print_function
from featgraph.fold.schedules.base import GraphArray, Schedule
from featgraph.fold.schedules.mapping import BLOCK_THREADS, HUB_THREADS
from featgraph.fold.syntax.unsigned_indices import unsigned_indices

__all__ = ["CudaPhase"]

_FORMS = {
    "plain": "",
    "packed": " Warps pack those that they find.",
    "listed": " They are on a list.",
}


class CudaPhase:
    """What the kernels of all mappings have in common."""

    role = "main"
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
        self.scratch: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.parts = dict(self.scratch)

    @property
    def schedule(self) -> Schedule:
        """How vertices, edges and features go to threads."""
        return self.phase.schedule

    @property
    def arrays(self) -> tuple[GraphArray, ...]:
        """The arrays by which threads come to what they sweep."""
        own = self.schedule.arrays(self.phase.mapping, self.form)
        return (*own, *self.one.ordered)

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
        arguments = (*self._arguments(facts), *self.scratch, *self.parts)
        facts = replace(facts, arguments=arguments, covers=self.covers)
        decorator = f"kernel(cache=True, launch_bounds={self._bounds()})"
        body = unsigned_indices(lower(facts))
        made = make_function(decorator, self.name, arguments, self._doc(facts), body)
        print_function(self.writer, made)
        return self._entries(facts)

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
        loops = loops or not self.phase.kind.reports_due or self.phase.kind.in_turns
        lists = self.phase.mapping.lists_rows or self.phase.changed_only
        return not (loops or lists) and self.form == "plain"

    # -- around the kernel

    def _arguments(self, facts: Facts) -> list[str]:
        mapping, is_main = self.phase.mapping, self.role == "main"
        places = [array.name for array in self.arrays] or ["vertex_count"]
        places += self.schedule.launched
        listed = ["listed"] * (self.form == "listed")
        more = [*listed, *["hub_degree"] * (is_main and mapping.hubs)]
        return self.phase.kind.arguments(facts, places, more)

    def _doc(self, facts: Facts) -> str:
        """Return what the kernel does, in words."""
        doc = self.phase.kind.title(facts)
        if self.phase.kind.intersects:
            return doc
        if self.role == "hubs":
            part = "part of the row of a " if facts.binding.part else ""
            doc += f" A block for each {part}hub."
        else:
            doc += _FORMS[self.form]
        if self.phase.mapping.lists_rows:
            doc += " Warps have equal shares of their edges."
        return doc

    def _bounds(self) -> int | tuple[int, int]:
        """Return threads a block, and the blocks that must fit a multiprocessor."""
        mapping = self.phase.mapping
        blocks, threads = max(mapping.resident, self.schedule.fitting), BLOCK_THREADS
        if self.role == "hubs":
            threads = mapping.hub_threads or HUB_THREADS
            blocks = mapping.hub_resident
        resident = blocks * threads // self.threads
        return (self.threads, resident) if resident else self.threads

    def _strides(self) -> int:
        """Return how many vertices a group of lanes takes in turn, at least."""
        in_blocks = any(not s.in_registers for s in self.context.staged.values())
        return STRIDES if in_blocks else 1

    def _entries(self, facts: Facts) -> list[Entry]:
        main = Entry(
            self.name, self.number, self.role, facts.arguments, dict(self.scratch),
            self.threads, self._bounds(), self._strides(),
            self.covers and self.role == "main", dict(self.parts), self.schedule,
            self.arrays,
        )  # fmt: skip
        if not self.phase.kind.reduces or self.phase.in_a_tree:
            return [main]
        home = home_of(facts, facts.reduced)
        body = unsigned_indices(finished_by_blocks(home, BLOCK_THREADS))
        decorator = f"kernel(cache=True, launch_bounds={BLOCK_THREADS})"
        doc = "Combine the partial results pairwise, a block for each element."
        finish = f"{self.name}_finish"
        return [main, self.one.finish(finish, decorator, doc, body, BLOCK_THREADS)]
