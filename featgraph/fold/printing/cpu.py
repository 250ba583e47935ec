"""Printer of the CPU target: one thread a vertex, chunks of vertices over threads.

A chunk is a range of bitvector words. Chunks have about equal work. Since a thread
writes whole words, pulls need no atomics. `print_phase` prints the sweep of a chunk,
and the kernel that calls it for all chunks. `print_queue` prints the loop over
supersteps of few vertices (0018), and `print_stage` the loop that also runs a stage of
another plan (0098).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from featgraph.base.dataclass import replace
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.nests.blocks import added_by_chunks, finished
from featgraph.fold.passes.nests.facts import NestFacts
from featgraph.fold.passes.passes import lower
from featgraph.fold.passes.worklists.cpu import CpuWorklist
from featgraph.fold.plan.plan import VERTICES, FoldPlan
from featgraph.fold.plan.worklist import (
    combines_once,
    is_queued,
    shares_domain,
    why_not_staged,
)
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
from featgraph.fold.tree.statements import Body, Rewriting, code, every, when

__all__ = [
    "DECORATOR",
    "IMPORTS",
    "constants",
    "device_modules",
    "in_parallel",
    "print_phase",
    "print_queue",
    "print_stage",
    "unsigned_vertices",
]

#: Decorator of functions that only generated code calls.
DECORATOR = "njit(**INLINE)"
#: Imports of all modules, beside the standard library's and `device_modules`.
IMPORTS = (
    "import numpy as np",
    "from numba import float32, float64, int32, int64, njit, uint32",
    "",
)
#: LLVM flags of real arithmetic. With "arcp", a division may become a product with the
#: reciprocal, so the last bit depends on which operations LLVM moves out of a loop, and
#: not on the order of sums alone.
FAST = ("reassoc", "contract", "nsz", "arcp", "afn")
#: Flags by which last bits depend on what LLVM moves out of loops. Exclusive functions
#: go without them: schedules with one order of edges have the same bits.
_MOVING = ("reassoc", "arcp")
#: Options of functions that Python calls.
_CALLED = 'CALLED = {**CODE, "cache": True, "nogil": True}'
#: Lines of modules without reals, which turn off reference counting: see `_compiled`.
_UNCOUNTED = [
    "# Arrays are the caller's, who counts references to them.",
    'CODE |= {"_nrt": False}',
]


def device_modules(plan: FoldPlan) -> dict[str, bool]:
    """Return modules of `featgraph.device` -> whether functions of a plan call them.

    Names are texts behind ``import``.
    """
    solves = any("solve" in f.operations for f in plan.analysis.functions)
    systems = any(f.operations & {"solve", "inverse"} for f in plan.analysis.functions)
    return {
        "cpu": True,
        "queue_cpu as queue": is_queued(plan),
        "linalg_cpu as linalg": systems,
        "cholesky_cpu as cholesky": solves,
        "tiles_cpu as tiles": solves or any(p.tiles for p in plan.phases),
        "numbers_cpu as numbers": plan.analysis.uses_numbers(cuda=False),
        "vectors_cpu as vectors": any(p.mapping.is_looped for p in plan.phases),
    }


def constants(plan: FoldPlan) -> list[str]:
    """Return the lines of the module's constants: options of Numba."""
    is_exact = any(f.kind.exclusive for f in plan.analysis.functions)
    flags = (f'"{flag}"' for flag in FAST if not (is_exact and flag in _MOVING))
    lines = [
        "# nnan and ninf are never allowed: inf and nan stay testable.",
        "FAST = {" + ", ".join(flags) + "}",
        'CODE = {"error_model": "numpy", "fastmath": FAST, "no_cfunc_wrapper": True}',
        *([] if plan.analysis.has_reals else _UNCOUNTED),
        "# Called by compiled code alone: no entries from Python are compiled.",
        'INLINE = {**CODE, "no_cpython_wrapper": True}',
        "# What Python calls; its other threads, which may hand over bytes, go on.",
        _CALLED,
        "# Rows are short: lanes sharing a sum of few edges cost more than they save.",
        'SWEEP = {**CALLED, "fastmath": FAST - {"reassoc"}}',
    ]
    if any(p.in_a_tree for p in plan.phases):
        lines += [
            "# What is combined has been rounded: it may come from other ranks.",
            'IN_A_TREE = {**SWEEP, "fastmath": FAST - {"reassoc", "contract"}}',
        ]
    is_inlined = any(f.is_inlined for f in plan.analysis.functions)
    if is_inlined or any(p.mapping.is_looped for p in plan.phases) or is_queued(plan):
        lines += [
            "# Within loops over edges: what they return stays in registers.",
            'INNER = {**INLINE, "forceinline": True}',
        ]
    return lines


