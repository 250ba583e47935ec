"""Prints supersteps over few vertices as one loop, for the CUDA target (0042, 0098)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from featgraph.base.dataclass import replace
from featgraph.cuda.dialect import import_of_numbers
from featgraph.fold.analysis.gathers import memory_dtype
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.nests.accumulators import accumulator_of
from featgraph.fold.passes.nests.facts import Facts
from featgraph.fold.passes.nests.layouts import layout_of
from featgraph.fold.passes.nests.passes import lower
from featgraph.fold.passes.worklists import at_once
from featgraph.fold.passes.worklists.cuda import CudaWorklist
from featgraph.fold.plan.layout import along_to_push
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.worklist import parts_of
from featgraph.fold.printing.module import (
    Entry,
    Field,
    KernelSource,
    Queue,
    StageSource,
)
from featgraph.fold.printing.statements import make_function, print_function
from featgraph.fold.printing.writer import Writer
from featgraph.fold.syntax.unsigned_indices import unsigned_indices
from featgraph.fold.tree.statements import Body, code, when

__all__ = ["QUEUE_THREADS", "print_queue", "print_stage"]

#: Threads of a block of the loop.
QUEUE_THREADS = 512
#: One block has a multiprocessor, which is told to the compiler: it made do with 32
#: registers otherwise, and spilled.
_BOUNDS = (QUEUE_THREADS, 1)
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
        What the runtime must know of it.
    """
    return _QueuePrinter(writer, CudaWorklist(context, plan, callees)).run()


class _QueuePrinter:
    """Prints the parts of a superstep, and the kernel that loops over them."""

    def __init__(self, writer: Writer, worklist: CudaWorklist) -> None:
        self.writer, self.worklist, self.facts = writer, worklist, worklist.facts
        memory = [home.array for home in worklist.entries]
        self.arrays = [*self.facts.layout.arrays, *memory]

    def run(self) -> Queue:
        """Print them; the last one is told of."""
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
            "supersteps_0", 0, "main", tuple(arguments), {}, QUEUE_THREADS,
            _BOUNDS,
        )  # fmt: skip
        return Queue(
            "supersteps_0", tuple(arguments), self.facts.layout.arrays,
            self._types(), phase.writes_next, worklist.pushed.rows_along, entry,
            marks_steps=worklist.at_once,
        )  # fmt: skip

    def _print_parts(self, inner: list[str]) -> None:
        """Print what goes along edges, and what follows on all of them."""
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
        """Print what settles vertices edge by edge."""
        worklist = self.worklist
        self._function(
            "settled_0",
            ["u", "v", "e", "d", "lists", "step_number", "inside_edge"],
            partial(at_once.settled, worklist, worklist.of_an_edge),
            "Run vertex `v` by an edge that finds all it gathers, and if it commits.",
            worklist.of_an_edge,
        )  # fmt: skip
        self._function(
            "gather_0", inner, partial(at_once.gather, worklist),
            "Settle vertices along the edges out of the sources, which come next.",
        )  # fmt: skip

    def _print_far(self, given: list[str]) -> None:
        """Print what tells near vertices from those that wait."""
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
        facts: Facts | None = None,
    ) -> None:
        """Print a function that runs some of the user's."""
        own = facts or self.facts
        own.nest = nest
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
        """Return the dtypes and shapes of what gathers fill."""
        found = []
        for home in self.worklist.entries:
            own, real = home.accumulator, self.facts.context.real
            dtype = "int64" if own.is_arg else memory_dtype(own.type, real)
            found.append((home.array, dtype, own.shape))
        return tuple(found)


_STAGE_HEAD = """
import {step} as step
import {stage} as stage
{numbers}

from featgraph.cuda.dialect import cuda, kernel
from featgraph.device import queue_cuda as queues
from featgraph.device import warp
"""
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
#: All of a warp take part in finding places for what a stage commits.
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
    """Print a loop over supersteps of a plan that runs a stage where nothing is due.

    Parameters
    ----------
    step, stage : KernelSource
        The loop, and one that no loop can run as a stage is not refused for.
    modules : (str, str)
        The names of their modules.
    """
    queue, plan = step.queue, stage.plan
    if queue is None:
        raise TypeError("a kernel without a loop")
    steps, results = code(""), list[str]()
    if not plan.phases[0].kind.reduces:  # all have looked at counts before any grows
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
    if "far_lists" in queue.arguments:  # where none wait
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
    """Return how many edges lead out of `v`, in the rows that a step pushes along."""
    [phase] = plan.phases
    _, gathers, _ = parts_of(plan.functions_of(phase))
    along = along_to_push(phase.along, gathers, plan.analysis, plan.traits)
    layout = layout_of(plan, replace(phase, along=along))
    return layout.row("v") + code(f"out_degree = int64({layout.degree})")


def _reduced(plan: FoldPlan, number: int, into: str) -> Body:
    """Return a reduce over all vertices, whose order does not matter, by atomics."""
    [function] = plan.functions_of(plan.phases[number])
    own = accumulator_of(function, plan.analysis)
    [atomic] = own.atomic(into, "0", "part", "warp", plan.real)
    return code(_STAGE_REDUCE.format(
        into=into, identity=own.identity, type=own.type, shuffle=own.rules.shuffle,
        update=own.update("part", f"stage.{function.name}(v, s)"), atomic=atomic,
    ))  # fmt: skip
