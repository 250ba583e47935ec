"""Stores that are filled ahead, and stores that are only read."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms import bfs, katz_centrality
from featgraph.base import store
from featgraph.base.dataclass import replace
from featgraph.base.store import is_stored
from featgraph.cli import kernels
from featgraph.cuda import dialect
from featgraph.fold.compiling.jobs import JobsByContent
from featgraph.fold.plan.plan import WORKLIST
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits, graph_traits
from featgraph.fold.printing.emit import emit
from featgraph.runtime import warming
from tests.unit.test_cli import run
from tests.unit.test_store import ROOT, cache, finish, start
from tests.unit.test_trust import _compile_marker, give_away

__all__ = ["cache"]


# Stores that are only read


@pytest.fixture
def shared(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Compile a kernel into a store, and have it read, with another one to write."""
    _compile_marker()
    place = tmp_path / "shared"
    shutil.move(cache, place)
    # Layers of container images keep whole seconds.
    for path in place.rglob("*.py"):
        os.utime(path, (1, 1))
    monkeypatch.setattr(fg.config, "cache_path", [place])
    yield place
    assert not cache.exists() or not list(place.rglob("*.tmp"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_kernels_are_loaded_from_a_store_that_is_read(
    shared: Path, cache: Path
) -> None:
    before = contents(shared)
    assert _compile_marker().stats.cache_hits
    assert contents(shared) == before
    assert not list(cache.rglob("*.nb?"))


@pytest.mark.parametrize("level", ["kernels/__pycache__", "kernels", "."])
@pytest.mark.parametrize("how", ["mode", "owner"])
def test_stores_of_others_are_refused(
    shared: Path, cache: Path, level: str, how: str
) -> None:
    folder = shared / level
    if how == "owner":
        give_away(folder)
    else:
        folder.chmod(0o770)
    why = "belongs to another user" if how == "owner" else "can be written by others"
    message = f"{re.escape(str(folder.resolve()))} {why}; no kernels are loaded from"
    with pytest.warns(fg.CacheWarning, match=message):
        assert not _compile_marker().stats.cache_hits
    assert list(cache.rglob("*.nbc"))


def test_a_store_that_is_missing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fg.config, "cache_path", str(tmp_path / "gone"))
    with pytest.warns(fg.CacheWarning, match="gone.* cannot be read"):
        _compile_marker()


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root")
def test_stores_of_root_are_read_by_other_users(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fg.config, "cache", False)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert _compile_marker().stats.cache_hits


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_damaged_files_stay_and_are_not_used(
    shared: Path, cache: Path, suffix: str
) -> None:
    [path] = shared.rglob(f"*sweep*{suffix}")
    content = path.read_bytes()
    path.write_bytes(content[:-40] + b"\0" + content[-39:])
    before = contents(shared)
    with pytest.warns(fg.CacheWarning, match="is damaged; the kernel is compiled"):
        assert not _compile_marker().stats.cache_hits
    assert contents(shared) == before
    with pytest.warns(fg.CacheWarning, match="is damaged"):
        assert _compile_marker().stats.cache_hits, "the own store has it"


def test_what_a_path_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    two = (Path("a"), Path("b"))
    for given in (f"a{os.pathsep}b", ["a", Path("b")], two):
        monkeypatch.setattr(fg.config, "cache_path", given)
        assert fg.config.cache_path == two
    for one in (Path("a"), "a", ["a"]):
        monkeypatch.setattr(fg.config, "cache_path", one)
        assert fg.config.cache_path == two[:1]
    monkeypatch.setattr(fg.config, "cache_path", "")
    assert fg.config.cache_path == ()
    for bad in (3, None, [None]):
        with pytest.raises(fg.ArgumentError, match="cache_path"):
            fg.config.cache_path = bad  # type: ignore[assignment]
    monkeypatch.setenv("FEATGRAPH_CACHE_PATH", f"a{os.pathsep}{os.pathsep}b")
    assert type(fg.config)().cache_path == two


def test_functions_of_the_package_are_in_the_store(cache: Path) -> None:
    """Neither the package's folder nor times of its files decide: see `store.kept`."""
    from numba import int64, types

    from featgraph.graph.formats import scan

    def loop(x):  # type: ignore[no-untyped-def]
        return x + 1

    loop.__code__ = loop.__code__.replace(co_filename=str(scan.__file__))
    first, again = (store.jit(loop) for _ in range(2))
    assert not is_stored(first, (int64,))
    assert first(1) == 2
    [path] = cache.rglob("*.nbc")
    assert re.fullmatch(r"scan_[0-9a-f]{32}\..*loop-\d+\..*", path.name)
    assert is_stored(again, (int64,))
    assert not is_stored(again, (types.float64,))
    assert again(1) == 2
    assert again.stats.cache_hits


# The command

#: Runs on graphs that the command has never seen, and prints what is compiled.
FIRST_CALLS = """
import logging, sys
import numpy as np
import featgraph as fg
from featgraph import algorithms
from featgraph.runtime.loops.background import COMPILER

class Told(logging.Handler):
    def emit(self, record):
        print(record.getMessage())

log = logging.getLogger("featgraph")
log.addHandler(Told())
log.setLevel(logging.INFO)
random = np.random.default_rng(7)
traits = eval(sys.argv[2])
for V, E in ((50, 150), (3000, 9000), (20000, 120000)):
    for directed in traits:
        for weights in (None, random.random(E)) if len(traits) > 1 else (None,):
            ends = random.integers(0, V, (2, E))
            ends[1, : E // 5] = 5
            graph = fg.Graph.from_edges(
                *ends, vertex_count=V, directed=directed, weights=weights
            )
            labels = np.full(V, -1)
            labels[:9] = np.arange(9) % 3
            given = {"bfs": 0, "label_propagation": labels}
            for name in sys.argv[1].split():
                own = (given[name],) if name in given else ()
                getattr(algorithms, name)(graph, *own, target="cpu")
                COMPILER.wait()
                print("ran", name, V, directed, weights is not None)
"""

#: The command, on one graph: directed, without weights and a long row, not in a ring.
WARM_ON_ONE_GRAPH = """
from featgraph.cli import kernels, main
kernels.product = lambda *_, **__: [(True, False, False, False)]
raise SystemExit(main(["warm", "bfs", "--jobs", "1"]))
"""


def first_calls(names: str, store: Path, folder: Path, traits: str) -> list[str]:
    """Return the kernels that a new process compiles; it only reads the store."""
    code = f"import sys; sys.argv[1:] = [{names!r}, {traits!r}]\n{FIRST_CALLS}"
    script, own = folder / "first_calls.py", folder / "own"
    out, _ = finish(start(script, own, code=code, FEATGRAPH_CACHE_PATH=str(store)))
    lines = str(out).splitlines()
    assert sum(line.startswith("ran") for line in lines) >= 3
    return [line for line in lines if not line.startswith("ran")]


def test_first_calls_behind_it_compile_nothing(tmp_path: Path) -> None:
    """The command has a process of its own: kernels of this one are in memory."""
    store = tmp_path / "store"
    out, err = finish(start(tmp_path / "warm.py", store, code=WARM_ON_ONE_GRAPH))
    assert err == ""
    assert re.search(r"bfs: \d+ compiled, 0 there before, \S+ s\n", out)
    # Loops of the package itself are stored beside it, by the first process that runs.
    for folder in (tmp_path / "first", tmp_path / "then"):
        folder.mkdir()
        compiled = first_calls("bfs", store, folder, "[True]")
    assert compiled == []


@pytest.mark.skipif(
    hypothesis.settings.get_current_profile_name() != "deep",
    reason="compiles for a minute: --hypothesis-profile deep",
)
def test_first_calls_of_several_algorithms_compile_nothing(tmp_path: Path) -> None:
    """The command works in several processes, and on all its graphs."""
    names, store = "bfs pagerank label_propagation", tmp_path / "store"
    command = [sys.executable, "-m", "featgraph", "warm", *names.split(), "--k", "3"]
    where = os.environ | {"FEATGRAPH_CACHE_DIR": str(store), "PYTHONPATH": str(ROOT)}
    # Processes that begin together may find loops of the package in the store.
    for found in (r": \d{2,} compiled, \d there before", r": 0 compiled, \d{2,} there"):
        done = subprocess.run(
            [*command, "--jobs", "2"], env=where, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert len(re.findall(found, done.stdout)) == 3, done.stdout
    assert first_calls(names, store, tmp_path, "[True, False]") == []


def test_errors_of_other_processes_are_raised() -> None:
    with pytest.raises(AttributeError, match="no_algorithm"):
        list(kernels._results([kernels.Task("no-algorithm", 8, None)] * 2, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bsf"], "there is no algorithm 'bsf'.*did you mean 'bfs'"),
        (["bfs", "--jobs", "0"], "--jobs: 0 is not 1 or more"),
        (["bfs", "--k", "8,x"], "--k: '8,x' is not like 8,32"),
        (["bfs", "--k", "0"], "--k: 0 is not 1 or more"),
        (["bfs", "--target", "cuda", "--cc", "nine"], "--cc: 'nine' is not like 9.0"),
        (["bfs", "--cc", "9.0"], "--cc: only a GPU has.*--target cuda"),
        (["bfs", "--target", "cuda", "--cc", "1.0"], "not support.*got:.*1.0.*9.0"),
        (["bfs", "--target", "gpu"], "invalid choice: 'gpu'"),
    ],
)
def test_what_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "1.0" in arguments and not dialect.is_installed():
        pytest.skip("needs numba-cuda, the compiler")
    status, out, err = run(capsys, "warm", *arguments)
    assert (status, out) == (2, "")
    assert re.search(message, err, re.S), err


def test_nothing_is_stored_without_a_cache(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fg.config, "cache", False)
    status, _, err = run(capsys, "warm", "bfs")
    assert status == 2
    assert "FEATGRAPH_CACHE" in err


def test_settings_are_as_before() -> None:
    def settings() -> list[Any]:
        return [getattr(owner, name) for owner, name, _ in warming._AS_LARGE]

    def fail() -> None:
        with warming.storing(as_large=True):
            assert settings() == [value for _, _, value in warming._AS_LARGE]
            raise KeyError

    before = settings()
    with pytest.raises(KeyError):
        fail()
    assert before == settings() != [value for _, _, value in warming._AS_LARGE]


# GPUs that are not present


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the compiler")
def test_a_gpu_needs_no_gpu_but_its_capability(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dialect, "is_available", lambda: False)
    monkeypatch.setattr(dialect, "_gpus", [])
    status, _, err = run(capsys, "warm", "bfs", "--target", "cuda")
    assert status == 2
    assert "no GPU was found" in err
    assert "--cc 9.0" in err


def state_of_search(graph: fg.Graph) -> fg.State:
    unknown = np.full((graph.vertex_count, 1), -1, np.int32)
    level, parent = (fg.vertex_property(unknown, iterated=True) for _ in range(2))
    return fg.State(graph, level=level, parent=parent)


def test_traits_of_any_graph_are_among_those() -> None:
    """Texts of a search on some graphs are among those for all traits."""
    step = sys.modules[bfs.__module__].step
    random = np.random.default_rng(1)
    drawn = []
    for count, edges, row in ((9, 9, 0), (99, 400, 70), (9, 400, 0), (9, 5000, 3000)):
        ends = random.integers(0, count, (2, edges))
        ends[1, :row] = 0
        drawn.append(fg.Graph.from_edges(*ends, vertex_count=99))
    state = state_of_search(drawn[0])
    known = {
        step.kernel(state, "cuda", {}, traits=traits).source
        for traits in warming._all_traits(graph_traits(drawn[0]))
    }
    found = {step.kernel(state_of_search(g), "cuda", {}).source for g in drawn}
    assert found <= known
    assert len(found) > 2


def pulled_search() -> JobsByContent:
    """Return the kernels of a search that pulls."""
    found, step = warming.ForGpu(), sys.modules[bfs.__module__].step
    state = state_of_search(fg.Graph.from_edges([0, 1], [1, 2]))
    found(step, state, {"direction": "pull"}, None, None)  # type: ignore[arg-type]
    return found.kernels


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the compiler")
def test_plans_share_texts_only_where_these_are_equal() -> None:
    """Kernels for all traits have the text that their own plan prints."""
    state, texts = state_of_search(fg.Graph.from_edges([0, 1], [1, 2])), set()
    step = sys.modules[bfs.__module__].step
    for own in (GraphTraits(), GraphTraits(undirected=True, wide_offsets=True)):
        kernels = set()
        for traits in warming._all_traits(own):
            kernel = step.kernel(state, "cuda", {}, traits=traits)
            plan = make_plan(step.program, state.signature, kernel.plan.options, traits)
            assert kernel.source == emit(plan).text
            kernels.add(kernel)
        assert len(kernels) == len({kernel.source for kernel in kernels}) < 20
        texts |= {kernel.source for kernel in kernels}
    assert len(texts) > len(kernels)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the compiler")
def test_jobs_share_all_kernels() -> None:
    found = pulled_search()
    shared = [pickle.loads(job.functions) for job in found.jobs((9, 0))]
    assert [one for equal in shared for one in equal] == found.functions
    assert any(len(equal) > 1 for equal in shared)
    assert len(set(found.functions)) == len(found.functions)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the compiler")
def test_functions_with_equal_content_have_equal_code() -> None:
    """The PTX of functions that one job stores differs in names only."""
    jobs = [pickle.loads(job.functions) for job in pulled_search().jobs((9, 0))]
    shared = [equal for equal in jobs if len(equal) > 1][:2]
    for equal in (*shared, [job[0] for job in jobs[:2]]):
        codes = set()
        for module, name, types in equal[:2]:
            function = getattr(sys.modules[module], name)
            ptx = dialect.compile_ptx(function, types, (9, 0))
            lines = re.sub(r"\w*_[0-9a-f]{32}\w*|smem_\d+", "", ptx).splitlines()
            codes.add(tuple(sorted(lines)))  # globals have no fixed order
        assert (len(codes) == 1) == (equal in shared)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the compiler")
def test_code_of_one_function_is_stored_for_equal_ones(cache: Path) -> None:
    """Each function loads what a job in another process has stored for its types."""
    jobs = pulled_search().jobs((9, 0))
    job = next(j for j in jobs if len(pickle.loads(j.functions)) > 1)
    count = len(pickle.loads(job.functions))
    settings = fg.config.cache_dir, fg.config.cache_path
    with ProcessPoolExecutor(
        1, get_context("spawn"), initializer=kernels._begin, initargs=settings
    ) as pool:
        for number in (0, 1):
            made, found = pool.submit(kernels._compile, job).result()
            assert (made.compiled, made.loaded)[number] == count
            assert not found


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the compiler")
def test_loops_of_graphs_with_equal_kernels_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels of directed and undirected graphs have one text, their loops have two."""
    step = sys.modules[bfs.__module__].step
    one = next(warming._all_traits(GraphTraits()))
    monkeypatch.setattr(
        warming, "_all_traits",
        lambda own: [replace(one, undirected=own.undirected)],
    )  # fmt: skip
    found, kernels = warming.ForGpu(), []
    for directed in (False, True):
        graph = fg.Graph.from_edges([0, 1], [1, 2], directed=directed)
        state, options = state_of_search(graph), {"direction": "auto"}
        found(step, state, options, None, None)  # type: ignore[arg-type]
        [traits] = warming._all_traits(graph_traits(graph))
        kernels.append(step.kernel(state, "cuda", options, traits=traits))
    first, second = kernels
    assert first.source == second.source
    loops = {k.in_form(WORKLIST).queue.py_func.__module__ for k in kernels}
    assert len(loops) == 2
    assert loops <= {module for module, _, _ in found.kernels.functions}


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the compiler")
def test_a_first_call_on_a_gpu_finds_its_kernels(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that is launched on the emulated GPU is stored, for a real one of that cc."""
    from tests.simt import gpu

    random = np.random.default_rng(3)
    graph = fg.Graph.from_edges(*random.integers(0, 40, (2, 160)))
    own = graph_traits(graph)
    monkeypatch.setattr(
        kernels, "product", lambda *_, **__: [(True, False, False, False)]
    )
    monkeypatch.setattr(warming, "_all_traits", lambda _: [own])
    shared = list(warming.own_kernels())
    monkeypatch.setattr(warming, "own_kernels", lambda: shared[:0])
    options = "--target", "cuda", "--cc", "9.0", "--jobs", "1"
    status, _, err = run(capsys, "warm", "katz_centrality", *options)
    assert (status, err) == (0, "")
    launched: list[tuple[Any, tuple[Any, ...]]] = []
    compiled = gpu.Gpu.compiled

    def note(self: gpu.Gpu, kernel: Any, arguments: Any) -> Any:
        launched.append((kernel, tuple(map(type_of, arguments))))
        return compiled(self, kernel, arguments)

    monkeypatch.setattr(gpu.Gpu, "compiled", note)
    with gpu.emulated_gpu():
        katz_centrality(graph, alpha=0.01, target="cuda")
    others = [each for each in launched if each not in shared]
    assert len(others) > 1
    for cc, is_there in (((9, 0), True), ((8, 0), False)):
        with dialect.storing_for(cc):
            for kernel, types in others:
                assert is_stored(kernel, types) == is_there, kernel


def type_of(value: Any) -> Any:
    """Return the type of the dialect that an argument of a launch has."""
    from numba import typeof, types
    from numba.np.numpy_support import from_dtype

    if isinstance(value, tuple):
        return types.BaseTuple.from_types([*map(type_of, value)], type(value))
    if hasattr(value, "copy_to_host"):
        flags = dialect.dialect_module("cudadrv.dummyarray").Array.from_desc(
            0, value.shape, value.strides, value.dtype.itemsize
        ).flags  # fmt: skip
        layout = "C" if flags["C_CONTIGUOUS"] else "A"
        return types.Array(from_dtype(value.dtype), value.ndim, layout)
    return typeof(value)
