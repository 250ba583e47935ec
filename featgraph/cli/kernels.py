"""Kernels: ``featgraph show`` prints their text, ``featgraph warm`` compiles them.

`show` folds one foldmap, and prints its plan, passes, source or PTX. `warm` compiles
and stores the kernels of algorithms before the first calls. It runs each algorithm on
small graphs that cover the properties on which kernels depend: directed or not, with or
without weights, a long row, and vertices without edges.
Each run is repeated with the plan of a large graph: see `featgraph.runtime.warming`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import featgraph as fg
from featgraph import algorithms
from featgraph.base.errors import ArgumentError, FeatGraphError
from featgraph.cli.flags import ALGORITHMS, UNDIRECTED, known_algorithm
from featgraph.runtime import warming

__all__ = ["show", "warm"]


def show(options: argparse.Namespace) -> None:
    """Print the plan, the passes, the source or the PTX of a foldmap.

    Parameters
    ----------
    options : argparse.Namespace
        module, at, pass_name, k, dtype, target, schedule, cc.

    Raises
    ------
    FeatGraphError
        If the module, the foldmap, the pass or the schedule is not found, or the
        foldmap has no valid plan.
    """
    module_name, _, name = options.module.partition(":")
    step = _foldmap(_module(module_name), name)
    target = options.target or ("cuda" if options.at == "ptx" else "cpu")
    if options.at == "ptx" and target != "cuda":
        raise FeatGraphError(
            "only the CUDA target has PTX",
            got=f"--target {target}",
            fix="--target cuda",
        )
    if options.pass_name and options.at != "passes":
        raise FeatGraphError(
            "--pass selects one of the passes of --at passes",
            got=f"--at {options.at}",
            fix=f"--at passes --pass {options.pass_name}",
        )
    folded = step.fold(
        k=options.k, dtype=options.dtype, target=target, schedule=options.schedule
    )
    shown = {
        "plan": folded.explain,
        "passes": lambda: folded.passes(options.pass_name),
        "source": lambda: folded.source,
        "ptx": lambda: folded.ptx(cc=options.cc),
    }
    print(shown[options.at]().rstrip())


def _module(name: str) -> ModuleType:
    """Import an algorithm by its short name, a module by its full name, or a file."""
    folder, names = "", [f"featgraph.algorithms.{name.replace('-', '_')}", name]
    if name.endswith(".py"):
        path = Path(name).resolve()
        folder, names = str(path.parent), [path.stem]
    sys.path.insert(0, folder)  # "" is the current folder, like `python -m`
    try:
        for candidate in names:
            if _exists(candidate):
                return importlib.import_module(candidate)
    finally:
        sys.path.remove(folder)
    raise FeatGraphError(
        f"there is no module {name!r}",
        expected="an algorithm (label_propagation), a module, or a .py file",
    )


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a missing parent package, or a relative name
        return False


def _foldmap(module: ModuleType, name: str) -> Any:
    found = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, fg.FoldMap)
    }
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if not name and "step" in found:
        return found["step"]
    raise FeatGraphError(
        f"no foldmap {name!r}" if name else "no foldmap is named",
        where=module.__name__,
        expected=", ".join(found) or "a module with a foldmap at module level",
        fix=f"{module.__name__}:{next(iter(found))}" if found else None,
    )


#: Algorithms whose number of features depends on the call: see `_given`.
_OF_WIDTH = frozenset(
    {
        "als",
        "belief-propagation",
        "gradient-factorization",
        "label-propagation",
        "label-set-propagation",
        "multimodal-learning",
        "pagerank",
        "sgd-factorization",
    }
)
#: Vertices of a graph, random edges per vertex, and edges of the long row: more than
#: 512, from which on blocks sum rows.
_VERTICES, _DEGREE, _LONG = 600, 3, 560


class Task(NamedTuple):
    """The kernels of one algorithm.

    Attributes
    ----------
    name : str
        An algorithm; "" for the GPU kernels that all programs share.
    k : int
        Features.
    cc : (int, int) or None
        The GPU to compile for, besides the CPU.
    """

    name: str
    k: int
    cc: tuple[int, int] | None


def warm(options: argparse.Namespace) -> None:
    """Compile and store the kernels of some algorithms, or of all.

    Parameters
    ----------
    options : argparse.Namespace
        algorithms, target, cc, k, jobs.

    Raises
    ------
    ArgumentError
        If there is no such algorithm, or nothing is stored.
    DeviceError
        If kernels cannot be compiled for the GPU.
    """
    names = [known_algorithm(name) for name in options.algorithms] or list(ALGORITHMS)
    if not fg.config.cache:
        raise ArgumentError(
            "kernels are not stored", where="FEATGRAPH_CACHE", got="0",
            fix="unset FEATGRAPH_CACHE",
        )  # fmt: skip
    if options.cc is not None and options.target != "cuda":
        raise ArgumentError(
            "only a GPU has a compute capability", where="--cc", fix="--target cuda"
        )
    cc = warming.checked_cc(options.cc) if options.target == "cuda" else None
    tasks = [] if cc is None else [Task("", 0, cc)]
    for name in dict.fromkeys(names):
        widths = dict.fromkeys(options.k) if name in _OF_WIDTH else (options.k[0],)
        tasks += [Task(name, k, cc) for k in widths]
    for task, made in _results(tasks, options.jobs):
        what = f"{task.name}, K = {task.k}" if task.name in _OF_WIDTH else task.name
        print(
            f"{what or 'all programs'}: {made.compiled} compiled, "
            f"{made.loaded} there before, {made.seconds:.1f} s",
            flush=True,
        )
    print(f"kernels are in {fg.config.cache_dir}")


class Made(NamedTuple):
    """Numbers of kernels compiled and loaded, and the time of all processes."""

    compiled: int = 0
    loaded: int = 0
    seconds: float = 0.0


def _results(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Made]]:
    """Run tasks in some processes, or in this one; yield the result of each.

    Jobs of a task, which compile kernels for a GPU, are shared by all processes.
    """
    if min(jobs, len(tasks)) == 1:
        for task in tasks:
            first, found = _run(task)
            yield task, _sum([first, *(_compile(job)[0] for job in found)])
        return
    spawning = multiprocessing.get_context("spawn")
    settings = fg.config.cache_dir, fg.config.cache_path
    with ProcessPoolExecutor(
        jobs, spawning, initializer=_begin, initargs=settings
    ) as pool:
        running: dict[Future[Any], int] = {
            pool.submit(_run, task): number for number, task in enumerate(tasks)
        }
        made: list[list[Made]] = [[] for _ in tasks]
        try:
            while running:
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for one in ended:
                    number = running.pop(one)
                    task, (result, found) = tasks[number], one.result()
                    made[number].append(result)
                    for job in found:
                        running[pool.submit(_compile, job)] = number
                    if number not in running.values():
                        yield task, _sum(made[number])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _sum(parts: Sequence[Made]) -> Made:
    return Made(*map(sum, zip(*parts, strict=True)))


def _begin(cache_dir: Any, cache_path: Any) -> None:
    """Configure a process to store kernels in the folder of its parent."""
    fg.config.cache_dir, fg.config.cache_path = cache_dir, cache_path
    fg.config.messages = False


def _run(task: Task) -> tuple[Made, list[warming.Job]]:
    """Run an algorithm; return the jobs that compile its kernels for a GPU, too."""
    begun, for_gpu = time.perf_counter(), warming.ForGpu()
    with warming.counting() as count:
        if not task.name and task.cc is not None:
            from featgraph.dynamic import gpu_memory  # imports the dialect

            warming.compile_own_kernels(task.cc, gpu_memory.own_kernels())
        for as_large in (False, True) if task.name else ():
            with warming.storing(task.cc and for_gpu, as_large=as_large):
                _run_algorithm(task.name, task.k)
    made = Made(count.compiled, count.loaded, time.perf_counter() - begun)
    return made, [] if task.cc is None else for_gpu.kernels.jobs(task.cc)


def _compile(job: warming.Job) -> tuple[Made, list[warming.Job]]:
    """Run a job, which finds no others."""
    begun = time.perf_counter()
    with warming.counting() as count:
        job.run()
    return Made(count.compiled, count.loaded, time.perf_counter() - begun), []


def _run_algorithm(name: str, k: int) -> None:
    run = getattr(algorithms, name.replace("-", "_"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        for given, options in _given(name, k):
            run(*given, **options, target="cpu")


def _given(name: str, k: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield arguments of an algorithm, and its options, for all graphs."""
    if name.endswith("factorization") or name == "als":
        yield (_ratings(),), {"factors": k}
        return
    if name == "factor-propagation":
        alike = np.eye(2) + 1
        tables = [([0, 1], alike), ([1, 2], alike), ([0], np.array([3.0, 1.0]))]
        yield (fg.FactorGraph(dict.fromkeys("abc", 2), tables),), {}
        return
    for directed, *traits in product((False, True), repeat=4):
        if directed and name in UNDIRECTED:
            continue
        graph, two_weights = _graph(directed, *traits)
        first = {} if "multi" not in name else {"weights": two_weights}
        for own, options in _of_vertices(name, graph.vertex_count, k):
            yield (graph, *own), {**first, **options}


