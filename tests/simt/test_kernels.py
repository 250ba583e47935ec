"""Generated CUDA kernels, run lane by lane, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from featgraph import reference
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from featgraph.fold.printing.module import KernelSource
from featgraph.graph import Graph
from tests.simt.case import Case
from tests.simt.emulator import DivergenceError, MemoryFault, RaceError
from tests.simt.first_programs import TOUCHED_MOST
from tests.simt.programs import BY_NAME, CASES
from tests.simt.superstep import Superstep

WIDTHS = (1, 2, 3, 4, 7, 8, 10, 32, 33, 64, 100)
VARIANTS: dict[str, dict[str, Any]] = {
    "fa": {},
    "nfa": {"feature_parallel": False},
    "hubs": {"hubs": True},
    "checked": {"checked": True},
    "unfolded": {"folding": False, "hubs": True},
    "packed": {"hubs": True, "form": "packed"},
    "packed_nfa": {"feature_parallel": False, "form": "packed"},
    "listed": {"hubs": True, "form": "listed"},
    "listed_nfa": {"feature_parallel": False, "form": "listed"},
    "push": {"direction": "push"},
    "push_hubs": {"direction": "push", "hubs": True, "checked": True},
    "push_nfa": {"direction": "push", "feature_parallel": False},
}


def tiny_graph(undirected: bool, count: int, edges: int, rng: Any) -> Graph:
    """Isolated vertices at the end, self-loops, multi-edges, hubs both ways."""
    source, target = rng.integers(0, count - 4, (2, edges))
    target[:14] = 7  # many in-edges
    source[14:28] = 3  # many out-edges
    source[28:30] = target[28:30] = 5
    return Graph.from_edges(source, target, vertex_count=count, directed=not undirected)


class Run:
    """One superstep of a case: the interpreter's outcome, and the kernels to run."""

    def __init__(
        self,
        case: Case,
        k: int,
        *,
        hubs: bool = False,
        wide: bool = False,
        dtype: str = "float32",
        degree: int = 32,
        size: tuple[int, int] | None = None,
        share: float = 0.6,
        form: str = "plain",
        long_rows: bool = False,
        **options: Any,
    ) -> None:
        self.form = form
        rng = np.random.default_rng(k)
        size = size or ((41, 110) if k <= 10 else (17, 40))
        self.graph = tiny_graph(case.undirected, *size, rng)
        self.values, signature = case.values(self.graph, k, rng, dtype)
        self.active = rng.random(self.graph.vertex_count) < share
        program = case.program()
        self._expect = lambda: reference.superstep(
            program, self.graph, self.values, signature, active=self.active
        )
        self.expected = self._expect()
        giant = hubs and long_rows
        traits = GraphTraits(
            degree, hubs, wide, case.undirected, long_rows=long_rows, has_giant=giant
        )
        plan = make_plan(program, signature, Options(target="cuda", **options), traits)
        self.kernels: KernelSource = emit(plan)

    def activate(self) -> None:
        """Let all vertices be active."""
        self.active = np.ones_like(self.active)
        self.expected = self._expect()

    def check(self, text: str | None = None) -> None:
        """Run the kernels and compare everything they left."""
        step = Superstep(
            self.kernels, self.graph, self.values, text=text, form=self.form
        )
        result = step.run(self.active)
        assert not step.arrays["fault"].any()
        np.testing.assert_array_equal(
            result.active_out, self.expected.active_out.mask, err_msg="active_out"
        )
        for name, value in result.values.items():
            wanted = self.expected.values[name]
            if value.shape[0] > self.graph.vertex_count and not self.graph.directed:
                # The second row of a self-loop belongs to no edge.
                rows = self.graph.given_index
                value, wanted = value[rows], wanted[rows]
            if value.dtype.kind == "f":
                tight = value.dtype == np.float64
                np.testing.assert_allclose(
                    value,
                    wanted,
                    rtol=1e-9 if tight else 2e-4,
                    atol=1e-10 if tight else 1e-5,
                    err_msg=name,
                )
            else:
                np.testing.assert_array_equal(value, wanted, err_msg=name)


def _rotated() -> Any:
    """Every case in every variant that it has, each time with another width."""
    turn = 0
    for place, case in enumerate(CASES):
        for variant, options in VARIANTS.items():
            if options.get("direction") == "push" and not case.pushes:
                continue
            other = {"packed": 0, "listed": 2}.get(options.get("form"))
            turned = "feature_parallel" in options
            if other is not None and place % 4 != other + turned:
                continue  # the cases take turns
            widest = case.widest if other is None else min(case.widest, 10)
            widths = [k for k in WIDTHS if k <= widest]
            k = widths[(place * 4 + turn) % len(widths)]
            turn += other is None
            k += case.name == "pairs" and k % 2
            yield pytest.param(case, k, options, id=f"{case.name}-{variant}-{k}")


@pytest.mark.drawn(36)
@pytest.mark.parametrize(("case", "k", "options"), list(_rotated()))
def test_agrees_with_the_interpreter(
    case: Case, k: int, options: dict[str, Any]
) -> None:
    Run(case, k, **options).check()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("feature_parallel", [True, False])
