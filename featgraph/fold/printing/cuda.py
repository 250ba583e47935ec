"""Printer of the CUDA target: kernels of phases and of hubs, and the worklist loop.

`print_phase` prints the kernel of a phase, and those of its hubs and of the last step
of a reduce. Words in which a kernel sets bits (`passed`, `targets`) must be zero before
its launch. `print_queue` prints the kernel that loops over supersteps of few vertices
(0042), and `print_stage` the kernel that also runs a stage of another plan (0098).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import replace
from featgraph.cuda.dialect import import_of_numbers
from featgraph.fold.analysis.gathers import memory_dtype
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.bodies.memory import STRIDES
from featgraph.fold.passes.nests.accumulators import accumulator_of
from featgraph.fold.passes.nests.blocks import finished_by_blocks
from featgraph.fold.passes.nests.facts import NestFacts, layout_of
from featgraph.fold.passes.nests.gathers import part_arrays
from featgraph.fold.passes.nests.homes import home_of
from featgraph.fold.passes.nests.meets import group_areas, scratch_of
from featgraph.fold.passes.passes import lower
from featgraph.fold.passes.worklists.cuda import CudaWorklist
from featgraph.fold.plan.plan import WORKLIST, FoldPlan, Phase
from featgraph.fold.plan.traits import along_to_push
from featgraph.fold.plan.worklist import parts_of
from featgraph.fold.printing.module import (
    Entry,
    Field,
    KernelSource,
    Queue,
    StageSource,
)
from featgraph.fold.printing.writer import (
    PhaseToPrint,
    Writer,
    make_function,
    print_function,
)
from featgraph.fold.schedules.base import GraphArray, Schedule
from featgraph.fold.schedules.lanes import SHARED_BYTES
from featgraph.fold.schedules.mapping import BLOCK_THREADS, HUB_THREADS
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.fold.syntax.arithmetic import unsigned_indices
from featgraph.fold.tree.statements import Body, code, when

__all__ = [
    "DECORATOR",
    "IMPORTS",
    "constants",
    "device_modules",
    "print_phase",
    "print_queue",
    "print_stage",
]

#: Decorator of functions that only generated code calls.
DECORATOR = "device_function"
#: Imports of all modules, beside the standard library's and `device_modules`.
IMPORTS = (
    import_of_numbers(
        "boolean", "float32", "float64", "int32", "int64", "uint32", "uint64"
    ),
    "",
    "from featgraph.cuda.dialect import cuda, device_function, kernel",
)


def device_modules(plan: FoldPlan) -> dict[str, bool]:
    """Return modules of `featgraph.device` -> whether functions of a plan call them.

    Names are texts behind ``import``.
    """
    solving = [
        p
        for p in plan.phases
        if any(f.operations & {"solve", "inverse"} for f in plan.functions_of(p))
    ]
    areas = (p.mapping.lanes_per_edge > 1 and not p.mapping.tile for p in solving)
    alone = [p for p in solving if p.mapping.lanes_per_edge == 1]
    modules = {
        "warp": True,
        "linalg_cuda as linalg": any(areas),
        "linalg_thread": any(not _in_registers(plan, p) for p in alone),
    }
    for phase in plan.phases:
        modules |= dict.fromkeys(phase.schedule.modules, True)
    if plan.frontier_form == WORKLIST:
        modules["queue_cuda as queues"] = True
    modules["numbers_cuda as numbers"] = plan.analysis.uses_numbers(cuda=True)
    return modules


def _in_registers(plan: FoldPlan, phase: Phase) -> bool:
    """Whether a thread solves the systems of a phase in registers."""
    inverts = any("inverse" in f.operations for f in plan.functions_of(phase))
    return phase.width <= phase.schedule.most_held and not inverts


def constants(plan: FoldPlan) -> list[str]:
    """Return the lines of the module's constants: none on CUDA."""
    return []


def print_phase(one: PhaseToPrint) -> list[Entry]:
    """Print the kernels of a phase: two for a reduce, or for a phase with hubs."""
    entries = _CudaPhase(one).run()
    # Kernels of hubs are launched first, since they take longest.
    if one.phase.mapping.hubs and one.plan.frontier_form == "plain":
        entries = _HubPhase(one).run() + entries
    return entries


#: Frontier form -> sentence in the docstring of a kernel.
_FORMS = {
    "plain": "",
    "packed": " Warps pack those that they find.",
    "listed": " They are on a list.",
}


