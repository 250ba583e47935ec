"""The body of a CUDA kernel in which lanes share a vertex or an edge: `lanes` of them its features, the others further edges.

Shuffles and votes take the whole warp. So no lane leaves early: lanes without work go along on a valid vertex and edge, and
`alive`, `writer` and `inside_edge` keep what they compute out of every result.
"""

from __future__ import annotations

from featgraph.fold.accumulators import Accumulator, source_name
from featgraph.fold.analyse import Analysed
from featgraph.fold.functions import Context, Printed
from featgraph.fold.owner import OwnerBody
from featgraph.fold.plan import FoldPlan, Phase

__all__ = ["WarpBody", "box_dtypes", "print_block_combine"]

WARP = 32


class WarpBody(OwnerBody):
    """Prints the stages of one phase for a vertex or edge that lanes share.

    Parameters
    ----------
    edge_id : str
        As for `OwnerBody`.
    threads : int
        Threads of the block that shares one vertex (hubs); 0 where the lanes of a span do.
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
            args += [self.temporary(name, j) for j in range(self.copies if self.is_wide(name) else 1)]
        args += [f"{printed.name}_work_{n}" for n in range(len(printed.areas))]
        return f"{printed.name}({', '.join(args)})"

    def call_copy(self, printed: Printed, j: int) -> str:
        """Return the call of a function without shuffles for copy j."""
        if printed.is_collective:  # of one feature
            return self.call_collective(printed)
        return self.call_featurewise(printed, str(j))

    def edge_step(self) -> str:
        """Return the text of the edges that are worked on at a time, as the step of a range."""
        return f", {self.slots}" if self.slots > 1 else ""

    # -- vertex phases

    def vertex(self) -> None:
        """Print all stages for vertex `v` (where `is_due`); leaves its verdict in ``alive``."""
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
            self._under([f"{condition}{slot}"], lambda: self._copy_each(self.phase.copies, entity))
            self._sync()

    def _order(self, ran: list[Analysed], stage: list[Analysed]) -> None:
        """Make what earlier functions wrote visible to the lanes that read it."""
        wrote = {(a.name, a.version) for f in ran for a in f.accesses if a.mode != "read"}
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
            self._under([writer, only], lambda: line(f"moved = {self.call_copy(printed, 0)}"))
        elif self.padded and self.copies > 1:
            for j in range(self.copies):
                call = self.call_copy(printed, j)
                self._under([writer, self.inside(j)], lambda call=call: line(f"moved |= {call}"))
        else:
            with self.writer.block(f"if {' and '.join(t for t in (writer, self.inside(0)) if t)}:"):
                for j in range(self.copies):
                    line(f"moved {'|=' if j else '='} {self.call_copy(printed, j)}")

    def restore(self, entity: str, condition: str) -> None:
        """Put entries of the next buffer back where the verdict is False."""
        if self.phase.restores:
            self._sync()
            with self.writer.block(f"if {condition} and not alive{self._and_slot() if entity == 'v' else ''}:"):
                self._copy_each(self.phase.restores, entity)

    # -- gathers

    def _gather(self, stage: list[Analysed]) -> None:
        writer = self.writer
        held = [self.accumulators[f.into] for f in stage]
        if any(a.is_matrix for a in held):
            writer.line("warp.sync()")
        for function, accumulator in zip(stage, held, strict=True):
            writer.line(f"# gather {function.declared.name}: {accumulator.combine} into {accumulator.name}")
            self.start(accumulator)
        meeting = any(self.is_predicated(self.printed[f.name]) for f in stage)
        if meeting:
            self.rounds(lambda: self._contribute_masked(stage))
        else:
            first = f"start + {self.slot}" if self.slots > 1 else "start"
            with writer.block(f"for position in range({first}, stop{self.edge_step()}):"):
                self.in_edge()
                for function in stage:
                    self.contribute(function)
        for accumulator in held:
            self.combine_slots(accumulator)
        if any(a.is_matrix for a in held):
            writer.line("warp.sync()")

    def _contribute_masked(self, stage: list[Analysed]) -> None:
        """Every lane calls what makes shuffles; only lanes inside the row take the result."""
        writer = self.writer
        for function in stage:
            printed = self.printed[function.name]
            if self.is_predicated(printed):
                writer.line(self._contributions(printed, "inside_edge"))
        with writer.block("if inside_edge:"):
            for function in stage:
                if not self.is_predicated(self.printed[function.name]):
                    self.contribute(function)
                    continue
                accumulator = self.accumulators[function.into]
                for j in range(self._count(accumulator)):
                    self._take(accumulator, self.held(accumulator, j), self._contribution(function, j))

    def _count(self, accumulator: Accumulator) -> int:
        return self.copies if accumulator.is_wide else 1

    def _contribution(self, function: Analysed, j: int) -> str:
        return f"new_{self.held(self.accumulators[function.into], j)}"

    def _contributions(self, printed: Printed, mask: str) -> str:
        count = self._count(self.accumulators[printed.function.into])
        names = ", ".join(self._contribution(printed.function, j) for j in range(count))
        return f"{names} = {self.call_predicated(printed, mask)}"

    def start(self, accumulator: Accumulator) -> None:
        """Set an accumulator to its identity; each lane its own columns of a matrix."""
        if not accumulator.is_matrix:
            super().start(accumulator)
            return
        name = accumulator.name
        self._columns(lambda f: self.writer.line(f"{name}[uint32(i), {f}] = {accumulator.identity}"))

    def _columns(self, column) -> None:  # type: ignore[no-untyped-def]
        """Print what is done to each element of a matrix in the columns of this lane."""
        with self.writer.block(f"for i in range({self.phase.width}):"):
            for j in range(self.copies):
                text = self.index(self.feature(str(j)))
                self._under([self.inside(j)], lambda text=text: column(text))

    def contribute(self, function: Analysed) -> None:
        """Combine what edge `e` (or vertex `v`, for a reduce) contributes."""
        accumulator, printed = self.accumulators[function.into], self.printed[function.name]
        if accumulator.is_matrix:
            with self.writer.block(f"for i in range({self.phase.width}):"):
                for j in range(self.copies):
                    element = f"{accumulator.name}[uint32(i), {self.index(self.feature(str(j)))}]"
                    call = self.call_copy(printed, j)
                    self._under([self.inside(j)], lambda e=element, c=call: self._take(accumulator, e, c))
            return
        for j in range(self._count(accumulator)):
            self._take(accumulator, self.held(accumulator, j), self.call_copy(printed, j))

    def combine_slots(self, accumulator: Accumulator) -> None:
        """Combine what the edge slots of a vertex have; every lane gets the result."""
        if accumulator.is_matrix or self.slots == 1:
            return
        for j in range(self._count(accumulator)):
            name = self.held(accumulator, j)
            if self.threads:
                print_block_combine(self, accumulator, name, self.threads)
            else:
                print_span_combine(self, accumulator, name, self.span)

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
        """Print a loop over the edges from `start` to `stop` in which the lanes of the warp stay together."""
        writer = self.writer
        edges = "stop - start"
        if self.slots > 1:
            shift = self.slots.bit_length() - 1
            edges = f"(stop - start + {self.slots - 1}) >> {shift}"
        rounds = edges if self.threads else f"warp.group_max(int32({edges}), 32)"
        writer.line(f"rounds = {rounds}")
        with writer.block("for step in range(rounds):"):
            step = f"step * {self.slots} + {self.slot}" if self.slots > 1 else "step"
            writer.line(f"position = start + {step}")
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
            self._columns(lambda f: self.writer.line(f"d.{name}[{place}, {f}] = {name}[uint32(i), {f}]"))
            return
        for j in range(self._count(accumulator)):
            index = self.index("v", *([self.feature(str(j))] if accumulator.is_wide else []))
            lines = accumulator.store(self.held(accumulator, j), index)
            test = self.inside(j) if accumulator.is_wide else ("lane == 0" if self.lanes > 1 else "")
            self._under([test], lambda lines=lines: [self.writer.line(t) for t in lines])

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
                writer.line(f"for {letter} in range({f'lane, {size}, {self.lanes}' if strided else size}):")
                writer.depth += 1
            writer.line(f"d.{name}_next[{index}] = d.{name}[{index}]")
            writer.depth = depth

    # -- pushed gathers and edges

    def push(self) -> None:
        """Combine what edge `e` contributes into memory at its target `v`."""
        function = self.functions[0]
        accumulator, printed = self.accumulators[function.into], self.printed[function.name]
        array = f"d.{accumulator.name}{'_packed' if accumulator.is_arg else ''}"
        if accumulator.is_matrix:
            with self.writer.block(f"for i in range({self.phase.width}):"):
                for j in range(self.copies):
                    index = self.index("v", "i", self.feature(str(j)))
                    call = self.call_copy(printed, j)
                    self._under([self.inside(j)], lambda i=index, c=call: self._atomic(accumulator, array, i, c))
            return
        for j in range(self._count(accumulator)):
            predicated = self.is_predicated(printed)
            value = self._contribution(function, j) if predicated else self.call_copy(printed, j)
            index = self.index("v", *([self.feature(str(j))] if accumulator.is_wide else []))
            test = self.inside(j) if accumulator.is_wide else ("lane == 0" if self.lanes > 1 else "")
            self._under([test], lambda i=index, v=value: self._atomic(accumulator, array, i, v))

    def load_temporaries(self) -> None:
        """Bring what a pushed gather reads at its target back from memory."""
        for name in self.phase.loads:
            self._load(self.accumulators[name])

    def edge(self) -> None:
        """Print the edge functions for edge `e` (where `inside_edge`); leaves their verdict in ``alive``."""
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


def print_span_combine(body: WarpBody, accumulator: Accumulator, name: str, span: int) -> None:
    """Combine the same lane of all groups of a span by shuffles."""
    function = f"warp.slot_{accumulator.combine}"
    if accumulator.is_arg:
        source = source_name(name)
        body.writer.line(f"{name}, {source} = {function}({name}, {source}, {body.lanes}, {span})")
    else:
        body.writer.line(f"{name} = {function}({name}, {body.lanes}, {span})")


def print_block_combine(body: WarpBody, accumulator: Accumulator, name: str, threads: int) -> None:
    """Combine the same lane of all groups of a block: first by shuffles, then in order through shared memory."""
    writer, lanes = body.writer, body.lanes
    shuffled = accumulator.combine != "custom"
    if shuffled and lanes < WARP:
        print_span_combine(body, accumulator, name, WARP)
    row = WARP if shuffled else lanes
    box = f"box_{box_dtypes(accumulator, body.context.real)[0]}"
    is_bool = accumulator.type == "bool"
    writer.line(f"{box}[thread] = {f'int32({name})' if is_bool else name}")
    if accumulator.is_arg:
        writer.line(f"box_source[thread] = {source_name(name)}")
    writer.line("cuda.syncthreads()")
    for line in accumulator.start(name):
        writer.line(line)
    place = "uint32(lane)" if lanes > 1 else "uint32(0)"
    with writer.block(f"for row in range({threads // row}):"):
        writer.line(f"member = uint32(row * {row}) + {place}" if lanes > 1 else f"member = uint32(row * {row})")
        value = f"{box}[member]{' != 0' if is_bool else ''}"
        pair = f"{value}, box_source[member]" if accumulator.is_arg else value
        for line in accumulator.take(name, pair, "warp"):
            writer.line(line)
    writer.line("cuda.syncthreads()")


def box_dtypes(accumulator: Accumulator, real: str) -> list[str]:
    """Return the types of the shared arrays that a combine over a block takes; the second is that of sources."""
    first = {"real": real, "bool": "int32"}.get(accumulator.type, accumulator.type)
    return [first, "source"] if accumulator.is_arg else [first]
