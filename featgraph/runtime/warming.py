"""Compilation of kernels ahead of the first call: ``featgraph warm`` stores them.

The command runs algorithms on small graphs on the CPU, within `storing`. There, size
thresholds are zero, so that runs also use the loops and directions of large graphs, and
directions that a run does not use are compiled, too. For a GPU, which need not be
present, `ForGpu` folds each foldmap that runs for all traits of graphs that its text
depends on, and groups the kernels by content, into jobs for any process.
`compile_own_kernels` compiles the kernels that all programs share.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from featgraph.base.config import config
from featgraph.base.dataclass import replace
from featgraph.base.errors import DeviceError
from featgraph.cuda import dialect
from featgraph.fold.compiling.jobs import Job, JobsByContent
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.folder import fold_due_set
from featgraph.fold.plan.options import Changes
from featgraph.fold.plan.plan import WORKLIST
from featgraph.fold.plan.traits import MANY_ROWS, GraphTraits, graph_traits
from featgraph.graph.building import edges
from featgraph.program.state import State
from featgraph.runtime.devices import cpu_sweeps, host_arrays
from featgraph.runtime.loops import foldmap_run, worklist
from featgraph.runtime.loops.background import COMPILER, functions_of, set_functions_of
from featgraph.runtime.recording.control import At
from featgraph.runtime.superstep import foldmap
from featgraph.runtime.superstep.foldmap import FoldMap
from featgraph.runtime.superstep.superstep import Superstep

__all__ = [
    "Count", "ForGpu", "Job", "checked_cc", "compile_own_kernels", "counting",
    "storing",
]  # fmt: skip

ComputeCapability = tuple[int, int]
#: A function, and types of its arguments.
Compiled = tuple[Any, tuple[Any, ...]]
#: (module, name of a threshold, value) with which small graphs run as large ones do.
#: With so small a chunk, graphs of some hundred edges are cut into several.
_AS_LARGE = [
    (foldmap_run, "FEWEST_CONTRIBUTIONS", 0), (foldmap_run, "FEWEST_A_VERTEX", 0),
    (worklist, "SMALLEST_GRAPH", 0), (edges, "FEW", 0),
    (cpu_sweeps, "SMALLEST_CHUNK", 64), (host_arrays, "SMALLEST_CHUNK", 64),
]  # fmt: skip
#: Values of the traits that generated CUDA text depends on, see `GraphTraits`:
#: `typical_degree`, and `rows_of_longest`.
_DEGREES = (1, 2, 4, 8, 16, 32, 64)
_ROWS = (16, 32, 64, 128, 256, MANY_ROWS)
#: `long_rows`, `has_hubs` and `has_giant`; each includes the ones before it.
_LENGTHS = (
    (False, False, False), (True, False, False), (True, True, False), (True, True, True)
)  # fmt: skip


class Count(logging.Handler):
    """A log handler that counts compiled kernels, and kernels loaded from the cache.

    Attributes
    ----------
    compiled, loaded : int
    """

    def __init__(self) -> None:
        super().__init__()
        self.compiled = self.loaded = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a log message: INFO for a compiled kernel, DEBUG for a loaded one."""
        self.compiled += record.levelno == logging.INFO
        self.loaded += record.levelno == logging.DEBUG


@contextmanager
def counting() -> Iterator[Count]:
    """Count kernels that are compiled or loaded within the block."""
    count, log = Count(), logging.getLogger("featgraph")
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(count)
    try:
        yield count
    finally:
        log.removeHandler(count)
        log.setLevel(level)


@contextmanager
def storing(for_gpu: ForGpu | None = None, *, as_large: bool = False) -> Iterator[None]:
    """Within the block, compile and store more kernels than runs on the CPU need.

    These are the kernels of first calls on other graphs. Not thread-safe: settings of
    the whole process change within the block.

    Parameters
    ----------
    for_gpu : ForGpu, optional
        Finds kernels for a GPU, which its jobs compile, besides those of runs on the
        CPU. Default: compile for the CPU alone.
    as_large : bool, optional
        Run small graphs with the loops, directions and chunks of large ones.
    """
    note = for_gpu or _compile_for_cpu
    settings: list[tuple[Any, str, Any]] = [
        (config, "compile_behind", True), (foldmap, "PREPARED", [note])
    ]  # fmt: skip
    if for_gpu is not None:
        settings.append((State, "is_read_on_host", False))
        settings.append((worklist, "STAGED", [for_gpu.stage]))
    if as_large:
        settings += _AS_LARGE
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in settings]
    try:
        for owner, name, value in settings:
            setattr(owner, name, value)
        yield
        COMPILER.wait()
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _compile_for_cpu(
    run: FoldMap,
    state: State,
    options: dict[str, Any],
    incremental: Changes | None,
    superstep: Superstep,
) -> None:
    """Compile the kernels of a foldmap that the run itself may not use.

    These are the pushing kernel, and single supersteps where a loop runs all.
    """
    device, kernel = superstep.device, superstep.kernel
    if options.get("direction") == "push" or kernel.kernel_source.queue is not None:
        functions = functions_of(superstep, superstep.frontier_forms(None, None))
        for function in functions + set_functions_of(superstep):
            if not function.is_compiled:
                function.compile()
    if kernel.plan.facts.may_push and "direction" not in options:
        run.prepare(state, device, {**options, "direction": "push"}, incremental)