class _CudaPhase:
    """Printer of the kernel of a phase."""

    role = "main"
    #: Suffix of the names of its kernels.
    suffix = ""

    def __init__(self, one: PhaseToPrint) -> None:
        plan, phase = one.plan, one.phase
        self.one, self.plan, self.phase, self.number = one, plan, phase, one.number
        self.context, self.writer = one.context, one.writer
        self.functions = plan.functions_of(phase)
        self.frontier_form = plan.frontier_form
        form = "" if plan.frontier_form == "plain" else f"{plan.frontier_form}_"
        self.name = f"{form}{phase.kind}_phase_{one.number}{self.suffix}"
        self.scratch: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.parts = dict(self.scratch)

    @property
    def schedule(self) -> Schedule:
        """Mapping of vertices, edges and features to threads."""
        return self.phase.schedule

    @property
    def arrays(self) -> tuple[GraphArray, ...]:
        """Arrays that assign vertices or edges to threads."""
        own = self.schedule.arrays(self.phase.mapping, self.frontier_form)
        return (*own, *self.one.ordered)

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        own = self.schedule.threads(self.phase.mapping)
        stages = self._strides() > 1  # a matrix, in blocks of the default size
        return own if own and not stages else BLOCK_THREADS

    def run(self) -> list[Entry]:
        """Print the kernels of the phase."""
        facts = self.facts(self.threads)
        self.scratch, self.parts = scratch_of(facts), part_arrays(facts)
        arguments = (*self._arguments(facts), *self.scratch, *self.parts)
        facts = replace(facts, arguments=arguments, covers=self.covers)
        decorator = f"kernel(cache=True, launch_bounds={self._bounds()})"
        body = unsigned_indices(lower(facts))
        made = make_function(decorator, self.name, arguments, self._doc(facts), body)
        print_function(self.writer, made)
        return self._entries(facts)

    def facts(self, threads: int) -> NestFacts:
        """Return the facts of the kernel, for blocks of `threads`."""
        return self.one.facts(self.schedule, threads)

    @property
    def covers(self) -> bool:
        """Whether the grid has a thread for each vertex, so that kernels need no loop.

        The loop alone took up to 1.6 times as long as the work of a thread for a vertex
        of few edges (H200). Grids are smaller where groups have scratch memory, or a
        prologue that one vertex does not repay.
        """
        loops = bool(self.scratch) or self._strides() > 1
        loops = loops or not self.phase.kind.reports_due or self.phase.kind.in_turns
        lists = self.phase.mapping.lists_rows or self.phase.changed_only
        return not (loops or lists) and self.frontier_form == "plain"

    # -- around the kernel

    def _arguments(self, facts: NestFacts) -> list[str]:
        mapping, is_main = self.phase.mapping, self.role == "main"
        places = [array.name for array in self.arrays] or ["vertex_count"]
        places += self.schedule.launched
        listed = ["listed"] * (self.frontier_form == "listed")
        more = [*listed, *["hub_degree"] * (is_main and mapping.hubs)]
        return self.phase.kind.arguments(facts, places, more)

    def _doc(self, facts: NestFacts) -> str:
        """Return the docstring of the kernel."""
        doc = self.phase.kind.title(facts)
        if self.phase.kind.intersects:
            return doc
        if self.role == "hubs":
            part = "part of the row of a " if facts.binding.part else ""
            doc += f" A block for each {part}hub."
        else:
            doc += _FORMS[self.frontier_form]
        if self.phase.mapping.lists_rows:
            doc += " Warps have equal shares of their edges."
        return doc

    def _bounds(self) -> int | tuple[int, int]:
        """Return the launch bounds: threads a block, and resident blocks."""
        mapping = self.phase.mapping
        blocks, threads = max(mapping.resident, self.schedule.fitting), BLOCK_THREADS
        if self.role == "hubs":
            threads = mapping.hub_threads or HUB_THREADS
            blocks = mapping.hub_resident
        # So many blocks of the default size: of others, as many threads.
        resident = blocks * threads // self.threads
        return (self.threads, resident) if resident else self.threads

    def _strides(self) -> int:
        """Return the least number of vertices for each group of lanes.

        It is more than 1 if each block first copies a matrix to shared memory.
        """
        in_blocks = any(not s.in_registers for s in self.context.staged.values())
        return STRIDES if in_blocks else 1

    def _entries(self, facts: NestFacts) -> list[Entry]:
        """Return the descriptions of the kernels; print the last step of a reduce."""
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