def _graph(
    directed: bool, weighted: bool, is_long: bool, in_ring: bool
) -> tuple[fg.Graph, Any]:
    """Return a graph, and a row of two weights for each of its edges.

    With `in_ring`, every vertex has edges in and out.
    """
    random = np.random.default_rng(0)
    ends = random.integers(0, _VERTICES, (2, _DEGREE * _VERTICES))
    ends, each = ends[:, ends[0] != ends[1]], np.arange(_VERTICES)
    if is_long:
        to_one = [np.arange(1, _LONG + 1), np.zeros(_LONG, np.int64)]
        ends = np.concatenate([ends, to_one], axis=1)
    if in_ring:
        ends = np.concatenate([ends, [each, np.roll(each, 1)]], axis=1)
    # Triangles are those of graphs without parallel edges.
    low, high = np.sort(ends, axis=0)
    ends = ends[:, np.unique(low * _VERTICES + high, return_index=True)[1]]
    weights = random.random((ends.shape[1], 2)) + 0.5
    made = fg.Graph.from_edges(
        *ends,
        weights=weights[:, 0].astype(np.float32) if weighted else None,
        vertex_count=_VERTICES,
        directed=directed,
    )
    return made, weights


def _ratings() -> Any:
    from scipy import sparse

    random = np.random.default_rng(0)
    return sparse.random(200, 90, 0.1, "csr", np.float32, random)