def print_phase(one: PhaseToPrint) -> list[Entry]:
    """Print the kernel of a phase, and the last step of a reduce.

    The kernel calls the sweep of a chunk for every chunk. The sweep is a function of
    its own, so that a single chunk runs on the calling thread.
    """
    writer, phase, number = one.writer, one.phase, one.number
    schedule = phase.schedule
    facts = one.facts(schedule)
    if phase.combined_in >= 0:  # an earlier sweep leaves the partial results
        return [_print_finish(one, facts)]
    arrays = (*schedule.arrays(phase.mapping), *one.ordered)
    name, sweep = f"{phase.kind}_phase_{number}", f"sweep_{number}"
    places = dict.fromkeys(["chunks", *(array.name for array in arrays)])
    places |= dict.fromkeys(schedule.launched)
    arguments = phase.kind.arguments(facts, list(places), [])
    listed = facts.shape.frontier_form == VERTICES
    # The sweep takes the bounds of one chunk in place of these.
    outer = {"chunks", "turns"} | ({"swept_words"} if listed else set())
    inner = [a for a in arguments if a not in outer]
    facts.arguments = ("chunk", *phase.kind.chunk, *inner)
    flags = "IN_A_TREE" if phase.in_a_tree else "SWEEP"
    body = lower(facts)
    if not phase.kind.intersects:  # unsigned loops over pairs of rows are slower
        body = unsigned_vertices(body, facts.plan.traits.wide_offsets)
    title, plan = phase.kind.title(facts), facts.plan
    if phase.combines:  # these tests are never true: lengths of rows become constants
        unlike = _other_shapes(one.fields, plan)
        body = (when([" or ".join(unlike)], code("return")) if unlike else []) + body
    sweeps = _compiled(flags, body, plan)
    made = make_function(sweeps, sweep, facts.arguments, title, body)
    print_function(writer, made)
    if plan.frontier_form != VERTICES:
        all_chunks = in_parallel(sweep, inner, phase.kind.in_turns)
        made = make_function("njit(**CALLED)", name, arguments, "", all_chunks)
        print_function(writer, made)
    main = Entry(name, number, "main", tuple(arguments))
    entries = [replace(main, schedule=schedule, arrays=arrays)]
    if phase.kind.reduces and not phase.in_a_tree:
        entries.append(_print_finish(one, facts))
    return entries


def _print_finish(one: PhaseToPrint, facts: NestFacts) -> Entry:
    """Print the kernel that combines the partial results of a reduce."""
    phase, plan = one.phase, facts.plan
    in_blocks = bool(facts.summed and facts.binding.block)
    accumulator = facts.accumulators[facts.reduced]
    size = facts.binding.features.any_width or str(accumulator.size)
    body, in_numpy = finished(
        accumulator, in_blocks, size, called_by_loops=not why_not_staged(plan)
    )
    # A sweep that combines leaves a row for each block, not for each chunk.
    by_blocks = in_blocks and phase.combined_in >= 0
    body = added_by_chunks(accumulator) + body if by_blocks else body
    doc = "Combine the partial results in order."
    decorator = "" if in_numpy else _compiled("CALLED", body, plan)
    name = f"{phase.kind}_phase_{one.number}_finish"
    return one.finish(name, decorator, doc, body, more=("chunks",) * by_blocks)


def _compiled(flags: str, body: Body, plan: FoldPlan) -> str:
    """Return the decorator of a function; with `_nrt` if it allocates arrays.

    Reference counting (`_nrt`) in loops over vertices took 9 of 10 ns of a vertex
    function that returns False. Modules with reals keep it: without it, LLVM contracts
    other multiplications and additions.
    """
    called = {ast.unparse(n.func) for n in every(body) if isinstance(n, ast.Call)}
    made = {"np.empty", "np.zeros", "tiles.zeros"}
    if plan.analysis.has_reals or made.isdisjoint(called):
        return f"njit(**{flags})"
    return f'njit(**{{**{flags}, "_nrt": True}})'


def in_parallel(sweep: str, arguments: Iterable[str], in_turns: bool = False) -> Body:
    """Return calls of the sweep for every chunk, on all threads, or turn by turn.

    A turn of one chunk runs on the calling thread.
    """
    given = ", ".join(arguments)
    if not in_turns:
        return code(f"cpu.in_parallel({sweep}, chunks, ({given},))")
    return code(
        "for turn in range(turns.shape[0] - 1):\n"
        "    first, last = turns[turn], turns[turn + 1]\n"
        "    if last - first == 1:\n"
        f"        {sweep}(first, chunks[first], chunks[last], {given})\n"
        "    else:\n"
        f"        cpu.in_parallel({sweep}, chunks[first:last + 1], ({given},))"
    )