class ForGpu:
    """Finds kernels of foldmaps that run, for a GPU: in all forms, for all traits.

    Attributes
    ----------
    kernels : JobsByContent
        All that were found so far.
    """

    def __init__(self) -> None:
        #: Foldmap, options and changes of each superstep that was prepared.
        self._runs: dict[Superstep, tuple[FoldMap, dict[str, Any], Changes | None]] = {}
        #: Kernels, and pairs of a kernel and its stage.
        self._known: set[Any] = set()
        self.kernels = JobsByContent()

    def __call__(
        self,
        run: FoldMap,
        state: State,
        options: dict[str, Any],
        incremental: Changes | None,
        superstep: Superstep,
    ) -> None:
        """Find the kernels of a foldmap for the types of a State and all graphs."""
        self._runs.setdefault(superstep, (run, options, incremental))
        for traits in _all_traits(graph_traits(state.graph)):
            kernel = run.kernel(
                state, "cuda", options, incremental=incremental, traits=traits
            )
            self._add(kernel, partial(functions_of_gpu, kernel))
        if kernel.plan.facts.may_push and "direction" not in options:
            pushed = {**options, "direction": "push"}
            self(run, state, pushed, incremental, superstep)

    def stage(self, then: FoldMap, superstep: Superstep) -> None:
        """Find the loops over supersteps that run `then` when no vertex is due."""
        run, options, incremental = self._runs[superstep]
        state = superstep.bound.state
        for traits in _all_traits(graph_traits(state.graph)):
            kernel = run.kernel(
                state, "cuda", options, incremental=incremental, traits=traits
            )
            pair = kernel, then.kernel(state, "cuda", {}, traits=traits)
            self._add(pair, partial(loops_with_stage, *pair))

    def _add(self, source: Any, find: Callable[[], Iterator[Compiled]]) -> None:
        """Add the functions of a kernel, or of a pair; once."""
        if source in self._known:
            return
        self._known.add(source)
        for function, types in find():
            self.kernels.add(function, types)


def functions_of_gpu(kernel: Kernel) -> Iterator[Compiled]:
    """Yield the functions of a kernel in all forms, with the types of their arguments.

    Forms differ with traits of graphs, such as directions of edges, also where the text
    of the kernel itself is the same.
    """
    plan = kernel.plan
    for entry in kernel.entries:
        yield kernel.function(entry), kernel.signature(entry)
    for frontier_form in ("packed", "listed"):
        if any(plan.can_take(frontier_form, phase) for phase in plan.phases):
            other = kernel.in_form(frontier_form)
            for entry in other.entries:
                yield other.function(entry), other.signature(entry, kernel.module)
    if not plan.facts.not_queued:
        loop = kernel.in_form(WORKLIST)
        queue = loop.kernel_source.queue
        if queue is not None and queue.entry is not None:
            yield loop.queue, loop.signature(queue.entry)


def loops_with_stage(kernel: Kernel, stage: Kernel) -> Iterator[Compiled]:
    """Yield the loop of a kernel that runs a stage, unless the host has to run it."""
    if kernel.plan.facts.not_queued or stage.not_staged:
        return
    loop = kernel.in_form(WORKLIST)
    queue = loop.kernel_source.queue
    if queue is not None and queue.entry is not None and not queue.marks_steps:
        yield loop.with_stage(stage).function, loop.signature_with_stage(stage)


def _all_traits(own: GraphTraits) -> Iterator[GraphTraits]:
    """Yield the traits of graphs of all shapes, with the other traits of `own`."""
    for degree, rows, lengths in itertools.product(_DEGREES, _ROWS, _LENGTHS):
        long_rows, has_hubs, has_giant = lengths
        yield replace(
            own, typical_degree=degree, rows_of_longest=rows, long_rows=long_rows,
            has_hubs=has_hubs, has_giant=has_giant,
        )  # fmt: skip


def checked_cc(given: ComputeCapability | None) -> ComputeCapability:
    """Return a compute capability that the compiler supports; default the GPU's.

    Raises
    ------
    DeviceError
        If there is no compiler, no GPU to take the default from, or no such capability.
    """
    dialect.require()
    if given is None and not dialect.is_available():
        raise DeviceError("no GPU was found", fix="give --cc, such as --cc 9.0")
    cc = given or tuple(dialect.cuda.get_current_device().compute_capability)
    known = dialect.dialect_module("cudadrv.nvrtc").get_supported_ccs()
    if cc not in known:
        raise DeviceError(
            "the compiler does not support this compute capability",
            where="--cc",
            got=".".join(map(str, cc)),
            expected=", ".join(f"{major}.{minor}" for major, minor in known),
        )
    return cc


