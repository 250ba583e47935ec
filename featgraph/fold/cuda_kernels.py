"""Kernels of the CUDA target, for both mappings: lanes that share a vertex (FA) and one thread a vertex (NFA).

Grids may have any size: every kernel strides over its vertices. Bitvector words that a kernel sets bits in (`passed`, `targets`)
are zero before. `OwnerBody` and `WarpBody` print what is done for one vertex or edge, this module the loops around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from featgraph.fold.accumulators import Accumulator
from featgraph.fold.choose import BLOCK_THREADS
from featgraph.fold.cuda_warp import WARP, WarpBody, box_dtypes, print_block_combine
from featgraph.fold.functions import Context, Printed
from featgraph.fold.owner import OwnerBody
from featgraph.fold.plan import FoldPlan, Phase

if TYPE_CHECKING:
    from featgraph.fold.emit import Entry

__all__ = ["DECORATOR", "LIBRARY", "constants", "imports", "print_phase"]

DECORATOR = "@device_function"
LIBRARY = "warp"
#: Threads of the block that takes one vertex of high degree.
HUB_THREADS = 1024

_DOCS = {
    "vertex": "Sweep the due vertices; `passed` gets those that end with True.",
    "push": "Push along the out-edges of all sources into the due targets.",
    "edge": "Sweep the out-edges of the sources; `targets` gets their ends where the verdict is True.",
    "reduce": "Reduce the due vertices, a row of `partials` for each block.",
}


def imports(plan: FoldPlan) -> list[str]:
    """Return the import statements of the module."""
    lines = ["import math", "from collections import namedtuple", ""]
    lines += ["from numba import boolean, float32, float64, int32, int64, uint32, uint64", ""]
    lines += ["from featgraph._cuda import cuda, device_function, kernel", "from featgraph.device import warp"]
    solving = [p for p in plan.phases if any(f.operations & {"solve", "inverse"} for f in plan.functions_of(p))]
    if any(p.mapping.lanes > 1 for p in solving):
        lines.append("from featgraph.device import linalg_cuda as linalg")
    if any(p.mapping.lanes == 1 for p in solving):
        lines.append("from featgraph.device import linalg_thread")
    return lines


def constants(plan: FoldPlan) -> list[str]:
    """Return the module's constants."""
    return []


def print_phase(
    context: Context, plan: FoldPlan, number: int, phase: Phase, printed: dict[str, Printed]
) -> list[Entry]:
    """Print the kernels of a phase: one; two for a reduce, and where hubs get a block each."""
    if phase.mapping.schedule == "thread":
        return _ThreadPhase(context, plan, number, phase, printed).run()
    entries = _WarpPhase(context, plan, number, phase, printed).run()
    if phase.mapping.hubs:  # launched first, for they take longest
        entries = _HubPhase(context, plan, number, phase, printed).run() + entries
    return entries