@pytest.mark.parametrize("share", [0.02, 0.9])
def test_a_warp_packs_vertices_of_several_words(
    share: float, feature_parallel: bool
) -> None:
    # Ten words for the eight warps of a grid: two have two.
    size, options = (310, 500), {"feature_parallel": feature_parallel}
    case = BY_NAME["label_propagation"]
    Run(case, 3, size=size, share=share, form="packed", **options).check()


@pytest.mark.drawn(3)
@pytest.mark.parametrize("k", WIDTHS)
def test_label_propagation_at_every_width(k: int) -> None:
    Run(BY_NAME["label_propagation"], k).check()


@pytest.mark.parametrize(
    ("k", "copy"),
    [(2, "register_of_psi_1"), (4, "register_of_psi_3"), (7, "shared_psi"),
     (10, "shared_psi"), (33, "shared_psi"), (64, "d.psi[")],
)  # fmt: skip
def test_matrix_of_no_vertex_stands_at_hand(k: int, copy: str) -> None:
    # Both ways round, 64 x 64 entries of it are too many for a block.
    run = Run(BY_NAME["say"], k, hubs=True, size=(9, 12))
    product = run.kernels.text.split("def say")[1].split("def messages")[0]
    assert copy in product
    assert ("d.psi" in product) == (k == 64)
    if k < 64:
        run.check()


@pytest.mark.parametrize(
    ("k", "copy"),
    [(2, "register_of_psi_1"), (4, "register_of_psi_3"), (7, "shared_psi")],
)
def test_a_thread_has_a_matrix_of_no_vertex_at_hand(k: int, copy: str) -> None:
    run = Run(BY_NAME["say"], k, feature_parallel=False, size=(9, 12))
    product = run.kernels.text.split("def say")[1].split("def messages")[0]
    assert copy in product
    assert "d.psi" not in product
    run.check()


@pytest.mark.parametrize(("k", "loads"), [(2, 2), (4, 4), (3, 0), (8, 0)])
def test_a_thread_loads_a_small_matrix_of_an_edge_by_rows(k: int, loads: int) -> None:
    run = Run(BY_NAME["messages"], k, feature_parallel=False)
    assert run.kernels.text.count("= warp.load_row(d.psi, e,") == loads
    run.check()


@pytest.mark.drawn(7)
@pytest.mark.parametrize(
    ("name", "k", "stays"),
    [
        ("say_plainly", 4, 1),
        ("say_plainly", 7, 1),
        ("say_to_others", 2, 1),
        ("say_to_others", 4, 1),
        ("say_to_others", 10, 1),
        ("messages", 10, 1),
        ("notes", 4, 0),
    ],
)
def test_next_entries_of_an_edge_stay_in_registers(
    name: str, k: int, stays: int
) -> None:
    # Two edge functions behind each other, as of "notes", leave them in memory.
    stored = "note" if name == "notes" else "msg"
    for options in ({"hubs": True}, {"feature_parallel": False}):
        run = Run(BY_NAME[name], k, **options)
        kernel = run.kernels.text.split("def vertex_phase_0(")[1].split("\n\n\n")[0]
        assert (f" next_{stored}" in kernel and "= result[1]" in kernel) == bool(stays)
        read = f"{stored}_next_e = warp.load_row(d.{stored}_next"
        assert (read in kernel) == (not stays)
        run.check()


@pytest.mark.drawn(4)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", ["say_plainly", "say_to_others", "messages"])
def test_a_thread_takes_pulled_edges_in_pairs(name: str, wide: bool) -> None:
    run = Run(BY_NAME[name], 4, feature_parallel=False, wide=wide)
    assert run.kernels.text.count("second_edge = ") == 1
    run.check()
    # Some sources are not active, and then no edges go in pairs: let all be.
    run.activate()
    run.check()


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("name", ["label_propagation", "least_squares", "combines"])
def test_a_thread_takes_edges_in_groups(name: str, count: int) -> None:
    forced = (("unroll", count),)
    run = Run(BY_NAME[name], 4, feature_parallel=False, mapping=forced, size=(21, 160))
    assert f"for step in range({count}):" in run.kernels.text
    run.check()


def test_in_loops_over_features_next_entries_of_an_edge_stand_in_memory() -> None:
    run = Run(BY_NAME["say_plainly"], 17, feature_parallel=False, size=(9, 12))
    assert "result" not in run.kernels.text
    run.check()


@pytest.mark.drawn(3)
@pytest.mark.parametrize("degree", [1, 4, 64])
@pytest.mark.parametrize("name", ["combines", "bfs", "wander", "notes"])
def test_any_number_of_edge_lanes(name: str, degree: int) -> None:
    Run(BY_NAME[name], 2, degree=degree).check()


@pytest.mark.parametrize("name", ["label_propagation", "least_squares", "pagerank"])
@pytest.mark.parametrize("feature_parallel", [True, False])
def test_float64_and_wide_offsets(name: str, feature_parallel: bool) -> None:
    run = Run(
        BY_NAME[name],
        3,
        dtype="float64",
        wide=True,
        feature_parallel=feature_parallel,
    )
    assert "float32(" not in run.kernels.text
    run.check()


