"""Generated CUDA kernels compile without a GPU: no spills, no stray float64."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.cuda import code as cuda_code
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

import numpy as np

from featgraph.algorithms.als import cholesky_half
from featgraph.fold.analysis.changes import Changes
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.compiling.signatures import entry_signature
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from featgraph.graph import Graph
from tests.programs.exclusive import LEARN, PROGRAMS
from tests.simt.case import Case
from tests.simt.kept import KEPT_CASES
from tests.simt.programs import BY_NAME, CASES
from tests.simt.test_asynchronous import CASES as MONOTONE
from tests.unit.snippets import Snippet
from tests.unit.test_names import many

WIDTHS = (1, 3, 8, 10, 33, 64)
VARIANTS: tuple[dict[str, Any], ...] = (
    {"hubs": True},
    {"feature_parallel": False},
    {"direction": "push", "hubs": True},
)


def _kernel(
    case: Case,
    k: int,
    *,
    hubs: bool = False,
    wide: bool = False,
    dtype: str = "float32",
    **options: Any,
) -> Kernel:
    graph = Graph.from_edges([0, 1], [1, 2], directed=not case.undirected)
    _, signature = case.values(graph, k, np.random.default_rng(0), dtype)
    giant = hubs and wide
    traits = GraphTraits(16, hubs, wide, case.undirected, has_giant=giant)
    options = {"target": "cuda", **options}
    return Kernel(
        emit(make_plan(case.program(), signature, Options(**options), traits))
    )


def _compile(kernel: Kernel, cc: tuple[int, int]) -> Any:
    """Yield (entry, PTX, resources) of each kernel."""
    source = kernel.kernel_source
    for entry in source.entries:
        signature = entry_signature(source, entry, kernel.module)
        ptx = dialect.compile_ptx(
            kernel.function(entry),
            signature,
            cc,
            launch_bounds=entry.launch_bounds or entry.block,
        )
        yield entry, ptx, cuda_code.link_cubin(ptx, cc)[1]


def _cases() -> Any:
    turn = 0
    for case in CASES:
        for options in VARIANTS:
            if options.get("direction") == "push" and not case.pushes:
                continue
            k = WIDTHS[turn % len(WIDTHS)]
            if not options.get("feature_parallel", True):
                k = min(k, 33)  # one thread with all of 64 features may well spill
            k += case.name == "pairs" and k % 2
            cc = ((8, 0), (9, 0))[turn % 2]
            turn += 1
            name = "-".join([case.name, str(k), *options, f"sm_{cc[0]}{cc[1]}"])
            yield pytest.param(case, k, options, cc, id=name)


@pytest.mark.drawn(27)
@pytest.mark.parametrize(("case", "k", "options", "cc"), list(_cases()))
def test_no_spills_and_no_stray_float64(
    case: Case, k: int, options: dict[str, Any], cc: tuple[int, int]
) -> None:
    is_lanes = options.get("feature_parallel", True)
    kernel = _kernel(case, k, **options)
    for entry, ptx, resources in _compile(kernel, cc):
        # Sums of blocks wait in an array, away from registers.
        in_blocks = kernel.plan.phases[entry.phase].mapping.block > 0
        assert resources.registers > 0
        assert resources.spill_stores_bytes == resources.spill_loads_bytes == 0
        # One thread for all features keeps small arrays of them.
        if is_lanes and not in_blocks:
            assert resources.stack_bytes == 0, entry.name
        assert ".f64" not in ptx, entry.name


@pytest.mark.drawn(16)
@pytest.mark.parametrize("k", [1, 3, 4, 8, 33])
@pytest.mark.parametrize("at_a_time", [1, "auto"])
@pytest.mark.parametrize(
    "name", ["label_propagation", "bfs", "custom", "weighted_sum", "first", "wander"]
)
def test_rows_that_a_warp_goes_through_together(
    name: str, at_a_time: int | str, k: int
) -> None:
    options = {"schedule": "warp_segmentation", "hubs": True}
    own = () if at_a_time == "auto" else (("edges_at_a_time", at_a_time),)
    _check_lean(_kernel(BY_NAME[name], k, of_schedule=own, **options))


@pytest.mark.drawn(4)
@pytest.mark.parametrize("k", [1, 4, 8, 33])
@pytest.mark.parametrize("name", ["label_propagation", "custom", "turn"])
def test_edges_that_are_shared_out(name: str, k: int) -> None:
    options = {"schedule": "balanced_push", "direction": "push"}
    _check_lean(_kernel(BY_NAME[name], k, **options))


def _check_lean(kernel: Kernel) -> None:
    for entry, ptx, used in _compile(kernel, (9, 0)):
        assert used.registers > 0
        assert used.spill_stores_bytes == used.spill_loads_bytes == 0, entry.name
        assert used.stack_bytes == 0, entry.name
        assert ".f64" not in ptx, entry.name


@pytest.mark.drawn(8)
@pytest.mark.parametrize("k", [4, 8])
@pytest.mark.parametrize(
    "options", [{}, {"feature_parallel": False}], ids=["fa", "nfa"]
)
@pytest.mark.parametrize(
    "name", ["label_propagation", "least_squares", "messages", "say_plainly"]
)
def test_nothing_spills_as_launched(name: str, options: dict[str, Any], k: int) -> None:
    """Linking optimizes once more, for as many threads as there can be."""
    for entry, used in _kernel(BY_NAME[name], k, **options).resources((9, 0)).items():
        assert used.registers > 0
        assert used.spill_stores_bytes == used.spill_loads_bytes == 0, entry
        assert used.stack_bytes == 0, entry


@pytest.mark.drawn(4)
@pytest.mark.parametrize("options", VARIANTS[:2], ids=["fa", "nfa"])
@pytest.mark.parametrize("case", KEPT_CASES, ids=repr)
def test_kernels_that_patch_neither_spill_nor_use_float64(
    case: Case, options: dict[str, Any]
) -> None:
    k = 3 if case.name == "every_combine" else 8
    kernel = _kernel(case, k, incremental=Changes(), **options)
    for entry, ptx, resources in _compile(kernel, (9, 0)):
        assert resources.spill_stores_bytes == resources.spill_loads_bytes == 0
        assert ".f64" not in ptx, entry.name


@pytest.mark.parametrize("options", VARIANTS[:2], ids=["fa", "nfa"])
@pytest.mark.parametrize(("key", "k"), [("distance", 8), ("comp", 1)])
def test_kernels_that_commit_see_the_commits_of_others(
    key: str, k: int, options: dict[str, Any]
) -> None:
    kernel = _kernel(MONOTONE[key], k, asynchronous=True, **options)
    for entry, ptx, resources in _compile(kernel, (9, 0)):
        assert resources.spill_stores_bytes == resources.spill_loads_bytes == 0
        assert ".f64" not in ptx, entry.name
        # Such loads take memory for constant while the kernel runs.
        assert "ld.global.nc" not in ptx, entry.name


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["label_propagation", "least_squares"])
def test_float64_wide_offsets_and_checked_mode_compile(name: str) -> None:
    kernel = _kernel(BY_NAME[name], 10, wide=True, dtype="float64", checked=True)
    for _, ptx, resources in _compile(kernel, (9, 0)):
        assert ".f64" in ptx
        assert resources.spill_stores_bytes == 0


@pytest.mark.parametrize(("k", "dtype"), [(4, "float32"), (8, "float64")])
def test_columns_of_matrices_take_one_row_an_edge(k: int, dtype: str) -> None:
    kernel = _kernel(BY_NAME["least_squares"], k, hubs=True, dtype=dtype)
    load = "v4.f32" if dtype == "float32" else "v2.f64"
    for entry, ptx, resources in _compile(kernel, (9, 0)):
        assert re.search(rf"ld\.global\S*{load}", ptx), entry.name
        assert resources.spill_stores_bytes == resources.spill_loads_bytes == 0
        assert resources.stack_bytes == 0


@pytest.mark.parametrize("options", VARIANTS, ids=["fa", "nfa", "push"])
def test_indices_are_unsigned(options: dict[str, Any]) -> None:
    # A signed index is compared with zero and may be moved by the array's length.
    kernel = _kernel(BY_NAME["weighted_sum"], 8, **options)
    for _, ptx, _ in _compile(kernel, (9, 0)):
        assert not re.search(r"shr\.s64 \t%rd\d+, %rd\d+, 63", ptx)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("k", [4, 8, 16, 32, 64, 128])
def test_rows_are_loaded_and_stored_in_pieces_of_16_bytes(k: int) -> None:
    case = BY_NAME["label_propagation"]
    [(_, ptx, resources)] = _compile(_kernel(case, k), (9, 0))
    # An edge's weight and its source's row; the compiler may have unrolled the loop.
    edges = ptx.count("ld.global.f32")
    assert edges >= 1
    # The vertex's own row, when it is computed and when it is put back.
    assert ptx.count("ld.global.v4.f32") == edges + 2
    assert ptx.count("st.global.v4.f32") == 2
    assert resources.registers <= 64


@pytest.mark.parametrize(
    ("k", "dtype", "load"),
    [(10, "float32", "v4.f32"), (6, "float64", "v2.f64"), (12, "float32", "v4.f32")],
)
def test_pieces_are_as_wide_as_the_row_allows(k: int, dtype: str, load: str) -> None:
    kernel = _kernel(BY_NAME["label_propagation"], k, dtype=dtype)
    [(_, ptx, resources)] = _compile(kernel, (9, 0))
    assert f"ld.global.{load}" in ptx
    assert f"st.global.{load}" in ptx
    assert resources.spill_stores_bytes == 0


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("k", "dtype", "load"),
    [(8, "float32", "v4.f32"), (10, "float32", "v4.f32"), (32, "float64", "v2.f64")],
)
def test_lanes_of_a_reduce_load_rows_in_pieces(k: int, dtype: str, load: str) -> None:
    kernel = _kernel(BY_NAME["pagerank"], k, dtype=dtype)
    plain = f"ld.global.{load[-3:]}"
    found = set()
    for entry, ptx, resources in _compile(kernel, (9, 0)):
        into = kernel.plan.phases[entry.phase].into
        # The other two read a row under a condition, or none.
        if entry.role == "main" and into in {"largest", "wild", "spread"}:
            found.add(into)
            assert f"ld.global.{load}" in ptx
            assert plain not in ptx
            assert resources.spill_stores_bytes == resources.stack_bytes == 0
    assert len(found) == 3


@pytest.mark.parametrize("k", [4, 8, 16])
def test_a_thread_loads_and_stores_rows_in_pieces(k: int) -> None:
    case = BY_NAME["label_propagation"]
    kernel = _kernel(case, k, feature_parallel=False)
    [(_, ptx, resources)] = _compile(kernel, (9, 0))
    # An edge's weight alone is loaded by itself.
    edges, pieces = ptx.count("ld.global.f32"), k // 4
    assert edges >= 1
    assert ptx.count("ld.global.v4.f32") == (edges + 2) * pieces
    assert ptx.count("st.global.v4.f32") == 2 * pieces
    assert "st.global.f32" not in ptx
    assert resources.registers <= (64 if k == 4 else 128)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("name", ["weighted_sum", "sides"])
def test_all_lanes_of_a_warp_go_through_one_loop(name: str, k: int) -> None:
    kernel = _kernel(BY_NAME[name], k, feature_parallel=False)
    votes = len(re.findall(r"warp\.set_bits\(", kernel.source))
    [(_, ptx, _)] = _compile(kernel, (9, 0))
    assert ptx.count("vote.sync") == votes  # more, where a lane has a loop of its own


@pytest.mark.drawn(4)
@pytest.mark.parametrize("feature_parallel", [True, False])
@pytest.mark.parametrize("name", ["label_propagation", "least_squares"])
@pytest.mark.parametrize("form", ["packed", "listed"])
def test_other_forms_cost_few_registers(
    name: str, feature_parallel: bool, form: str
) -> None:
    kernel = _kernel(BY_NAME[name], 4, feature_parallel=feature_parallel)
    [(_, _, resources)] = _compile(kernel, (9, 0))
    [(entry, ptx, packed)] = _compile(kernel.in_form(form), (9, 0))
    assert entry.name == f"{form}_vertex_phase_0"
    assert ".local" not in ptx
    assert packed.registers <= max(resources.registers + 20, 80)
    assert packed.spill_stores_bytes == packed.stack_bytes == 0


@fg.gather(into="total", combine="sum")
def total_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.w[u]


@fg.vertex
def normalize_often(f, v, d):  # type: ignore[no-untyped-def]
    a = fg.normalize(d.x[v, f] * d.total[v])
    b = fg.normalize(a * a + d.y[v, f])
    d.x_next[v, f] = fg.normalize(a * b)
    return abs(a * b - d.x[v, f]) > 1e-3


@pytest.mark.drawn(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("feature_parallel", [True, False])
def test_a_bound_leaves_registers_to_the_vertex_function(
    dtype: str, feature_parallel: bool
) -> None:
    graph = fg.Graph.from_edges([0] * 9, range(1, 10))
    rows = np.zeros((10, 16), dtype)
    state = fg.State(
        graph,
        x=fg.vertex_property(rows, iterated=True),
        y=fg.vertex_property(rows),
        w=fg.vertex_property(rows[:, 0].copy()),
    )
    step = fg.foldmap(total_of_neighbors, normalize_often)
    options = Options(target="cuda", feature_parallel=feature_parallel)
    plan = make_plan(step.program, state.signature, options, GraphTraits(64, True))
    for _, _, resources in _compile(Kernel(emit(plan)), (9, 0)):
        assert resources.spill_stores_bytes == resources.stack_bytes == 0


@pytest.mark.parametrize("k", [4, 6])
def test_small_matrices_stay_in_registers(k: int) -> None:
    kernel = _kernel(BY_NAME["least_squares"], k, feature_parallel=False)
    [(entry, ptx, resources)] = _compile(kernel, (9, 0))
    assert not entry.scratch
    # An edge's rating, and the degree and scalars of the vertex function.
    assert "st.global.f32" not in ptx
    assert ".local" not in ptx
    assert resources.registers <= 80
    assert resources.spill_stores_bytes == resources.stack_bytes == 0


def test_scalars_and_checked_mode_are_read_one_by_one() -> None:
    for k, checked in ((1, False), (8, True)):
        kernel = _kernel(BY_NAME["label_propagation"], k, checked=checked)
        text = kernel.source
        assert "load_row(d.label, uint32(u)" not in text


def test_more_edges_on_the_way_and_fewer_registers() -> None:
    forced = (("resident", 10), ("unroll", 2))
    kernel = _kernel(BY_NAME["label_propagation"], 32, mapping=forced)
    [(_, ptx, resources)] = _compile(kernel, (9, 0))
    assert ptx.count("ld.global.v4.f32") >= 5
    assert resources.registers <= 65536 // (10 * 128)
    assert resources.spill_stores_bytes == 0


@pytest.mark.parametrize("k", [33, 128])
def test_blocks_of_hubs_have_registers_for_long_rows(k: int) -> None:
    """As a launch links them: four rows are on the way together, without spills."""
    kernel = _kernel(BY_NAME["label_propagation"], k, hubs=True)
    [entry] = [e for e in kernel.entries if e.role == "hubs"]
    signature = entry_signature(kernel.kernel_source, entry, kernel.module)
    code = dialect.compile_ltoir(
        kernel.function(entry), signature, (9, 0), launch_bounds=entry.launch_bounds
    )
    resources = cuda_code.link_cubin(code, (9, 0))[1]
    assert resources.registers >= 48  # rows, their sums, and addresses
    assert resources.spill_stores_bytes == resources.spill_loads_bytes == 0


@pytest.mark.parametrize(("k", "pieces"), [(8, 16), (32, 8)])
def test_matrix_of_no_vertex_is_read_from_shared_memory(k: int, pieces: int) -> None:
    case = BY_NAME["say_plainly"]
    [(entry, ptx, resources)] = _compile(_kernel(case, k), (9, 0))
    assert entry.strides > 1
    assert resources.shared_bytes == 4 * k * k
    # In the loop over edges, however often the compiler repeats it; not before it.
    barrier = ptx.index("bar.sync")
    assert ptx.count("ld.shared.v4.f32") >= pieces
    assert "ld.shared" not in ptx[: ptx.index("ex2", barrier)]
    assert "ld.global.f32" not in ptx[ptx.index("ex2", barrier) :]
    assert resources.spill_stores_bytes == 0
    assert resources.registers <= 112


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("k", "shared"), [(4, 0), (8, 256), (16, 1024)])
def test_a_thread_has_a_matrix_and_two_messages_in_registers(
    k: int, shared: int
) -> None:
    kernel = _kernel(BY_NAME["say_plainly"], k, feature_parallel=False)
    [(_, ptx, resources)] = _compile(kernel, (9, 0))
    assert ".local" not in ptx
    assert resources.shared_bytes == shared
    assert resources.spill_stores_bytes == resources.stack_bytes == 0
    assert resources.registers <= {4: 96, 8: 144, 16: 128}[k]
    pairs = 2 if k <= 8 else 0
    # A row of a message is stored in pieces, once an edge; and that of the vertex
    # once, new or old.
    assert ptx.count("st.global.v4.f32") == (pairs + 1 + 2) * (k // 4)
    assert "st.global.f32" not in ptx


def test_in_pairs_edges_of_many_bytes_would_spill() -> None:
    for k, dtype in ((8, "float32"), (4, "float64"), (6, "float64")):
        kernel = _kernel(BY_NAME["say"], k, dtype=dtype, feature_parallel=False)
        assert ("second_edge" in kernel.source) == (k * int(dtype[-2:]) <= 256)
        [(_, _, resources)] = _compile(kernel, (9, 0))
        assert resources.spill_stores_bytes == resources.stack_bytes == 0


@pytest.mark.parametrize("k", [2, 4])
def test_a_thread_loads_the_matrix_of_an_edge_by_rows(k: int) -> None:
    kernel = _kernel(BY_NAME["messages"], k, feature_parallel=False)
    [(_, ptx, resources)] = _compile(kernel, (9, 0))
    assert "ld.global.f32" not in ptx
    assert resources.spill_stores_bytes == resources.stack_bytes == 0


def test_a_thread_computes_few_addresses() -> None:
    kernel = _kernel(BY_NAME["label_propagation"], 4, feature_parallel=False)
    [(_, _, resources)] = _compile(kernel, (9, 0))
    assert resources.registers <= 48  # 10 blocks of 128 threads a multiprocessor


@pytest.mark.parametrize(
    ("name", "k", "options", "most"),
    [
        ("atomics", 4, {"wide": True, "folding": False}, 36),  # 40 with addresses
        ("messages", 8, {"folding": False}, 48),  # 51 with a test of its own
        ("messages", 4, {}, 90),  # 94 with a row that waits for the test
    ],
    ids=["places of 64 bits", "verdicts", "pulled edges"],
)
def test_a_thread_takes_few_registers_along_edges(
    name: str, k: int, options: dict[str, Any], most: int
) -> None:
    kernel = _kernel(BY_NAME[name], k, feature_parallel=False, **options)
    _, _, resources = next(_compile(kernel, (9, 0)))
    assert resources.registers <= most
    assert resources.spill_stores_bytes == resources.stack_bytes == 0


@pytest.mark.drawn(2)
@pytest.mark.parametrize("k", [1, 4, 8, 10])
def test_an_edge_function_that_leaves_early_compiles(k: int) -> None:
    for _, ptx, resources in _compile(_kernel(BY_NAME["say_to_others"], k), (9, 0)):
        assert ".f64" not in ptx
        assert resources.spill_stores_bytes == 0


@pytest.mark.drawn(3)
@pytest.mark.parametrize("k", [20, 64, 128])
def test_matrices_in_tiles_leave_registers_for_other_blocks(k: int) -> None:
    """A matrix in bands has loops, around which some registers are put aside."""
    kernel = cholesky_half.fold(k=k, target="cuda", direction="pull")
    [used] = kernel.resources((9, 0)).values()
    assert used.registers <= 128
    assert used.spill_stores_bytes <= (256 if k % 8 else 16)
    assert used.shared_bytes <= 48_000


def test_kernels_compile_whose_functions_are_named_as_their_own_values(
    tmp_path: Path,
) -> None:
    words = "x_v hit row lane is_due key alive source index box position warp u_ stop"
    step = Snippet(tmp_path, many(words.split(), ["sum", "argmin"])).load().step
    assert ".entry" in step.fold(k=3, target="cuda").ptx()


@pytest.mark.drawn(6)  # a width of each schedule
@pytest.mark.parametrize("k", [1, 16, 32])
@pytest.mark.parametrize(
    "schedule",
    ["serial", "levels", "blocks", "rows", "edge_locked", "ticketed", "node_locked",
     "hybrid"],
)  # fmt: skip
def test_exclusive_functions_neither_spill_nor_read_rows_by_element(
    schedule: str, k: int
) -> None:
    step = PROGRAMS["mix_targets"] if schedule == "rows" else LEARN
    kernel = step.fold(k=k, target="cuda", schedule=schedule)
    for _, ptx, resources in _compile(kernel, (9, 0)):
        assert resources.spill_stores_bytes == resources.spill_loads_bytes == 0
        in_tasks = schedule in {"serial", "blocks", "rows"}
        assert resources.registers <= (72 if in_tasks else 64)
        assert "ld.global.nc" not in ptx, "rows change while the kernel runs"
        if step is LEARN:
            assert ("ld.global.v4" in ptx) is (k >= 16)
        assert ".f64" not in ptx


@pytest.mark.parametrize("k", [16, 32])
@pytest.mark.parametrize("schedule", ["edge_locked", "ticketed", "node_locked"])
def test_rows_are_loaded_and_stored_while_their_locks_are_held(
    schedule: str, k: int
) -> None:
    """In this order: acquire, loads, stores, fence, release."""
    [(_, ptx, _)] = _compile(LEARN.fold(k=k, target="cuda", schedule=schedule), (9, 0))
    loads = [m.start() for m in re.finditer(r"ld\.global\.v4\.f32", ptx)]
    stores = [m.start() for m in re.finditer(r"st\.global\.v4\.f32", ptx)]
    assert len(loads) == len(stores) == 2
    taken = "ld.acquire.gpu.b32" if schedule == "ticketed" else "fence.acq_rel.gpu"
    acquires = [m.start() for m in re.finditer(re.escape(taken), ptx[: loads[0]])]
    assert acquires, "no acquire precedes the rows"
    if schedule != "ticketed":
        assert ptx.rfind(".cas.b32", 0, loads[0]) < acquires[-1]
    fence = ptx.index("fence.acq_rel.gpu", stores[-1])
    passes = r"atom\.global\.(add\.u32|exch\.b32)"
    words = [m.start() for m in re.finditer(passes, ptx[stores[-1] :])]
    assert loads[-1] < stores[0] < stores[-1] < fence < stores[-1] + words[0]


@fg.edge(exclusive=True)
def add_value(f, u, v, e, d):
    p = d.x[u, f]
    q = d.x[v, f]
    d.x[u, f] = p + d.value[e]
    d.x[v, f] = q - p
    return True


@pytest.mark.drawn(6)  # a schedule of each type
@pytest.mark.parametrize("schedule", ["blocks", "node_locked", "levels"])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "uint16", "int32", "uint32", "int64", "float64"]
)
def test_exclusive_functions_read_values_of_any_type(dtype: str, schedule: str) -> None:
    graph = fg.Graph.from_edges([0, 1], [2, 3], sides=(2, 2))
    x, value = fg.vertex_property(np.ones((4, 4))), np.zeros(2, dtype)
    state = fg.State(graph, x=x, value=fg.edge_property(value))
    step = fg.foldmap(add_value)
    assert ".entry" in step.fold(state, target="cuda", schedule=schedule).ptx()