def unsigned_vertices(body: Body, wide_offsets: bool) -> Body:
    """Cast loaded vertices and bounds of rows to unsigned integers.

    An index that may be negative costs a test: it would count from the end of an array.
    """
    return _Unsigned(wide_offsets).over(body)


class _Unsigned(Rewriting):
    """Cast values bound to ``u``, ``v``, ``start`` and ``stop``."""

    def __init__(self, wide_offsets: bool) -> None:
        self.wide_offsets = wide_offsets

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        """Cast the value of an assignment to one of these names."""
        [target] = node.targets
        if isinstance(target, ast.Name) and target.id in {"u", "v"}:
            node.value = _unsigned(node.value)
        elif isinstance(target, ast.Tuple) and not self.wide_offsets:
            value, names = node.value, [ast.unparse(name) for name in target.elts]
            if isinstance(value, ast.Tuple) and names == ["start", "stop"]:
                value.elts = [_unsigned(part) for part in value.elts]
        return node


def _unsigned(node: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("int64"), [ast.Call(ast.Name("uint32"), [node], [])], [])


# Arguments of a superstep and of the loop: `featgraph.runtime.loops.worklist` passes
# them by name.
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
        Its description for the runtime.
    """
    return _QueuePrinter(writer, CpuWorklist(context, plan, callees)).run(fields)


class _QueuePrinter:
    """Print the test of a vertex, a superstep, and the loop around it."""

    def __init__(self, writer: Writer, worklist: CpuWorklist) -> None:
        self.writer, self.worklist, self.facts = writer, worklist, worklist.facts
        memory = [name for home in worklist.rows for name in home.arrays]
        self.arrays = [*self.facts.layout.arrays, *memory]

    def run(self, fields: tuple[Field, ...]) -> Queue:
        """Print the functions; return the description of the loop."""
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
        facts: NestFacts | None = None,
    ) -> None:
        """Print a function that calls user functions; `facts` default to the loop."""
        facts = facts or self.facts
        # The body may call these functions of the module.
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
        # Inlined: a call would pass all arrays on the stack, 70 ms for 25 (0018).
        body = unsigned_vertices(body, self.facts.plan.traits.wide_offsets)
        decorator = _compiled(form, body, self.facts.plan)
        made = make_function(decorator, name, arguments, doc, body)
        print_function(self.writer, made)

    def _types(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Return the dtypes and shapes of accumulators in memory."""
        found = []
        for home in self.worklist.rows:
            accumulator = home.accumulator
            real = self.facts.context.real
            dtype = real if accumulator.type == "real" else accumulator.type
            types = zip(home.arrays, (dtype, "int32"), strict=False)
            found += [(name, kind, accumulator.shape) for name, kind in types]
        return tuple(found)

    def _other_rows(self) -> list[str]:
        """Return tests, never True, that accumulators have rows of another length."""
        wide = [home for home in self.worklist.rows if home.accumulator.is_wide]
        names = [name for home in wide for name in home.arrays]
        return [f"{name}.shape[1] != {self.facts.phase.width}" for name in names]


def _other_shapes(fields: tuple[Field, ...], plan: FoldPlan) -> list[str]:
    """Return tests, never True, that properties have rows of another shape."""
    signature = plan.analysis.signature
    return [
        f"d.{field.name}.shape[{axis}] != {size}"
        for field in fields
        if field.source in {"property", "next"} and field.of in signature
        for axis, size in enumerate(signature[field.of].item_shape, 1)
    ]


def _swapped(field: Field, written: tuple[str, ...]) -> str:
    """Return a field of `d` with current and next buffers exchanged."""
    if field.of in written and field.source in {"property", "next"}:
        return f"d.{field.of}" if field.source == "next" else f"d.{field.of}_next"
    return f"d.{field.name}"