class _HubPhase(_CudaPhase):
    """Printer of the kernel in which a block takes one vertex of high degree."""

    role = "hubs"
    suffix = "_hubs"

    @property
    def schedule(self) -> Schedule:
        """Schedule of hubs, which the schedule of the phase names."""
        own = super().schedule
        if self.phase.kind.pushes:  # pushed values meet in memory
            return SCHEDULES[own.parts_schedule]
        if self.phase.mapping.in_parts:
            return SCHEDULES[own.joined_parts_schedule]
        return SCHEDULES[own.hub_schedule]

    @cached_property
    def threads(self) -> int:
        """Threads of a block, halved until their areas fit shared memory."""
        mapping = self.phase.mapping
        own = self.schedule.threads(mapping)
        if own:
            return own
        threads, lanes = mapping.hub_threads or HUB_THREADS, mapping.lanes_per_edge
        areas = group_areas(self.facts(BLOCK_THREADS))
        size = sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in areas)
        while threads > BLOCK_THREADS and threads // lanes * size > SHARED_BYTES:
            threads //= 2
        return threads


#: Threads of a block of the loop.
_QUEUE_THREADS = 512
#: One block a multiprocessor: without this bound, the compiler chose 32 registers and
#: spilled.
_BOUNDS = (_QUEUE_THREADS, 1)
#: First arguments of the functions of a superstep.
_OF_A_STEP = ["d", "lists", "step_number", "rows", "leaf_count", "edge_count"]


def print_queue(
    writer: Writer,
    context: Context,
    plan: FoldPlan,
    callees: dict[str, Callee],
    fields: tuple[Field, ...],
) -> Queue:
    """Print the loop over supersteps of a plan of one phase.

    Returns
    -------
    Queue
        Its description for the runtime.
    """
    return _QueuePrinter(writer, CudaWorklist(context, plan, callees)).run()