class _CudaPhase:
    """What the kernels of all mappings have in common."""

    role = "main"
    threads = BLOCK_THREADS

    def __init__(
        self, context: Context, plan: FoldPlan, number: int, phase: Phase, printed: dict[str, Printed]
    ) -> None:
        self.context = context
        self.writer = context.writer
        self.plan = plan
        self.number = number
        self.phase = phase
        self.printed = printed
        self.functions = plan.functions_of(phase)
        self.name = f"{phase.kind}_phase_{number}"
        self.edge_id = "uint64({})" if plan.traits.wide_offsets else "uint32({})"
        self.gathers = any(f.kind == "gather" for f in self.functions)
        self.several = sum(p.kind == "edge" for p in plan.phases) > 1
        self.scratch: dict[str, tuple[int, ...]] = {}

    def run(self) -> list[Entry]:
        """Print the phase's kernels of this mapping."""
        kinds = {"vertex": self.vertex, "push": self.push, "edge": self.edge, "reduce": self.reduce}
        with self._kernel():
            kinds[self.phase.kind]()
        return self._entries()

    def vertex(self) -> None:
        raise NotImplementedError

    def push(self) -> None:
        raise NotImplementedError

    def edge(self) -> None:
        raise NotImplementedError

    def reduce(self) -> None:
        raise NotImplementedError

    def _mark_passed(self) -> str:
        """Return what is done for an edge that passed; several phases gather targets at the end."""
        return "edge_state[e] = 2" if self.several else "warp.set_bit(targets, v)"

    # -- around the kernel

    def _arguments(self) -> list[str]:
        out_edges = ["out_offsets", "out_targets", "out_edges"]
        count = ["hubs"] if self.role == "hubs" else ["vertex_count"]
        arguments = {
            "vertex": ["d", "due", "passed", *count, *(["in_offsets", "in_sources"] if self.gathers else [])],
            "push": ["d", "due", *count, *out_edges],
            "edge": ["d", "sources", "targets", *count, *out_edges, *(["edge_state"] if self.several else [])],
            "reduce": ["d", "due", *count, "partials"],
        }[self.phase.kind]
        if self.role == "main" and self.phase.mapping.hubs:
            arguments.append("hub_degree")
        return arguments

    @contextmanager
    def _kernel(self) -> Iterator[None]:
        """Print the kernel's header around its body; the header names scratch areas that the body turns out to need."""
        writer = self.writer
        writer.line()
        writer.line()
        writer.line(f"@kernel(cache=True, launch_bounds={self.threads})")
        place = len(writer.lines)
        writer.line("def")
        writer.depth += 1
        doc = _DOCS[self.phase.kind]
        if self.role == "hubs":
            doc += " A block for each hub."
        writer.line(f'"""{doc}"""')
        yield
        writer.depth -= 1
        self.arguments = [*self._arguments(), *self.scratch]
        writer.lines[place] = f"def {self.name}({', '.join(self.arguments)}):"

    def _entries(self) -> list[Entry]:
        from featgraph.fold.emit import Entry

        main = Entry(self.name, self.number, self.role, tuple(self.arguments), dict(self.scratch), self.threads)
        if self.phase.kind != "reduce":
            return [main]
        finish = f"{self.name}_finish"
        self._print_finish(finish)
        return [main, Entry(finish, self.number, "finish", ("partials", "reduced"), {}, BLOCK_THREADS)]

    def _print_finish(self, name: str) -> None:
        """Print the kernel that combines the rows of `partials`, in order, so that the result is repeatable."""
        writer, accumulator = self.writer, self._reduced()
        writer.line()
        writer.line()
        writer.line(f"@kernel(cache=True, launch_bounds={BLOCK_THREADS})")
        with writer.block(f"def {name}(partials, reduced):"):
            writer.line('"""Combine the partial results in order, a thread for each feature."""')
            with writer.block(f"for f in range(cuda.grid(1), {self._reduced_width()}, cuda.gridsize(1)):"):
                writer.line(f"total = {accumulator.identity}")
                with writer.block("for row in range(partials.shape[0]):"):
                    test = " != 0" if accumulator.type == "bool" else ""
                    writer.line(accumulator.update("total", f"partials[uint32(row), uint32(f)]{test}"))
                writer.line("reduced[uint32(f)] = total")

    def _reduced(self) -> Accumulator:
        return self._body().accumulators[self.functions[0].into]

    def _reduced_width(self) -> int:
        return self.phase.width if self._reduced().is_wide else 1

    def _body(self) -> OwnerBody:
        raise NotImplementedError

    # -- memory that the kernel works in

    def _matrices(self, shared: int, owner: str) -> None:
        """Name the k x k areas of each group or thread: in shared memory for `shared` groups, else in scratch memory."""
        real, k, line = self.context.real, self.phase.width, self.writer.line
        areas = [
            (accumulator.name, k)
            for accumulator in self._held()
            if accumulator.is_matrix and accumulator.name not in self.phase.loads
        ]
        for printed in self.printed.values():
            areas += [(f"{printed.name}_work_{n}", columns) for n, columns in enumerate(printed.areas)]
        for name, columns in areas:
            if shared:
                line(f"{name} = cuda.shared.array(({shared}, {k}, {columns}), {real})[uint32({owner})]")
                continue
            argument = f"scratch_{len(self.scratch)}"
            self.scratch[argument] = (k, columns)
            line(f"{name} = {argument}[uint32({owner})]")

    def _has_matrices(self) -> bool:
        work = any(p.areas for p in self.printed.values())
        return work or any(a.is_matrix and a.name not in self.phase.loads for a in self._held())

    def _held(self) -> list[Accumulator]:
        """Return the accumulators that this phase keeps for a vertex."""
        names = {f.into for f in self.functions if f.into is not None} if self.phase.kind != "push" else set()
        accumulators = self._body().accumulators
        return [accumulators[n] for n in sorted(names | set(self.phase.loads))]

    def _boxes(self) -> None:
        """Declare the shared arrays through which the warps of a block combine what they have."""
        names = dict.fromkeys(n for a in self._held() for n in box_dtypes(a, self.context.real))
        for name in names:
            dtype = "int32" if name == "source" else name
            self.writer.line(f"box_{name} = cuda.shared.array({self.threads}, {dtype})")


