"""The body of a CUDA kernel in which lanes share a vertex or an edge.

`lanes` of them share its features, the others take further edges. Shuffles and votes
take the whole warp. So no lane leaves early: lanes without work go along on a valid
vertex and edge, and `alive`, `writer` and `inside_edge` keep what they compute out of
every result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featgraph.fold.accumulators import Accumulator
from featgraph.fold.analyse import Analysed
from featgraph.fold.cuda_combine import print_block_combine, print_span_combine
from featgraph.fold.functions import Context, Printed
from featgraph.fold.owner import OwnerBody
from featgraph.fold.plan import FoldPlan, Phase

__all__ = ["WarpBody"]


class WarpBody(OwnerBody):
    """Prints the stages of one phase for a vertex or edge that lanes share.

    Parameters
    ----------
    edge_id : str
        As for `OwnerBody`.
    threads : int
        Threads of the block that shares a hub; 0 where a span of lanes shares a vertex.
    """

    def __init__(
        self,
        context: Context,
        plan: FoldPlan,
        phase: Phase,
        printed: dict[str, Printed],
        edge_id: str,
        threads: int = 0,
    ) -> None:
        super().__init__(context, plan, phase, printed, "warp", edge_id)
        mapping = phase.mapping
        self.copies = mapping.copies
        self.lanes = mapping.lanes
        self.threads = threads
        self.slots = threads // mapping.lanes if threads else mapping.slots
        self.span = mapping.span
        self.padded = mapping.is_padded(phase.width)
        self.slot = "slot" if self.slots > 1 else "0"

    # -- names

    def feature(self, f: str) -> str:
        """Return the text of the feature of copy `f`."""
        if self.lanes == 1:
            return f
        return "f" if self.copies == 1 else f"f_{f}"

    def feature_argument(self, f: str) -> str:
        """Return what stands for feature `f` in a call."""
        return self.feature(f)

    def inside(self, j: int) -> str:
        """Return the test that copy j is a feature; "" where all are."""
        if not self.padded:
            return ""
        return "inside" if self.copies == 1 else f"inside_{j}"

    def is_predicated(self, printed: Printed) -> bool:
        """Whether a function makes shuffles."""
        return printed.is_collective and self.lanes > 1

    def call_predicated(self, printed: Printed, writer: str) -> str:
        """Return the call of a function that makes shuffles; all lanes make it."""
        args = [r for r in printed.function.declared.roles if r not in {"f", "i"}]
        args += ["lane", writer]
        for name in printed.temporaries:
            args += [
                self.temporary(name, j)
                for j in range(self.copies if self.is_wide(name) else 1)
            ]
        args += [f"{printed.name}_work_{n}" for n in range(len(printed.areas))]
        return f"{printed.name}({', '.join(args)})"

    def call_copy(self, printed: Printed, j: int) -> str:
        """Return the call of a function without shuffles for copy j."""
        if printed.is_collective:  # of one feature
            return self.call_collective(printed)
        return self.call_featurewise(printed, str(j))

    @contextmanager
    def edges(self) -> Iterator[None]:
        """Print a loop over the edges of a vertex; every lane goes its own way.

        A weighted sum over K = 8 took 48 registers with ``range``, 36 with a while loop
        whose counter is as narrow as the offsets (sm_90).
        """
        writer = self.writer
        writer.line(
            f"position = {self.narrow('start + slot') if self.slots > 1 else 'start'}"
        )
        with writer.block("while position < stop:"):
            yield
            writer.line(f"position = {self.narrow(f'position + {self.slots}')}")

    def narrow(self, text: str) -> str:
        """Return a place among the edges in the type of the offsets.

        Left alone, Numba computes in int64.
        """
        return text if self.plan.traits.wide_offsets else f"int32({text})"

    # -- vertex phases

    def vertex(self) -> None:
        """Print all stages for `v` where `is_due`; its verdict is left in ``alive``."""
        writer = self.writer
        for name in self.phase.loads:
            self._load(self.accumulators[name])
        writer.line("alive = is_due")
        self._copy_first("alive")
        ran: list[Analysed] = []
        for stage in self._stages():
            if stage[0].kind == "gather":
                if any(f.kind == "vertex" for f in ran):
                    writer.line("stop = stop if alive else start")
                self._order(ran, stage)
                self._gather(stage)
            else:
                self._order(ran, stage)
                self._verdict(stage[0])
            ran += stage
        if self.phase.stores:
            self._under([f"alive{self._and_slot()}"], lambda: self._store_all())

    def _store_all(self) -> None:
        for name in self.phase.stores:
            self._store(self.accumulators[name])

    def _and_slot(self) -> str:
        return " and slot == 0" if self.slots > 1 else ""

    def _copy_first(self, condition: str) -> None:
        """Copy entries to the next buffer before anything is written there."""
        entity = "e" if self.phase.kind == "edge" else "v"
        if self.phase.copies:
            slot = self._and_slot() if entity == "v" else ""
            self._under(
                [f"{condition}{slot}"],
                lambda: self._copy_each(self.phase.copies, entity),
            )
            self._sync()

    def _order(self, ran: list[Analysed], stage: list[Analysed]) -> None:
        """Make what earlier functions wrote visible to the lanes that read it."""
        wrote = {
            (a.name, a.version) for f in ran for a in f.accesses if a.mode != "read"
        }
        if wrote & {(a.name, a.version) for f in stage for a in f.accesses}:
            self._sync()

    def _sync(self) -> None:
        """Let the lanes that share a vertex or an edge see what each has written."""
        if self.phase.kind == "edge":
            if self.lanes > 1:
                self.writer.line("warp.sync()")
        elif self.threads:
            self.writer.line("cuda.syncthreads()")
        elif self.span > 1:
            self.writer.line("warp.sync()")

    def _under(self, tests: list[str], body) -> None:  # type: ignore[no-untyped-def]
        """Print `body` under the conjunction of what is not empty of `tests`."""
        condition = " and ".join(t for t in tests if t)
        if condition:
            with self.writer.block(f"if {condition}:"):
                body()
        else:
            body()

    def _verdict(self, function: Analysed) -> None:
        """Run a vertex function; ``alive`` is its or over the features."""
        printed, line = self.printed[function.name], self.writer.line
        line(f"# {function.kind} function {function.declared.name}")
        if function.kind == "edge":
            self._moved(printed, "alive")
            self._vote("moved", self.lanes)
            return
        line(f"writer = alive{self._and_slot()}")
        self._moved(printed, "writer")
        if self.threads:
            line("alive = cuda.syncthreads_or(int32(moved)) != 0")
        else:
            self._vote("moved", self.span)

    def _vote(self, flag: str, lanes: int) -> None:
        text = f"warp.group_any({flag}, {lanes})" if lanes > 1 else flag
        self.writer.line(f"alive = {text}")

    def _moved(self, printed: Printed, writer: str) -> None:
        """Set ``moved`` to the verdict of this lane's features."""
        line = self.writer.line
        if self.is_predicated(printed):
            line(f"moved = {self.call_predicated(printed, writer)}")
            line(f"moved = moved and {writer}")
            return
        line("moved = False")
        if printed.function.is_scalar:
            only = "lane == 0" if self.lanes > 1 else ""
            self._under(
                [writer, only], lambda: line(f"moved = {self.call_copy(printed, 0)}")
            )
        elif self.padded and self.copies > 1:
            for j in range(self.copies):
                call = self.call_copy(printed, j)
                self._under(
                    [writer, self.inside(j)], lambda call=call: line(f"moved |= {call}")
                )
        else:
            with self.writer.block(
                f"if {' and '.join(t for t in (writer, self.inside(0)) if t)}:"
            ):
                for j in range(self.copies):
                    line(f"moved {'|=' if j else '='} {self.call_copy(printed, j)}")

    def restore(self, entity: str, condition: str) -> None:
        """Put entries of the next buffer back where the verdict is False."""
        if self.phase.restores:
            self._sync()
            slot = self._and_slot() if entity == "v" else ""
            with self.writer.block(f"if {condition} and not alive{slot}:"):
                self._copy_each(self.phase.restores, entity)

    # -- gathers

    def _gather(self, stage: list[Analysed]) -> None:
        writer = self.writer
        held = [self.accumulators[f.into] for f in stage]
        if any(a.is_matrix for a in held):
            writer.line("warp.sync()")
        for function, accumulator in zip(stage, held, strict=True):
            what = f"{accumulator.combine} into {accumulator.name}"
            writer.line(f"# gather {function.declared.name}: {what}")
            self.start(accumulator)
        meeting = any(self.is_predicated(self.printed[f.name]) for f in stage)
        if meeting:
            self.rounds(lambda: self._contribute_masked(stage))
        else:
            with self.edges():
                self.in_edge()
                for function in stage:
                    self.contribute(function)
        for accumulator in held:
            self.combine_slots(accumulator)
        if any(a.is_matrix for a in held):
            writer.line("warp.sync()")

    def _contribute_masked(self, stage: list[Analysed]) -> None:
        """Every lane calls what makes shuffles; only lanes inside take the result."""
        for function in stage:
            printed = self.printed[function.name]
            if self.is_predicated(printed):
                self.call_contribution(printed, "inside_edge")
        with self.writer.block("if inside_edge:"):
            for function in stage:
                if self.is_predicated(self.printed[function.name]):
                    self.take_contribution(function)
                else:
                    self.contribute(function)

    def _count(self, accumulator: Accumulator) -> int:
        return self.copies if accumulator.is_wide else 1

    def contribution(self, function: Analysed, j: int) -> str:
        """Return the name of what copy j of a function with shuffles contributes."""
        return f"new_{self.held(self.accumulators[function.into], j)}"

    def call_contribution(self, printed: Printed, mask: str) -> None:
        """Call a gather or reduce that makes shuffles; all lanes do."""
        count = self._count(self.accumulators[printed.function.into])
        names = [self.contribution(printed.function, j) for j in range(count)]
        call = self.call_predicated(printed, mask)
        self.writer.line(f"{', '.join(names)} = {call}")

    def take_contribution(self, function: Analysed) -> None:
        """Combine what `call_contribution` brought."""
        accumulator = self.accumulators[function.into]
        for j in range(self._count(accumulator)):
            name = self.held(accumulator, j)
            self._take(accumulator, name, self.contribution(function, j))

    def start(self, accumulator: Accumulator) -> None:
        """Set an accumulator to its identity; each lane its own columns of a matrix."""
        if not accumulator.is_matrix:
            super().start(accumulator)
            return
        name = accumulator.name
        self._columns(
            lambda f: self.writer.line(
                f"{name}[uint32(i), {f}] = {accumulator.identity}"
            )
        )

    def _columns(self, column) -> None:  # type: ignore[no-untyped-def]
        """Print what is done to each element of a matrix in this lane's columns."""
        with self.writer.block(f"for i in range({self.phase.width}):"):
            for j in range(self.copies):
                text = self.index(self.feature(str(j)))
                self._under([self.inside(j)], lambda text=text: column(text))

    def contribute(self, function: Analysed) -> None:
        """Combine what edge `e` (or vertex `v`, for a reduce) contributes."""
        accumulator, printed = (
            self.accumulators[function.into],
            self.printed[function.name],
        )
        if accumulator.is_matrix:
            with self.writer.block(f"for i in range({self.phase.width}):"):
                for j in range(self.copies):
                    column = self.index(self.feature(str(j)))
                    element = f"{accumulator.name}[uint32(i), {column}]"
                    call = self.call_copy(printed, j)
                    self._under(
                        [self.inside(j)],
                        lambda e=element, c=call: self._take(accumulator, e, c),
                    )
            return
        for j in range(self._count(accumulator)):
            self._take(
                accumulator, self.held(accumulator, j), self.call_copy(printed, j)
            )

    def combine_slots(self, accumulator: Accumulator) -> None:
        """Combine what the edge slots of a vertex have; every lane gets the result."""
        if accumulator.is_matrix or self.slots == 1:
            return
        for j in range(self._count(accumulator)):
            name = self.held(accumulator, j)
            if self.threads:
                print_block_combine(
                    self.writer,
                    accumulator,
                    name,
                    self.lanes,
                    self.threads,
                    self.context.real,
                )
            else:
                print_span_combine(
                    self.writer, accumulator, name, self.lanes, self.span
                )

    # -- edges in rounds that are the same for the whole warp

    def out_edge(self) -> None:
        """Print which edge the one at `position` of the out-edges is."""
        position = self.edge_id.format("position")
        self.writer.line(f"v = out_targets[{position}]")
        self.writer.line(f"e = {self.edge_id.format(f'out_edges[{position}]')}")

    def in_edge(self) -> None:
        """Print which edge the one at `position` of the in-edges is."""
        self.writer.line(f"e = {self.edge_id.format('position')}")
        self.writer.line("u = in_sources[e]")

    def rounds(self, body) -> None:  # type: ignore[no-untyped-def]
        """Print a loop over the edges of a vertex in which the warp stays together."""
        writer = self.writer
        edges = "stop - start"
        if self.slots > 1:
            shift = self.slots.bit_length() - 1
            edges = f"(stop - start + {self.slots - 1}) >> {shift}"
        rounds = edges if self.threads else f"warp.group_max(int32({edges}), 32)"
        writer.line(f"rounds = {rounds}")
        with writer.block("for step in range(rounds):"):
            step = f"step * {self.slots} + {self.slot}" if self.slots > 1 else "step"
            writer.line(f"position = {self.narrow(f'start + {step}')}")
            writer.line("inside_edge = position < stop")
            writer.line("position = max(min(position, stop - 1), 0)")
            if self.phase.kind == "vertex":
                self.in_edge()
            else:
                self.out_edge()
            body()

    # -- memory

    def _store(self, accumulator: Accumulator) -> None:
        name = accumulator.name
        if accumulator.is_matrix:
            place = self.index("v", "i")
            self._columns(
                lambda f: self.writer.line(
                    f"d.{name}[{place}, {f}] = {name}[uint32(i), {f}]"
                )
            )
            return
        for j in range(self._count(accumulator)):
            index = self.index(
                "v", *([self.feature(str(j))] if accumulator.is_wide else [])
            )
            lines = accumulator.store(self.held(accumulator, j), index)
            test = (
                self.inside(j)
                if accumulator.is_wide
                else ("lane == 0" if self.lanes > 1 else "")
            )
            self._under([test], lambda lines=lines: self._lines(lines))

    def _lines(self, lines: list[str]) -> None:
        for line in lines:
            self.writer.line(line)

    def _copy_each(self, names: tuple[str, ...], entity: str) -> None:
        """Copy entries with the lanes side by side, whatever their width is."""
        writer = self.writer
        for name in names:
            shape = self.plan.analysis.signature[name].item_shape
            parts = ["i", "j"] if len(shape) == 2 else ["j"][: len(shape)]
            index = self.index(entity, *parts)
            depth = writer.depth
            if not shape and self.lanes > 1:
                writer.line("if lane == 0:")
                writer.depth += 1
            for letter, size in zip(parts, shape, strict=True):
                strided = letter == "j" and self.lanes > 1
                bounds = f"lane, {size}, {self.lanes}" if strided else size
                writer.line(f"for {letter} in range({bounds}):")
                writer.depth += 1
            writer.line(f"d.{name}_next[{index}] = d.{name}[{index}]")
            writer.depth = depth

    # -- pushed gathers and edges

    def push(self) -> None:
        """Combine what edge `e` contributes into memory at its target `v`."""
        function = self.functions[0]
        accumulator, printed = (
            self.accumulators[function.into],
            self.printed[function.name],
        )
        array = f"d.{accumulator.name}{'_packed' if accumulator.is_arg else ''}"
        if accumulator.is_matrix:
            with self.writer.block(f"for i in range({self.phase.width}):"):
                for j in range(self.copies):
                    index = self.index("v", "i", self.feature(str(j)))
                    call = self.call_copy(printed, j)
                    self._under(
                        [self.inside(j)],
                        lambda i=index, c=call: self._atomic(accumulator, array, i, c),
                    )
            return
        for j in range(self._count(accumulator)):
            predicated = self.is_predicated(printed)
            value = (
                self.contribution(function, j)
                if predicated
                else self.call_copy(printed, j)
            )
            index = self.index(
                "v", *([self.feature(str(j))] if accumulator.is_wide else [])
            )
            test = (
                self.inside(j)
                if accumulator.is_wide
                else ("lane == 0" if self.lanes > 1 else "")
            )
            self._under(
                [test], lambda i=index, v=value: self._atomic(accumulator, array, i, v)
            )

    def load_temporaries(self) -> None:
        """Bring what a pushed gather reads at its target back from memory."""
        for name in self.phase.loads:
            self._load(self.accumulators[name])

    def edge(self) -> None:
        """Print the functions for `e` where `inside_edge`; the verdict is ``alive``."""
        self._copy_edge()
        self.writer.line("alive = inside_edge")
        ran: list[Analysed] = []
        for function in self.functions:
            self._order(ran, [function])
            self._verdict(function)
            ran.append(function)

    def _copy_edge(self) -> None:
        if self.phase.copies:
            with self.writer.block("if inside_edge:"):
                self._copy_each(self.phase.copies, "e")
            self._sync()
