"""Prints supersteps over few vertices as one loop, for the CPU target (0018).

A superstep goes along the edges out of the active vertices, one after the other: a
vertex that is met for the first time runs what stands before the gathers, and what they
fill is combined in memory. Then those that were met, and not stopped, run the rest.
Nothing but lists of vertices is handed on.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.definite_assignment import next_dropped
from featgraph.fold.codegen.cpu.tiles import TiledBody
from featgraph.fold.codegen.functions.featurewise import Context, Printed
from featgraph.fold.codegen.kernels.accumulators import Accumulator, source_name
from featgraph.fold.plan.layout import rows_to_push
from featgraph.fold.plan.plan import FoldPlan

if TYPE_CHECKING:
    from featgraph.fold.codegen.module import Field, Queue

__all__ = ["print_queue"]

_LISTS = ["sources", "source_count", "passed", "due", "marks"]


def print_queue(
    context: Context,
    plan: FoldPlan,
    printed: dict[str, Printed],
    fields: tuple[Field, ...],
) -> Queue:
    """Print the loop over supersteps of a plan of one phase."""
    return _QueueBody(context, plan, printed).run(fields)


class _HeldRows(TiledBody):
    """Combines what gathers fill in rows of memory, one a vertex that was met."""

    @staticmethod
    def _held_names(accumulator: Accumulator) -> list[str]:
        """Return the arrays that hold what a gather fills between edges."""
        name = f"held_{accumulator.name}"
        return [name, f"{name}_source"] if accumulator.is_arg else [name]

    def _entries(self, accumulator: Accumulator) -> list[str]:
        """Return the element of the first array for each feature."""
        name = f"held_{accumulator.name}"
        places = [f", {j}" for j in range(self.copies)] if accumulator.is_wide else [""]
        return [f"{name}[row{place}]" for place in places]

    def _combine(self, function: Analysed) -> None:
        """Combine what edge `e` contributes into memory."""
        accumulator = self.accumulators[function.into]
        printed = self.printed[function.name]
        for j, entry in enumerate(self._entries(accumulator)):
            self._take(accumulator, entry, self.call_featurewise(printed, str(j)))

    def _bring(self, accumulator: Accumulator) -> None:
        """Bring what a gather has filled from memory."""
        for j, entry in enumerate(self._entries(accumulator)):
            held = self.held(accumulator, j)
            self.writer.line(f"{held} = {entry}")
            if accumulator.is_arg:
                self.writer.line(f"{source_name(held)} = {source_name(entry)}")


class _QueueBody(_HeldRows):
    """Prints one superstep, and the loop around it."""

    def __init__(
        self, context: Context, plan: FoldPlan, printed: dict[str, Printed]
    ) -> None:
        super().__init__(context, plan, plan.phases[0], printed, "cpu", "{}")
        kinds = [f.kind for f in self.functions]
        first = kinds.index("gather")
        last = first + kinds[first:].index("vertex")
        self.before = self.functions[:first]
        self.gathers = self.functions[first:last]
        self.behind = self.functions[last:]
        phase = self.phase
        self.pushed = rows_to_push(
            phase.along, phase.finds_edges, self.gathers, plan.analysis, plan.traits
        )
        #: Whether it is all the same how often they run.
        self.repeats = not any(
            a.mode != "read" for f in self.before for a in f.accesses
        )
        self.memory = [
            name
            for f in self.gathers
            for name in self._held_names(self.accumulators[f.into])
        ]

    def run(self, fields: tuple[Field, ...]) -> Queue:
        """Print three functions; return what the runtime must know of the last."""
        from featgraph.fold.codegen.module import Queue

        if self.before:
            self._print_before()
        self._print_superstep()
        arguments = self._print_loop(fields)
        types = []
        for function in self.gathers:
            accumulator = self.accumulators[function.into]
            dtype = {"real": self.context.real, "bool": "bool"}.get(
                accumulator.type, accumulator.type
            )
            shape = (self.phase.width,) if accumulator.is_wide else ()
            names = self._held_names(accumulator)
            types += [
                (n, t, shape) for n, t in zip(names, (dtype, "int32"), strict=False)
            ]
        return Queue(
            "supersteps_0", tuple(arguments), tuple(types),
            self.phase.writes_next, self.pushed.offsets,
        )  # fmt: skip

    def _header(
        self, name: str, arguments: list[str], doc: str, form: str = "INNER"
    ) -> None:
        writer = self.writer
        writer.line()
        writer.line()
        writer.line(f"@njit(**{form})")
        writer.line(f"def {name}({', '.join(arguments)}):")
        writer.depth += 1
        writer.line(f'"""{doc}"""')

    def _name_features(self, functions: list[Analysed]) -> None:
        if all(self.printed[f.name].is_collective or f.is_scalar for f in functions):
            return
        self.writer.line("f_0 = chunk - chunk  # not a literal")
        for j in range(1, self.copies):
            self.writer.line(f"f_{j} = f_0 + {j}")

    def _print_before(self) -> None:
        """Print the function that runs what stands before the gathers."""
        self._header(
            "goes_on_0", ["chunk", "v", "d"],
            "Whether vertex `v` goes on to its gathers.",
        )  # fmt: skip
        self._name_features(self.before)
        self._verdicts(self.before)
        dropped = next_dropped([f.body for f in self.before])
        self.copy_entries(tuple(sorted(dropped)), "v", "if not alive:")
        self.writer.line("return alive")
        self.writer.depth -= 1

    def _meet(self) -> None:
        """Print what is done for `v` where it is met for the first time.

        It leaves one more than the row of what its gathers fill in ``met``.
        """
        writer = self.writer
        goes_on = "goes_on_0(chunk, v, d)" if self.before else "True"
        with writer.block(f"if {goes_on}:") if self.before else nullcontext():
            writer.line("row = due_count")
            writer.line("due[row] = v")
            writer.line("due_count += 1")
            writer.line("met = due_count")
            writer.line("marks[v] = met")
            for function in self.gathers:
                accumulator = self.accumulators[function.into]
                for entry in self._entries(accumulator):
                    for line in accumulator.start(entry):
                        writer.line(line)
        if not self.repeats:
            with writer.block("else:"):
                writer.line("marks[v] = -1")
                writer.line("stopped_count += 1")
                writer.line("due[due.size - stopped_count] = v")

    def _verdicts(self, functions: list[Analysed]) -> None:
        """Run vertex functions, each behind True of the one before."""
        writer, depth = self.writer, self.writer.depth
        for place, function in enumerate(functions):
            self._verdict(function)
            if place < len(functions) - 1:
                writer.line("if alive:")
                writer.depth += 1
        writer.depth = depth

    def _print_superstep(self) -> None:
        writer, rows = self.writer, self.pushed
        arguments = ["chunk", "d", *_LISTS, *rows.arguments, *self.memory]
        self._header(
            "superstep_0", arguments,
            "Run a superstep from `sources`; `passed` gets the committed vertices.",
        )  # fmt: skip
        self._name_features(self.gathers + self.behind)
        writer.line("due_count = 0")
        if not self.repeats:
            writer.line("stopped_count = 0")
        # Vertices are unsigned in memory: then no index is taken from the end.
        with writer.block("for place in range(source_count):"):
            writer.line("v = int64(sources[place])")
            self._meet()
        with writer.block("for place in range(source_count):"):
            writer.line("u = int64(sources[place])")
            first, last = (f"{rows.offsets}[u{more}]" for more in ("", " + 1"))
            if not self.plan.traits.wide_offsets:
                first, last = (f"int64(uint32({end}))" for end in (first, last))
            with writer.block(f"for slot in range({first}, {last}):"):
                writer.line(f"v = int64(uint32({rows.ends}[slot]))")
                writer.line("met = marks[v]")
                with writer.block("if met == 0:"):
                    self._meet()
                with writer.block("if met > 0:"):
                    writer.line("row = int64(uint32(met - 1))")
                    edge = f"{rows.edges}[slot]" if rows.edges else "slot"
                    writer.line(f"e = {edge}")
                    for function in self.gathers:
                        self._combine(function)
        writer.line("passed_count = 0")
        with writer.block("for row in range(due_count):"):
            writer.line("v = int64(due[row])")
            writer.line("marks[v] = 0")
            for function in self.gathers:
                self._bring(self.accumulators[function.into])
            self._verdicts(self.behind)
            with writer.block("if alive:"):
                writer.line("passed[passed_count] = v")
                writer.line("passed_count += 1")
            dropped = next_dropped([f.body for f in (*self.before, *self.behind)])
            self.copy_entries(tuple(sorted(dropped)), "v", "else:")
        if not self.repeats:
            with writer.block("for place in range(stopped_count):"):
                writer.line("marks[int64(due[due.size - 1 - place])] = 0")
        writer.line("return passed_count")
        writer.depth -= 1

    def _other_rows(self) -> list[str]:
        """Return tests that what gathers fill has rows of another length."""
        wide = [a for f in self.gathers if (a := self.accumulators[f.into]).is_wide]
        names = [name for a in wide for name in self._held_names(a)]
        return [f"{name}.shape[1] != {self.copies}" for name in names]

    def _print_loop(self, fields: tuple[Field, ...]) -> list[str]:
        writer, rows, phase = self.writer, self.pushed, self.phase
        own = ["sources", "passed", "due", "marks"]
        bounds = ["most", "most_edges", "most_work", "key", "sign", "delta", "limit"]
        kept = ["far", "waits", "sizes", "limits", "counts"]
        arguments = [
            "chunk", "d", *own, *bounds, *kept, *rows.arguments, *self.memory
        ]  # fmt: skip
        self._header(
            "supersteps_0", arguments,
            "Run supersteps while few edges lead out of active vertices.", "SWEEP",
        )  # fmt: skip
        depth, line, block = writer.depth, writer.line, writer.block
        # It never holds. Behind it rows are as long as the compiler is told, and it
        # multiplies by a number that it knows.
        shapes = [*_other_shapes(fields, self.plan), *self._other_rows()]
        if shapes:
            with block(f"if ({' or '.join(shapes)}):"):
                line("return passed")
        swapped = [_swapped(f, phase.writes_next) for f in fields]
        line(f"other = Data({', '.join(swapped)})")
        line("number, work = 0, 0")
        line("passed_count, far_count = sizes[1], 0")
        with block("while True:"):
            line("now = other if number % 2 else d")
            for name in phase.writes_next:
                line(
                    f"queue.refresh(now.{name}_next, now.{name}, passed, passed_count)"
                )
            with block("if key < 0:"):
                line("sources, passed = passed, sources")
                line("source_count = passed_count")
            for place, name in enumerate(self.plan.facts.queue_keys):
                with block(f"elif key == {place}:"):
                    line(
                        f"source_count, far_count, limit = queue.split(now.{name}, "
                        "sign, delta, limit, passed, passed_count, sources, far, "
                        "far_count, waits)"
                    )
            line(f"edges = queue.count_edges(sources, source_count, {rows.offsets})")
            line("ends = number == most or source_count == 0")
            with block("if ends or edges > most_edges or work + edges > most_work:"):
                line("break")
            line("limits[number] = limit")
            inner = ["chunk", "now", *_LISTS, *rows.arguments, *self.memory]
            line(f"passed_count = superstep_0({', '.join(inner)})")
            line("counts[number] = passed_count")
            line("work += edges")
            line("number += 1")
        line("sizes[1], sizes[2], sizes[3] = source_count, far_count, work")
        line("limits[number] = limit")
        line("sizes[0] = number  # last: what is told stands")
        line("return sources")
        writer.depth = depth - 1
        return arguments


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