class _QueuePrinter:
    """Print the parts of a superstep, and the kernel that loops over them."""

    def __init__(self, writer: Writer, worklist: CudaWorklist) -> None:
        self.writer, self.worklist, self.facts = writer, worklist, worklist.facts
        memory = [home.array for home in worklist.entries]
        self.arrays = [*self.facts.layout.arrays, *memory]

    def run(self) -> Queue:
        """Print the functions; return the description of the loop."""
        worklist, phase = self.worklist, self.facts.phase
        identities = "".join(f"{home.identity}, " for home in worklist.entries)
        self.writer.line()
        self.writer.line()
        self.writer.line(f"IDENTITIES = ({identities.rstrip()})")
        first = ["d"] * worklist.at_once + ["lists", *self.facts.layout.arrays]
        more: list[str] = []
        if worklist.waits:
            first, more = (
                ["d", "lists", "far_lists", *first[1:]],
                ["far_lists", "far_side"],
            )
            self._print_far(first)
        self._function(
            "begin_0", first, worklist.begin,
            "List the vertices that are active at first.",
        )  # fmt: skip
        if worklist.before:
            self._function(
                "goes_on_0", ["v", "d"], worklist.goes_on,
                "Whether vertex `v` goes on to its gathers.",
            )  # fmt: skip
        inner = [*_OF_A_STEP, *more, *self.arrays]
        (self._print_at_once if worklist.at_once else self._print_parts)(inner)
        arguments = ["d", "lists", *more[:1], *self.arrays]
        self._print(
            f"kernel(cache=True, launch_bounds={_BOUNDS})", "supersteps_0",
            arguments, worklist.loop(", ".join(first), ", ".join(inner)),
            "Run supersteps while few edges lead out of active vertices.",
        )  # fmt: skip
        entry = Entry(
            "supersteps_0", 0, "main", tuple(arguments), {}, _QUEUE_THREADS,
            _BOUNDS,
        )  # fmt: skip
        return Queue(
            "supersteps_0", tuple(arguments), self.facts.layout.arrays,
            self._types(), phase.writes_next, worklist.pushed.rows_along, entry,
            marks_steps=worklist.at_once,
        )  # fmt: skip

    def _print_parts(self, inner: list[str]) -> None:
        """Print the functions for edges, and for vertices behind all edges."""
        worklist = self.worklist
        if worklist.repeats:
            self._function(
                "gather_0", inner, worklist.gather,
                "Meet vertices, and contribute along the edges out of the sources.",
            )  # fmt: skip
        else:
            self._function(
                "meet_0", inner, worklist.meet,
                "Meet the sources, and the vertices that edges lead to.",
            )  # fmt: skip
            self._function(
                "push_0", inner, worklist.push,
                "Contribute along the edges out of the sources.",
            )  # fmt: skip
        self._function(
            "commit_0", inner, worklist.commit,
            "Run the vertices that were met; those that commit are the next sources.",
        )  # fmt: skip

    def _print_at_once(self, inner: list[str]) -> None:
        """Print the functions that settle vertices edge by edge."""
        worklist = self.worklist
        self._function(
            "settled_0",
            ["u", "v", "e", "d", "lists", "step_number", "inside_edge"],
            worklist.settled_at_once,
            "Run vertex `v` by an edge that finds all it gathers, and if it commits.",
            worklist.of_an_edge,
        )  # fmt: skip
        self._function(
            "gather_0", inner, worklist.gather_at_once,
            "Settle vertices along the edges out of the sources, which come next.",
        )  # fmt: skip

    def _print_far(self, given: list[str]) -> None:
        """Print the functions that separate near vertices from waiting ones."""
        worklist, own = self.worklist, ["v", "d", "lists", "far_lists"]
        self._function(
            "is_near_0", own, worklist.near,
            "Whether vertex `v` need not wait.",
        )  # fmt: skip
        self._function(
            "first_key_0", own, worklist.first_key,
            "Return the first key of vertex `v`.",
        )  # fmt: skip
        self._function(
            "refill_0", ["step_number", "meets", "far_side", *given], worklist.refill,
            "Move the limit if no vertex is near, and list those that are then.",
        )  # fmt: skip

    def _function(
        self,
        name: str,
        arguments: list[str],
        nest: Callable[[], Body],
        doc: str,
        facts: NestFacts | None = None,
    ) -> None:
        """Print a function that calls user functions."""
        own = facts or self.facts
        own.nest = nest
        # The body may call these functions of the module.
        own.arguments = (
            *arguments, "goes_on_0", "is_near_0", "first_key_0", "settled_0"
        )  # fmt: skip
        self._print("device_function", name, arguments, lower(own), doc)

    def _print(
        self, decorator: str, name: str, arguments: list[str], body: Body, doc: str
    ) -> None:
        made = make_function(decorator, name, arguments, doc, unsigned_indices(body))
        print_function(self.writer, made)

    def _types(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Return the dtypes and shapes of accumulators in memory."""
        found = []
        for home in self.worklist.entries:
            own, real = home.accumulator, self.facts.context.real
            dtype = "int64" if own.is_arg else memory_dtype(own.type, real)
            found.append((home.array, dtype, own.shape))
        return tuple(found)


#: First lines of a module with a stage: it imports the modules of loop and stage.
_STAGE_HEAD = """
import {step} as step
import {stage} as stage
{numbers}

from featgraph.cuda.dialect import cuda, kernel
from featgraph.device import queue_cuda as queues
from featgraph.device import warp
"""
#: A superstep runs its loop body; if it leaves no active vertex, the stage runs behind.
_STAGE_LOOP = """
step_number, meets, is_staged = int64(0), int64(0), False
step.begin_0(FIRST)
meets = queues.meet(lists, meets)
while queues.goes_on_behind(lists, step_number, is_staged):
    rows, leaf_count, edge_count = queues.sizes_of(lists, step_number)
    queues.clear(lists, step_number)
    GATHER
    meets = queues.meet(lists, meets)
    queues.watch(lists, step_number)
    COMMIT
    meets = queues.meet(lists, meets)
    step_number += 1
    is_staged = queues.is_idle(lists, step_number)
    if is_staged:
        queues.note_stage(lists, step_number)
        STAGE
        meets = queues.meet(lists, meets)
queues.leave(lists, step_number)
"""
#: All lanes of a warp reach `append_row`, which uses votes.
_STAGE_VERTICES = """
first = int32(cuda.grid(1) - cuda.laneid)
while first < everyone.size * 32:
    v = int32(first + cuda.laneid)
    alive = warp.test_bit(everyone, v)
    out_degree = int64(0)
    RUN
    queues.append_row(alive, v, out_degree, lists, step_number)
    first = int32(first + cuda.gridsize(1))
"""
#: Combine in a thread, then in a warp, then by one atomic of each warp.
_STAGE_REDUCE = """
queues.begin_result({into}, {identity})
meets = queues.meet(lists, meets)
part = {type}({identity})
for place in range(cuda.grid(1), everyone.size * 32, cuda.gridsize(1)):
    if warp.test_bit(everyone, place):
        v = int32(place)
        {update}
part = warp.group_{shuffle}(part, 32)
if cuda.laneid == 0:
    {atomic}
meets = queues.meet(lists, meets)
"""


def print_stage(
    step: KernelSource, stage: KernelSource, modules: tuple[str, str]
) -> StageSource:
    """Print a loop over supersteps that runs a stage when no vertex is due.

    Parameters
    ----------
    step, stage : KernelSource
        A module with a loop, and a module that a loop can run as a stage.
    modules : (str, str)
        The names of their modules.
    """
    queue, plan = step.queue, stage.plan
    if queue is None:
        raise TypeError("the kernel has no loop over supersteps")
    steps, results = code(""), list[str]()
    if not plan.phases[0].kind.reduces:
        # All threads must have read the counts before a vertex phase appends to lists.
        steps += code("meets = queues.meet(lists, meets)")
    for number, phase in enumerate(plan.phases):
        functions = plan.functions_of(phase)
        if phase.kind.reduces:
            results.append(f"reduced_{number}")
            steps += _reduced(plan, number, results[-1])
            continue
        run: Body = _degree(step.plan)
        for function in reversed(functions):
            called = code(f"alive = stage.{function.name}(v, s)")
            run = [*called, *when(["alive"], run)]
        steps += code(_STAGE_VERTICES, RUN=when(["alive"], run))
    before, _, _ = parts_of(step.plan.analysis.functions)
    rows, far = [n for n in queue.arguments if n != "far_lists"][2:], list[str]()
    first = ["lists", *queue.graph]
    if "far_lists" in queue.arguments:  # no vertex waits in this loop
        first, far = ["d", "lists", "far_lists", *queue.graph], ["far_lists", "0"]
    inner = ", ".join([*_OF_A_STEP, *far, *rows])
    gather = code(f"step.gather_0({inner})")
    if any(a.mode != "read" for f in before for a in f.accesses):
        meets = "meets = queues.meet(lists, meets)"
        gather = code(f"step.meet_0({inner})\n{meets}\nstep.push_0({inner})")
    body = code(
        _STAGE_LOOP.replace("FIRST", ", ".join(first)), GATHER=gather, STAGE=steps,
        COMMIT=code(f"step.commit_0({inner})"),
    )  # fmt: skip
    writer, doc = Writer(), "Run supersteps, and a stage where nothing is due."
    writer.line(f'"""{doc}"""')
    numbers = import_of_numbers("int32", "int64", "uint32")
    head = _STAGE_HEAD.format(step=modules[0], stage=modules[1], numbers=numbers)
    for line in head.splitlines():
        writer.line(line)
    arguments = (*queue.arguments, "s", "everyone", *results)
    decorator = f"kernel(cache=True, launch_bounds={_BOUNDS})"
    name = "supersteps_and_stages_0"
    body = unsigned_indices(body)
    print_function(writer, make_function(decorator, name, arguments, doc, body))
    return StageSource(
        name, arguments, frozenset(), writer.text, step.stem, step.program
    )


def _degree(plan: FoldPlan) -> Body:
    """Return statements that bind the degree of `v` in the rows of pushed edges."""
    [phase] = plan.phases
    _, gathers, _ = parts_of(plan.functions_of(phase))
    along = along_to_push(phase.along, gathers, plan.analysis, plan.traits)
    layout = layout_of(plan, replace(phase, along=along))
    return layout.row("v") + code(f"out_degree = int64({layout.degree})")


def _reduced(plan: FoldPlan, number: int, into: str) -> Body:
    """Return a reduce over all vertices by atomics.

    The result does not depend on the order: only such reduces run in stages.
    """
    [function] = plan.functions_of(plan.phases[number])
    own = accumulator_of(function, plan.analysis)
    [atomic] = own.atomic(into, "0", "part", "warp", plan.real)
    return code(_STAGE_REDUCE.format(
        into=into, identity=own.identity, type=own.type, shuffle=own.rules.shuffle,
        update=own.update("part", f"stage.{function.name}(v, s)"), atomic=atomic,
    ))  # fmt: skip