def _of_vertices(
    name: str, count: int, k: int
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the other arguments of an algorithm on a graph of `count` vertices."""
    labels = np.full(count, -1)
    labels[: 2 * k] = np.arange(2 * k) % k
    one_hot = np.zeros((count, k), np.float32)
    one_hot[np.arange(k), np.arange(k)] = 1
    ends = np.full(count, np.nan)
    ends[[0, 1]] = 5, 0
    of_name: dict[str, list[Any]] = {
        "belief-propagation": [one_hot + 1, np.eye(k) + 1],
        "bfs": [0],
        "circuit-simulation": [ends],
        "heat-simulation": [np.nan_to_num(ends)],
        "label-propagation": [labels],
        "label-set-propagation": [np.stack([labels, labels], 1)],
        "multi-manifold-ranking": [one_hot[:, 0]],
        "multimodal-learning": [one_hot],
        "neural-network": [ends],
        "sssp": [0],
        "sswp": [0],
    }
    options: list[dict[str, Any]] = [{}]
    if name == "pagerank":
        options.append({"personalization": one_hot})
    elif name == "pagerank-push":
        options = [{"personalization": one_hot[:, 0]}]
    elif name in {"betweenness-centrality", "closeness-centrality"}:
        which = "sources" if name.startswith("between") else "vertices"
        options = [{which: np.arange(4)}]
    for each in options:
        yield tuple(of_name.get(name, [])), each