def compile_own_kernels(cc: ComputeCapability, more: Iterable[Compiled] = ()) -> None:
    """Compile the kernels that all programs share, and more, for a GPU."""
    with dialect.storing_for(cc):
        for function, types in itertools.chain(own_kernels(), more):
            function.compile(types)


def own_kernels() -> Iterator[Compiled]:
    """Yield kernels of the runtime, with the types that first calls compile them for.

    They build rows of edges on the GPU, find due vertices, and work on sets.
    """
    from numba import types

    from featgraph.cuda import elements, sorting
    from featgraph.graph.building import gpu_edge_kernels as building
    from featgraph.graph.building import gpu_oriented, gpu_part_kernels
    from featgraph.runtime.devices import cuda_arrays
    from featgraph.runtime.devices import cuda_loops as loops

    n, flag, sign = types.int64, types.boolean, types.float64
    bits, i32, i64 = types.uint32[::1], types.int32[::1], types.int64[::1]
    f32, f64, pairs = types.float32[::1], types.float64[::1], types.int64[:, ::1]
    words = bits, bits, bits
    at = types.BaseTuple.from_types([n] * len(At._fields), At)
    yield cuda_arrays.control, (at, i64, f64, i64, i64, f64)
    ids, placed = types.int64[:, :, ::1], (n, i64)
    yield elements.place_rows, (ids, i64, flag, n, n, n, i32, *placed)
    for number in (types.float32, types.float64):
        rows, within, row = number[:, :, ::1], (n, number, number), number[::1]
        yield elements.place_rows, (rows, i32, flag, *within, row, *placed)
        yield loops.copy_features, (number[:, ::1], number[:, ::1], n)
    for function in (loops.words_or, loops.words_and, loops.words_without):
        yield function, words
    yield loops.leave_out, (*words, bits)
    yield loops.settle, words
    yield loops.count_in_one_block, (bits, i64)
    logged = types.uint32[:, ::1]
    yield loops.log_set, (bits, logged, i64)
    yield loops.end_logged, (i64,)
    yield loops.next_set, (pairs,)
    yield loops.play_set, (logged, pairs, bits)
    yield elements.add_one, (i64,)
    yield loops.count_bits, (bits, i64)
    for values in (f32, f64):
        yield loops.extreme, (values, sign, f64, n)
    for values in (i32, i64, f64):
        yield elements.fill, (values, values.dtype)
    for number in (types.float32, types.float64, types.int32, flag):
        rows = number[:, ::1]
        yield loops.refresh_vertices, (bits, rows, rows)
        yield loops.refresh_vertices_without, (bits, bits, rows, rows)
    yield building.survey, (i32, i32, i64)
    yield building.side_ends, (i64, i32, n, n, n, i32, i32)
    for values in (f32, f64):
        yield building.find_nan, (values, i32)
    yield building.count_ends, (i32, i32, flag, i32)
    yield building.find_most, (i32, n, i64)
    yield building.find_hubs, (i32, n, pairs, i32)
    for function in (building.begin_rows, building.count_short, building.find_moved,
                     building.invert, gpu_part_kernels.expand_rows):  # fmt: skip
        yield function, (i32, i32)
    for function in (building.take, gpu_oriented.add_rows, gpu_oriented.find_repeated):
        yield function, (i32, i32, i32)
    yield building.both_ends, (i32, i32, n, i32)
    yield building.find_twins, (i32, i32, n, i32)
    yield building.is_twin, (i32, n, types.uint8[::1])
    yield building.other_ends, (i32, i32, i32, i32)
    yield building.number_given, (i32, n, i32)
    yield building.short_degrees, (i32, n, i64)
    yield gpu_part_kernels.count_within, (i32, i32, i64, i64)
    yield building.mark_windows, (i64, i64, n, n, i32)
    yield building.list_marked, (i32, i64, i32)
    yield gpu_oriented.turn_upward, (i32, i32, i32, n, i32, n, i32, i32, i32)
    yield gpu_oriented.fill_both, (i32,) * 10
    yield sorting.count_digits, (i32, n, n, n, i32)
    for values in (i32, i64):
        yield sorting.add_chunks, (values, n, i64)
        yield sorting.scan_chunks, (values, n, i64, i64)
        yield sorting.scan_few, (values, i64, i64)
    yield sorting.scatter, (i32, i32, flag, n, n, n, i64, i32, i32)
    listed = bits, flag, n, i32, i64
    of_sets = {
        "reach": (bits, bits, n), "reach_hubs": (bits, bits, i32),
        "find": (bits, bits, n, n), "find_hubs": (bits, bits, i32),
        "count": (bits, i64), "find_targets": (types.uint8[::1], bits, n),
        "count_rows": listed, "list_rows": (*listed, i32, i32),
    }  # fmt: skip
    for name, own in of_sets.items():
        kernel = fold_due_set(name, GraphTraits(), "cuda", "in")
        yield kernel.function, (*own, *[i32] * len(kernel.arrays("in")))
