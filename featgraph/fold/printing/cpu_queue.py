"""Prints supersteps over few vertices as one loop, for the CPU target (0018)."""

from __future__ import annotations

from collections.abc import Callable

from featgraph.fold.functions.facts import Callee, Context
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.lowering.passes import lower
from featgraph.fold.lowering.worklists.cpu import CpuWorklist
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.printing.cpu import compiled, unsigned_vertices
from featgraph.fold.printing.module import Field, Queue
from featgraph.fold.printing.statements import make_function, print_function
from featgraph.fold.printing.writer import Writer
from featgraph.fold.tree.statements import Body

__all__ = ["print_queue"]

_LISTS = ["sources", "source_count", "passed", "due", "marks"]
_OWN = ["sources", "passed", "due", "marks"]
_BOUNDS = ["most", "most_edges", "most_work", "key", "sign", "delta", "limit"]
_KEPT = ["far", "waits", "sizes", "limits", "counts"]


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
    return _QueuePrinter(writer, CpuWorklist(context, plan, callees)).run(fields)


class _QueuePrinter:
    """Prints what a vertex runs first, a superstep, and the loop around it."""

    def __init__(self, writer: Writer, worklist: CpuWorklist) -> None:
        self.writer, self.worklist, self.facts = writer, worklist, worklist.facts
        memory = [name for home in worklist.rows for name in home.arrays]
        self.arrays = [*self.facts.layout.arrays, *memory]

    def run(self, fields: tuple[Field, ...]) -> Queue:
        """Print them; the last one is told of."""
        worklist, plan, phase = self.worklist, self.facts.plan, self.facts.phase
        if worklist.before:
            self._function(
                "goes_on_0", ["chunk", "v", "d"], worklist.goes_on,
                "Whether vertex `v` goes on to its gathers.",
            )  # fmt: skip
        if worklist.at_once:
            self._function(
                "settled_0", ["chunk", "u", "v", "e", "d"], worklist.settled_at_once,
                "Settle `v`, if this edge is all it takes; whether, and if it commits.",
                worklist.of_an_edge,
            )  # fmt: skip
        inner = ["chunk", "d", *_LISTS, *self.arrays]
        self._function(
            "superstep_0", inner, worklist.superstep,
            "Run a superstep from `sources`; `passed` gets the committed vertices.",
        )  # fmt: skip
        now = ["chunk", worklist.now, *inner[2:]]
        swapped = ", ".join(_swapped(f, phase.writes_next) for f in fields)
        unlike = [*_other_shapes(fields, plan), *self._other_rows()]
        loop = worklist.loop(
            f"superstep_0({', '.join(now)})", f"Data({swapped})", unlike
        )
        arguments = ["chunk", "d", *_OWN, *_BOUNDS, *_KEPT, *self.arrays]
        self._print(
            "supersteps_0", arguments, loop,
            "Run supersteps while few edges lead out of active vertices.", "SWEEP",
        )  # fmt: skip
        return Queue(
            "supersteps_0", tuple(arguments), self.facts.layout.arrays,
            self._types(), phase.writes_next, worklist.pushed.rows_along,
            overwrites=worklist.overwrites,
        )  # fmt: skip

    def _function(
        self,
        name: str,
        arguments: list[str],
        nest: Callable[[], Body],
        doc: str,
        facts: Facts | None = None,
    ) -> None:
        """Print a function that runs some of the user's; `facts` are the loop's."""
        facts = facts or self.facts
        facts.nest, facts.arguments = nest, (*arguments, "goes_on_0", "settled_0")
        self._print(name, arguments, lower(facts), doc)

    def _print(
        self,
        name: str,
        arguments: list[str],
        body: Body,
        doc: str,
        form: str = "INNER",
    ) -> None:
        body = unsigned_vertices(body, self.facts.plan.traits.wide_offsets)
        decorator = compiled(form, body, self.facts.plan)
        made = make_function(decorator, name, arguments, doc, body)
        print_function(self.writer, made)

    def _types(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Return the dtypes and shapes of what gathers fill."""
        found = []
        for home in self.worklist.rows:
            accumulator = home.accumulator
            real = self.facts.context.real
            dtype = real if accumulator.type == "real" else accumulator.type
            types = zip(home.arrays, (dtype, "int32"), strict=False)
            found += [(name, kind, accumulator.shape) for name, kind in types]
        return tuple(found)

    def _other_rows(self) -> list[str]:
        """Return tests that what gathers fill has rows of another length."""
        wide = [home for home in self.worklist.rows if home.accumulator.is_wide]
        names = [name for home in wide for name in home.arrays]
        return [f"{name}.shape[1] != {self.facts.phase.width}" for name in names]


def _other_shapes(fields: tuple[Field, ...], plan: FoldPlan) -> list[str]:
    """Return tests that properties have rows of another shape than they have."""
    signature = plan.analysis.signature
    return [
        f"d.{field.name}.shape[{axis}] != {size}"
        for field in fields
        if field.source in {"property", "next"} and field.of in signature
        for axis, size in enumerate(signature[field.of].item_shape, 1)
    ]


def _swapped(field: Field, written: tuple[str, ...]) -> str:
    """Return a field of `d` with both buffers of what is committed exchanged."""
    if field.of in written and field.source in {"property", "next"}:
        return f"d.{field.of}" if field.source == "next" else f"d.{field.of}_next"
    return f"d.{field.name}"
