"""Prints supersteps over few vertices as one loop, for the CUDA target (0042)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from featgraph.fold.analysis.gathers import memory_dtype
from featgraph.fold.functions.facts import Callee, Context
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.lowering.passes import lower
from featgraph.fold.lowering.worklists import at_once
from featgraph.fold.lowering.worklists.cuda import CudaWorklist
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.printing.module import Entry, Field, Queue
from featgraph.fold.printing.statements import make_function, print_function
from featgraph.fold.printing.writer import Writer
from featgraph.fold.syntax.unsigned_indices import unsigned_indices
from featgraph.fold.tree.statements import Body

__all__ = ["QUEUE_THREADS", "print_queue"]

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