@pytest.mark.parametrize(
    ("name", "k", "place"),
    [("inverse", 7, "cuda.shared"), ("least_squares", 33, "scratch_0[")],
)
def test_matrices_of_lanes_stand_in_shared_memory_or_in_scratch(
    name: str, k: int, place: str
) -> None:
    run = Run(BY_NAME[name], k, size=(9, 40), schedule="lanes")
    assert place in run.kernels.text
    run.check()


@pytest.mark.drawn(4)
@pytest.mark.parametrize("k", [1, 3, 5, 8, 16])
@pytest.mark.parametrize("name", ["least_squares", "inverse"])
def test_columns_of_matrices_stand_in_registers(name: str, k: int) -> None:
    run = Run(BY_NAME[name], k, hubs=True, degree=64, size=(13, 50))
    main = run.kernels.text.split("def vertex_phase_0(")[1]
    summed = "A" if name == "least_squares" else "B"
    assert f"{summed}_{k - 1} += " in main
    assert ("position + 2)" in main) == (k == 3)
    run.check()


def test_hubs_of_float64_matrices_fit_shared_memory() -> None:
    run = Run(BY_NAME["least_squares"], 8, hubs=True, dtype="float64", size=(13, 50))
    [hubs, _] = run.kernels.entries
    assert hubs.block == 256
    run.check()


def test_a_reduction_is_the_same_each_time() -> None:
    run = Run(BY_NAME["pagerank"], 3)
    results = []
    for _ in range(2):
        step = Superstep(run.kernels, run.graph, run.values)
        results.append(step.run(run.active).values["lost"])
    assert results[0].tobytes() == results[1].tobytes()


def test_an_index_out_of_range_is_recorded_in_checked_mode() -> None:
    run = Run(BY_NAME["wander"], 3, checked=True)
    run.values["next_hop"][:] = 99
    step = Superstep(run.kernels, run.graph, run.values)
    step.run(run.active)
    taken, site, _, _, index, bound = step.arrays["fault"].tolist()
    assert (taken, index, bound) == (1, 99, run.graph.vertex_count)
    assert run.kernels.sites[site][0] == "wander"


# Name, program, K, options, text, what stands in its place, what catches it.
FAULTS = [
    (
        "pad",
        "label_propagation",
        5,
        {},
        "aggr_1 if inside_1 else",
        "aggr_1 if 1 else",
        None,
    ),
    (
        "edge_lanes",
        "weighted_sum",
        3,
        {},
        "total_0 = warp.edge_lane_sum(total_0, 1, 8)",
        "",
        None,
    ),
    ("column", "least_squares", 3, {}, "A_1 = warp.edge_lane_sum(A_1, 4, 8)", "", None),
    (
        "areas",
        "least_squares",
        4,
        {},
        "threadIdx.x >> 2",
        "threadIdx.x >> 3",
        RaceError,
    ),
    ("atomics", "atomics", 9, {}, "if alive and inside_0:", "if alive:", None),
    (
        "copy",
        "bfs",
        1,
        {},
        "d.level_next[uint32(v), uint32(j)] = d.level[uint32(v), uint32(j)]",
        "pass",
        None,
    ),
    ("push", "push", 9, {"direction": "push"}, "if inside_0:", "if True:", None),
    ("sync", "inverse", 3, {}, "warp.sync()", "pass", RaceError),
    ("box", "weighted_sum", 3, {"hubs": True}, "syncthreads()", "popc(1)", RaceError),
    (
        "exit",
        "label_propagation",
        3,
        {"degree": 2},
        "if not warp.group_any(is_due, 32):",
        "if not is_due:",
        DivergenceError,
    ),
    (
        "rounds",
        "wander",
        5,
        {"degree": 8},
        "rounds = warp.group_max(int32(stop - start + 1 >> 1), 32)",
        "rounds = stop - start + 1 >> 1",
        DivergenceError,
    ),
    ("edge", "wander", 5, {}, "if inside_edge:", "if True:", None),
    ("live", "wander", 5, {}, "if live:", "if True:", None),
    ("end", "push", 65, {"direction": "push"}, "return  #", "pass  #", MemoryFault),
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("name", "k", "options", "text", "instead", "error"),
    [pytest.param(*fault[1:], id=fault[0]) for fault in FAULTS],
)
def test_a_planted_fault_is_caught(
    name: str, k: int, options: dict[str, Any], text: str, instead: str, error: Any
) -> None:
    run = Run(BY_NAME["label_propagation" if name == "push" else name], k, **options)
    planted = run.kernels.text.replace(text, instead)
    assert planted != run.kernels.text
    with pytest.raises(error or (AssertionError, IndexError)):
        run.check(planted)


@pytest.mark.parametrize("k", [3, 8, 33])
@pytest.mark.parametrize("hubs", [False, True])
def test_no_lane_leaves_edges_where_others_make_shuffles(hubs: bool, k: int) -> None:
    Run(TOUCHED_MOST, k, hubs=hubs, size=(13, 50)).check()