#: Arguments of the loop for a stage, beside its data and the arrays of its reduces.
_SETS = ["everyone", "left", "chunks"]
#: First lines of a module with a stage: it imports the modules of loop and stage.
_STAGE_HEAD = """
import {step} as step
import {stage} as stage
from numba import int64, njit

CODE = {{"error_model": "numpy", "no_cfunc_wrapper": True}}
"""
#: Run the loop until no vertex is due (CALL), then the stage, until neither leaves an
#: active vertex or a limit is reached. ``left`` lists the vertices that a stage sweeps.
_STAGE_LOOP = """
number, work, edges, stages, ended = 0, 0, 0, 0, 0
since = left_count = left.size
BEGIN
while True:
    CALL
    ran = sizes[0]
    for place in range(number, number + ran):
        since += counts[place]
    number += ran
    edges += sizes[3]
    work += sizes[3]
    if ran % 2 == 1:
        sources, passed = passed, sources
    if sizes[1] > 0 or number == most or work >= most_work:
        break
    LEAVE
    if left_count > most_edges:
        break
    STAGE
    work += left_count
    stages += 1
    since += passed_count
    sizes[1] = passed_count
    if passed_count == 0:
        ended = 1
        break
sizes[3], sizes[4], sizes[5] = edges, stages, ended
END
"""
#: Once a share of 1 / `_RENEWED` of the vertices that are left has been committed, the
#: list of those that still go on is made anew.
_RENEWED = 8
#: Drop vertices that no longer go on from ``left``, and combine them in the reduces.
_LEAVE = f"""
if since * {_RENEWED} >= left_count:
    since, kept, gone_count = 0, 0, 0
    for place in range(left_count):
        v = int64(left[place])
        goes_on = int64(step.goes_on_0(0, v, d))
        left[kept] = v
        due[gone_count] = v
        kept += goes_on
        gone_count += 1 - goes_on
    REDUCES
    left_count = kept
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
    once, steps, begin, leave = set(), code(""), code(""), code("")
    rows = list[str]()
    for number, phase in enumerate(plan.phases):
        main, *finish = [e for e in stage.entries if e.phase == number]
        known = {"d": "s", "due": "left", "passed": "passed"}
        if not phase.kind.reduces:
            call = _swept(number, "0, 0, left_count", main.arguments, known)
            steps += code(f"passed_count = {call}")
            continue
        own = f"rows_{number}"
        rows += [own, f"reduced_{number}"]
        known["partials"] = own
        if combines_once(*plan.functions_of(phase)):
            once.add(number)
            begin += code(_swept(number, "0, 0, 0", main.arguments, known))
            steps += code(_swept(number, "1, 0, left_count", main.arguments, known))
            gone = known | {"due": "due"}
            leave += code(_swept(number, "1, 0, gone_count", main.arguments, gone))
            leave += code(f"stage.{finish[0].name}({own}, {own}[0])")
        else:
            known["due"], cut = "everyone", "chunk, chunks[chunk], chunks[chunk + 1]"
            one = code(_swept(number, cut, main.arguments, known))
            steps += code("for chunk in range(chunks.size - 1):\n    ONE", ONE=one)
        steps += code(f"stage.{finish[0].name}({own}, reduced_{number})")
    leave = code(_LEAVE, REDUCES=leave)
    within = {
        "most": "most - number", "most_work": "most_work - work",
        "limits": "limits[number:]", "counts": "counts[number:]",
    }  # fmt: skip
    given = ", ".join(within.get(name, name) for name in queue.arguments)
    body = code(
        _STAGE_LOOP, BEGIN=begin, CALL=code(f"step.{queue.name}({given})"), STAGE=steps,
        LEAVE=leave if shares_domain(step.plan, plan) else code(""),
        END=code("sizes[0] = number"),
    )  # fmt: skip
    writer, name = Writer(), "supersteps_and_stages_0"
    doc = "Run supersteps, and a stage where nothing is due."
    writer.line(f'"""{doc}"""')
    lines = _STAGE_HEAD.format(step=modules[0], stage=modules[1]).splitlines()
    # Functions that Numba compiles for this one inherit its reference counting.
    has_reals = step.plan.analysis.has_reals or plan.analysis.has_reals
    lines += [*([] if has_reals else _UNCOUNTED), _CALLED]
    for line in lines:
        writer.line(line)
    arguments = [*queue.arguments, "s", *_SETS, *rows]
    made = make_function("njit(**CALLED)", name, arguments, doc, body)
    print_function(writer, made)
    return StageSource(
        name, tuple(arguments), frozenset(once), writer.text, step.stem, step.program
    )


def _swept(
    number: int, bounds: str, arguments: tuple[str, ...], known: dict[str, str]
) -> str:
    """Return the call of a sweep of the stage; `known` maps its arguments to names.

    `bounds` are the texts of the row of partial results and the range to sweep.
    """
    given = ", ".join(known[name] for name in arguments if name in known)
    return f"stage.sweep_{number}({bounds}, {given})"