class _ThreadPhase(_CudaPhase):
    """One thread owns a vertex with all its features (NFA)."""

    def _body(self) -> OwnerBody:
        return OwnerBody(self.context, self.plan, self.phase, self.printed, LIBRARY, self.edge_id)

    @contextmanager
    def _each(self, vertex: str, words: str) -> Iterator[None]:
        """Print the loop over the vertices of a thread, those whose bit is set in `words` (all if "")."""
        writer = self.writer
        with writer.block("for index in range(cuda.grid(1), vertex_count, cuda.gridsize(1)):"):
            writer.line(f"{vertex} = int32(index)")
            if words:
                with writer.block(f"if not warp.test_bit({words}, {vertex}):"):
                    writer.line("continue")
            yield

    @contextmanager
    def _out_edges(self) -> Iterator[None]:
        writer = self.writer
        with writer.block("for slot in range(out_offsets[uint32(u)], out_offsets[uint32(u + 1)]):"):
            place = self.edge_id.format("slot")
            writer.line(f"v = out_targets[{place}]")
            writer.line(f"e = {self.edge_id.format(f'out_edges[{place}]')}")
            yield

    def vertex(self) -> None:
        """Print the body of the kernel."""
        self._arrays()
        body = self._body()
        with self._each("v", "due"):
            body.vertex()
            with self.writer.block("if alive:"):
                self.writer.line("warp.set_bit(passed, v)")
            body.copy_entries(self.phase.restores, "v", "else:")

    def push(self) -> None:
        """Print the body of the kernel."""
        self._arrays()
        with self._each("u", ""), self._out_edges():
            with self.writer.block("if warp.test_bit(due, v):"):
                self._body().push()

    def edge(self) -> None:
        """Print the body of the kernel."""
        writer, body = self.writer, self._body()
        self._arrays()
        with self._each("u", "sources"), self._out_edges():
            if self.several:
                with writer.block("if edge_state[e] == 1:  # stopped"):
                    writer.line("continue")
            body.edge()
            with writer.block("if alive:"):
                writer.line(self._mark_passed())
            if self.several or self.phase.restores:
                with writer.block("else:"):
                    if self.several:
                        writer.line("edge_state[e] = 1")
                    body.copy_entries(self.phase.restores, "e", "")

    def reduce(self) -> None:
        """Print the body of the kernel."""
        writer, body, accumulator = self.writer, self._body(), self._reduced()
        writer.line("thread = uint32(cuda.threadIdx.x)")
        self._boxes()
        self._arrays()
        body.start(accumulator)
        with self._each("v", "due"):
            body.contribute(self.functions[0])
        writer.line("# Combine over the block.")
        # Here the lanes of a warp are as many groups of one lane.
        team = WarpBody(self.context, self.plan, self.phase, self.printed, self.edge_id)
        if accumulator.is_wide and self.phase.mapping.loops:
            with writer.block(f"for f in range({self.phase.width}):"):
                writer.line(f"combined = {accumulator.name}[f]")
                print_block_combine(team, accumulator, "combined", self.threads)
                with writer.block("if thread == 0:"):
                    writer.line("partials[uint32(cuda.blockIdx.x), uint32(f)] = combined")
            return
        names = [body.held(accumulator, j) for j in range(self._reduced_width())]
        for name in names:
            print_block_combine(team, accumulator, name, self.threads)
        with writer.block("if thread == 0:"):
            for j, name in enumerate(names):
                writer.line(f"partials[uint32(cuda.blockIdx.x), {j}] = {name}")

    def _arrays(self) -> None:
        """Declare the small arrays that a thread works in."""
        real, k, line = self.context.real, self.phase.width, self.writer.line
        if self._has_matrices():
            self._matrices(0, "cuda.grid(1)")
        if not self.phase.mapping.loops:
            return
        for array, kind, dtype in (("rows", "real", real), ("flags", "int64", "int64")):
            count = max((p.arrays.get(kind, 0) for p in self.printed.values()), default=0)
            if count:
                line(f"{array} = cuda.local.array(({count}, {k}), {dtype})")
        for accumulator in self._held():
            if accumulator.is_wide:
                line(f"{accumulator.name} = cuda.local.array({k}, {self._dtype(accumulator)})")
                if accumulator.is_arg:
                    line(f"{accumulator.name}_source = cuda.local.array({k}, int32)")
        for printed in self.printed.values():
            if printed.is_collective and printed.function.kind in {"gather", "reduce"}:
                accumulator = self._body().accumulators[printed.function.into]
                line(f"contribution = cuda.local.array({k}, {self._dtype(accumulator)})")
                if accumulator.is_arg:
                    line(f"contribution_source = cuda.local.array({k}, int32)")

    def _dtype(self, accumulator: Accumulator) -> str:
        return {"real": self.context.real, "bool": "boolean"}.get(accumulator.type, accumulator.type)


