"""Lists of sources, and schedules chosen by option, on an emulated GPU."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.device import segments
from featgraph.fold.plan.traits import graph_traits
from featgraph.runtime.devices import cuda_device
from featgraph.runtime.memory.graph_arrays import graph_arrays
from tests.bank import BY_NAME
from tests.simt import superstep
from tests.simt.emulator import Emulator
from tests.simt.gpu import Gpu
from tests.simt.superstep import words_of
from tests.simt.test_kernels import BY_NAME as CASES
from tests.simt.test_kernels import Run
from tests.simt.test_runtime import assert_same, make_states

SEGMENTS = {"schedule": "warp_segmentation"}
SHARES = {"schedule": "balanced_push", "direction": "push"}
WARPS = {"schedule": "virtual_warp", "lanes_per_vertex": 8}
RUNS = [
    ("label_propagation", SEGMENTS),
    ("label_propagation", {**SEGMENTS, "direction": "push"}),
    ("label_propagation", {**SEGMENTS, "change_driven": True}),
    ("label_propagation", {**SHARES, "change_driven": False}),
    ("label_propagation", WARPS),
    ("bfs", SEGMENTS),
    ("bfs", {**SHARES, "change_driven": False}),
    ("pagerank", SEGMENTS),
    ("edge_atomics", SHARES),
    ("edge_atomics", SEGMENTS),
]


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("name", "options"), RUNS)
def test_supersteps_agree_with_the_cpu(
    name: str, options: dict[str, Any], gpu: Gpu
) -> None:
    emulated, meant = make_states(name)
    foldmap, runs = BY_NAME[name].foldmaps[0], []
    of_both = {"direction", "change_driven"}  # others are of schedules of the GPU
    of_cpu = {name: options[name] for name in of_both & set(options)}
    for state, target, chosen in ((emulated, "cuda", options), (meant, "cpu", of_cpu)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            runs.append(
                fg.iterate(foldmap, state, max_supersteps=4, target=target, **chosen)
            )
    assert_same(emulated, meant)
    assert runs[0].active_counts == runs[1].active_counts


def test_gathers_that_are_pulled_are_not_shared_out() -> None:
    step = BY_NAME["label_propagation"].foldmaps[0]
    with pytest.raises(fg.PlanError, match="these gathers are pulled") as caught:
        step.fold(k=3, target="cuda", schedule="balanced_push")
    assert "direction='push'" in str(caught.value.fix)


# -- lists


@pytest.mark.parametrize("blocks", [1, 3, cuda_device.MOST_BLOCKS])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 260])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0, None])
def test_lists_have_the_sources_with_edges(
    count: int,
    share: float | None,
    blocks: int,
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order, with the edges before each; `share` None stands for all vertices."""
    monkeypatch.setattr(cuda_device, "MOST_BLOCKS", blocks)
    rng = np.random.default_rng(count)
    degrees = rng.integers(0, 4, count) * rng.integers(0, 20, count)
    mask = rng.random(count) < (1 if share is None else share)
    device = cuda_device.cuda_device()
    names = ["due", "share_rows", "share_begins", "share_count"]
    names += ["active_sources"] if share is not None else []
    values = [device.upload(words_of(mask)) for _ in names]
    sources = np.repeat(np.arange(count), degrees)
    graph = fg.Graph.from_edges(sources, 0 * sources, vertex_count=count)
    arrays = graph_arrays(graph, device)
    bound: Any = SimpleNamespace(
        place={name: place for place, name in enumerate(names)},
        lists=[arrays.kernel(name, "out") for name in ("count_rows", "list_rows")],
        kernel=SimpleNamespace(plan=SimpleNamespace(traits=graph_traits(graph))),
        vertex_count=count,
    )
    device._list_rows(bound, values)
    rows, begins, size = (device.download(array) for array in values[1:4])
    wanted = np.flatnonzero(mask & (degrees > 0))
    assert size.tolist() == [len(wanted)]
    np.testing.assert_array_equal(rows[: len(wanted)], wanted)
    before = np.append(0, np.cumsum(degrees[wanted]))
    np.testing.assert_array_equal(begins[: len(wanted) + 1], before)


# -- faults

LIBRARY = Path(segments.__file__).read_text(encoding="utf-8")
#: Of a push whose edges are shared out: text, what stands in its place.
FAULTS = {
    "row": ("<= place:\n            low", "< place:\n            low"),
    "tail": ("place < share_last", "place <= share_last"),
    "gap": (" + edge_share, share", " + edge_share - 1, share"),
    "overlap": (" + edge_share, share", " + edge_share + 1, share"),
    "unshared": ("edge_share * (cuda.grid(1) >> 5)", "0 * (cuda.grid(1) >> 5)"),
    "place": ("place - share_begins[uint32(row)]", "place"),
}


@pytest.mark.parametrize(("text", "instead"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("k", [1, 8])
def test_a_planted_fault_is_caught(
    k: int, text: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(CASES["weighted_sum"], k, **SHARES)
    run.check()
    kernel = run.kernels.text.replace(text, instead)
    library = LIBRARY.replace(text, instead)
    assert (kernel, library) != (run.kernels.text, LIBRARY)
    planted = partial(Emulator, {segments.__name__: library})
    monkeypatch.setattr(superstep, "Emulator", planted)
    with pytest.raises((AssertionError, IndexError)):
        run.check(kernel)