class _WarpPhase(_CudaPhase):
    """A span of lanes shares a vertex: its features, and its edges by slots (FA)."""

    #: Threads that share a vertex if a whole block does.
    block_threads = 0

    def _body(self) -> WarpBody:
        return WarpBody(self.context, self.plan, self.phase, self.printed, self.edge_id, self.block_threads)

    def _prologue(self) -> None:
        """Say which features and which edges are this lane's."""
        line, mapping, body = self.writer.line, self.phase.mapping, self._body()
        if self.block_threads or self.phase.kind == "reduce":
            line("thread = uint32(cuda.threadIdx.x)")
        if mapping.lanes > 1:
            line(f"lane = cuda.laneid & {mapping.lanes - 1}")
        if body.slots > 1:
            shift = mapping.lanes.bit_length() - 1
            place = "cuda.threadIdx.x" if self.block_threads else "cuda.laneid"
            if not self.block_threads and mapping.span < WARP:
                place += f" & {mapping.span - 1}"
            if shift:
                place = f"({place}) >> {shift}" if "&" in place else f"{place} >> {shift}"
            line(f"slot = {place}")
        self._features(body)
        if self._has_matrices():
            self._print_matrices()

    def _features(self, body: WarpBody) -> None:
        line, copies, k = self.writer.line, body.copies, self.phase.width
        if body.lanes == 1:
            return
        for j in range(copies):
            own = "lane" if copies == 1 else f"lane * {copies}{f' + {j}' if j else ''}"
            if body.padded:
                line(f"{body.inside(j)} = {own} < {k}")
                own = f"min({own}, {k - 1})"
            line(f"{body.feature(str(j))} = {own}")

    def _print_matrices(self) -> None:
        shift = self.phase.mapping.span.bit_length() - 1
        if self.phase.mapping.shared_matrices:
            self._matrices(self.threads >> shift, f"cuda.threadIdx.x >> {shift}")
        else:
            self._matrices(0, f"cuda.grid(1) >> {shift}")

    @contextmanager
    def _each(self, vertex: str, words: str, wanted: str, skip: bool = True) -> Iterator[None]:
        """Print the loop over the vertices of a warp; all its lanes stay in it."""
        writer, span = self.writer, self.phase.mapping.span
        count = WARP // span
        warp = f"(cuda.grid(1) >> 5) * {count}" if count > 1 else "cuda.grid(1) >> 5"
        stride = f"(cuda.gridsize(1) >> 5) * {count}" if count > 1 else "cuda.gridsize(1) >> 5"
        writer.line(f"first, stride = {warp}, {stride}")
        with writer.block(f"for {'base' if count > 1 else 'index'} in range(first, vertex_count, stride):"):
            if count > 1:
                own = f"(cuda.laneid >> {span.bit_length() - 1})" if span > 1 else "cuda.laneid"
                writer.line(f"index = base + {own}")
            test = f"warp.test_bit({words}, index)" if words else "index < vertex_count"
            writer.line(f"{wanted} = {test}")
            if words and skip:
                with writer.block(f"if not warp.group_any({wanted}, {WARP}):"):
                    writer.line("continue  # the whole warp")
            writer.line(f"{vertex} = int32(min(index, vertex_count - 1))" if count > 1 else f"{vertex} = int32(index)")
            yield

    def _row(self, offsets: str, vertex: str, wanted: str) -> None:
        """Find the edges of a vertex: from `start` to `stop`, none where it is not wanted."""
        line = self.writer.line
        line(f"start, stop = {offsets}[uint32({vertex})], {offsets}[uint32({vertex} + 1)]")
        if self.role == "main" and self.phase.mapping.hubs:
            line(f"{wanted} = {wanted} and stop - start < hub_degree")
        if self.role == "main":
            line(f"stop = stop if {wanted} else start")

    def vertex(self) -> None:
        """Print the body of the kernel."""
        self._prologue()
        with self._each("v", "due", "is_due"):
            if self.gathers:
                self._row("in_offsets", "v", "is_due")
            body = self._body()
            body.vertex()
            tests = ["alive", *(["slot == 0"] if body.slots > 1 else []), *(["lane == 0"] if body.lanes > 1 else [])]
            with self.writer.block(f"if {' and '.join(tests)}:"):
                self.writer.line("warp.set_bit(passed, v)")
            body.restore("v", "is_due")

    def push(self) -> None:
        """Print the body of the kernel."""
        writer = self.writer
        self._prologue()
        body = self._body()
        printed = self.printed[self.functions[0].name]

        def masked() -> None:
            writer.line("inside_edge = inside_edge and warp.test_bit(due, v)")
            body.load_temporaries()
            writer.line(body._contributions(printed, "inside_edge"))
            with writer.block("if inside_edge:"):
                body.push()

        with self._each("u", "", "is_source"):
            self._row("out_offsets", "u", "is_source")
            if body.is_predicated(printed):
                body.rounds(masked)
                return
            with self._free_edges(body):
                with writer.block("if warp.test_bit(due, v):"):
                    body.load_temporaries()
                    body.push()

    @contextmanager
    def _free_edges(self, body: WarpBody) -> Iterator[None]:
        """Print a loop over out-edges in which every lane goes its own way."""
        writer = self.writer
        first = f"start + {body.slot}" if body.slots > 1 else "start"
        with writer.block(f"for position in range({first}, stop{body.edge_step()}):"):
            body.out_edge()
            yield

    def edge(self) -> None:
        """Print the body of the kernel."""
        self._prologue()
        body = self._body()
        with self._each("u", "sources", "is_source"):
            self._row("out_offsets", "u", "is_source")
            if body.lanes > 1:
                body.rounds(lambda: self._edge_stages(body))
                return
            with self._free_edges(body):
                self.writer.line("inside_edge = True")
                self._edge_stages(body)

    def _edge_stages(self, body: WarpBody) -> None:
        writer = self.writer
        if self.several:
            writer.line("inside_edge = inside_edge and edge_state[e] != 1")
        body.edge()
        only = " and lane == 0" if body.lanes > 1 else ""
        with writer.block(f"if alive{only}:"):
            writer.line(self._mark_passed())
        if self.several:
            with writer.block(f"if inside_edge and not alive{only}:"):
                writer.line("edge_state[e] = 1")
        body.restore("e", "inside_edge")

    def reduce(self) -> None:
        """Print the body of the kernel."""
        writer, function = self.writer, self.functions[0]
        self._prologue()
        self._boxes()
        body, accumulator, printed = self._body(), self._reduced(), self.printed[function.name]
        body.start(accumulator)
        names = [body.held(accumulator, j) for j in range(body.copies if accumulator.is_wide else 1)]
        with self._each("v", "due", "is_due", skip=body.is_predicated(printed)):
            if body.is_predicated(printed):
                writer.line(body._contributions(printed, "is_due"))
            with writer.block("if is_due:"):
                if not body.is_predicated(printed):
                    body.contribute(function)
                else:
                    for j, name in enumerate(names):
                        body._take(accumulator, name, body._contribution(function, j))
        writer.line("# Combine over the block.")
        for name in names:
            print_block_combine(body, accumulator, name, self.threads)
        for j, name in enumerate(names):
            feature = body.index(body.feature(str(j))) if accumulator.is_wide else "0"
            tests = [f"thread < {body.lanes}" if accumulator.is_wide else "thread == 0"]
            tests += [body.inside(j)] if accumulator.is_wide and body.inside(j) else []
            with writer.block(f"if {' and '.join(tests)}:"):
                writer.line(f"partials[uint32(cuda.blockIdx.x), {feature}] = {name}")


class _HubPhase(_WarpPhase):
    """A block takes one vertex of high degree: its edges go to all slots of the block."""

    role = "hubs"
    threads = HUB_THREADS
    block_threads = HUB_THREADS

    def __init__(
        self, context: Context, plan: FoldPlan, number: int, phase: Phase, printed: dict[str, Printed]
    ) -> None:
        super().__init__(context, plan, number, phase, printed)
        self.name += "_hubs"

    def _prologue(self) -> None:
        super()._prologue()
        if self.phase.kind == "vertex":
            self._boxes()

    @contextmanager
    def _each(self, vertex: str, words: str, wanted: str, skip: bool = True) -> Iterator[None]:
        """Print the loop over the hubs of a block; its exits are those of the whole block."""
        writer = self.writer
        with writer.block("for index in range(cuda.blockIdx.x, hubs.size, cuda.gridDim.x):"):
            writer.line(f"{vertex} = hubs[uint32(index)]")
            if words:
                with writer.block(f"if not warp.test_bit({words}, {vertex}):"):
                    writer.line("continue  # the whole block")
            if self.phase.kind == "vertex":
                writer.line(f"{wanted} = True")
            yield
