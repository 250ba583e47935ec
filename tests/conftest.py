"""Fixtures of all tests: targets, seeds, data, and the extent of a run.

``--target cuda`` is a GPU run: the tests take ``target="cuda"``, and it fails if one
that needs the GPU was skipped, or none was there. ``--hypothesis-profile deep`` tries
more cases.

Run as a whole, without naming files, the suite is a sample that tells whether an
installation works: one case of most files, and none that are marked ``slow``.
``--sample`` takes the same cases of the files that are named.
``--everything`` runs all, but of tests marked ``drawn(n)``, which run whole programs at
many widths and in many variants, one of n cases. All of theirs run where files or
``-k`` are named, on a GPU, and under ``--hypothesis-profile deep``.
"""

from __future__ import annotations

import gc
import os
import signal
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from featgraph.fold.tree import passes
from tests.compilers import find_again

ROOT = Path(__file__).parent.parent
# Trees between the passes of the folder are looked at wherever a test folds.
passes.verifying = True
EXTENT = pytest.StashKey[str]()

# Both repeat from run to run: what fails here fails at the next one's desk, too.
hypothesis.settings.register_profile(
    "ci", max_examples=25, deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile(
    "deep", parent=hypothesis.settings.get_profile("ci"), max_examples=1000
)
hypothesis.settings.load_profile("ci")

#: Cases of a file in the sample, by folder; one of all other files.
SAMPLED = {"docs": 16, "golden": 4}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        choices=["cpu", "cuda", "all"],
        default="cpu",
        help="where tests that take a target run; cuda, all: it fails if they do not",
    )
    parser.addoption(
        "--seed",
        type=int,
        default=0,
        help="seed of every `rng`, beside the test's name",
    )
    parser.addoption(
        "--sample",
        action="store_true",
        help="one case of most files, also where files are named",
    )
    parser.addoption(
        "--everything",
        action="store_true",
        help="every case of every test, also where the suite runs as a whole",
    )
    parser.addoption(
        "--texts",
        type=Path,
        metavar="FILE",
        help="write sha256 and names of all modules that the run generates",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Kernels of the tests stay out of the user's cache, and from one run to the next.
    kernels = ROOT / ".pytest_cache" / "kernels"
    os.environ.setdefault("FEATGRAPH_CACHE_DIR", str(kernels))
    kernels.parent.mkdir(exist_ok=True)
    if not hasattr(config, "workerinput"):
        config.stash[EXTENT] = _extent(config)
    else:
        config.stash[EXTENT] = config.workerinput["extent"]
    if config.option.texts:
        from tests.texts.collected import Collected

        config.pluginmanager.register(Collected(config))
    # Compilers make objects by the million that stay: looking for garbage among them
    # after every 700 took a seventh of the time.
    gc.set_threshold(1_000_000, 20, 50)
    # Read when OpenMP is loaded: threads of several workers on few cores must not spin.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    find_again()


@contextmanager
def small_graphs_as_large() -> Iterator[None]:
    """Have lanes share matrices, and only due vertices evaluated, on small graphs."""
    from featgraph.fold.schedules import thread
    from featgraph.runtime.superstep import directions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread, "FEW_EDGES", 0)
        patch.setattr(directions, "FEWEST_TO_SKIP", 0)
        patch.setattr(directions, "FEWEST_TO_CHOOSE", {})
        yield


@pytest.fixture(scope="session", autouse=True)
def small_graphs_are_as_large_ones() -> Iterator[None]:
    with small_graphs_as_large():
        yield


@pytest.fixture(scope="session", autouse=True)
def kernels_are_compiled_when_wanted() -> Iterator[None]:
    """Directions do not depend on how far a thread has come that compiles kernels."""
    from featgraph.base.config import config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "compile_behind", False)
        yield


@pytest.fixture(scope="module", autouse=True)
def garbage_is_looked_for_in_what_a_file_makes() -> Iterator[None]:
    """Have gc.collect(), of tests and of ours, pass by what earlier files left.

    Compilers leave so much that one of them took four seconds late in a run.
    """
    gc.freeze()
    yield
    gc.collect()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    # To a worker of xdist the files seem to have been named.
    node.workerinput["extent"] = node.config.stash[EXTENT]


def _extent(config: pytest.Config) -> str:
    """Return the extent of the run: "sample", "everything", or "every case"."""
    option = config.option
    deep = hypothesis.settings.get_current_profile_name() == "deep"
    if option.sample:
        return "sample"
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if named or deep or option.keyword or option.target != "cpu":
        return "every case"
    return "everything" if option.everything else "sample"


def pytest_report_header(config: pytest.Config) -> str:
    extent = config.stash[EXTENT]
    if extent == "sample":
        extent = "a sample of the cases, see --everything"
    target, seed = config.option.target, config.option.seed
    return f"featgraph: target {target}, seed {seed}, {extent}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        chosen = metafunc.config.option.target
        targets = ["cpu", "cuda"] if chosen == "all" else [chosen]
        marks = {"cpu": (), "cuda": (pytest.mark.gpu,)}
        metafunc.parametrize(
            "target", [pytest.param(name, marks=marks[name]) for name in targets]
        )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if config.stash[EXTENT] != "every case":
        left_out = cases_left_out(items, config.stash[EXTENT] == "sample")
        config.hook.pytest_deselected(items=[i for i in items if i in left_out])
        items[:] = [item for item in items if item not in left_out]
    if any(item.get_closest_marker("gpu") for item in items):
        reason = _why_no_gpu()
        if reason:
            for item in items:
                if item.get_closest_marker("gpu"):
                    item.add_marker(pytest.mark.skip(reason=reason))


def cases_left_out(items: list[pytest.Item], is_sample: bool) -> set[pytest.Item]:
    """Return the cases that do not run."""
    left_out: set[pytest.Item] = set()
    groups: dict[str, list[pytest.Item]] = {}
    if is_sample:
        left_out = {item for item in items if item.get_closest_marker("slow")}
    for item in items:
        if item not in left_out:
            group = str(item.path) if is_sample else item.nodeid.partition("[")[0]
            groups.setdefault(group, []).append(item)
    for own in groups.values():
        drawn = own[0].get_closest_marker("drawn")
        count = drawn.args[0] if drawn and not is_sample else 1
        if is_sample:
            folder = own[0].path.relative_to(ROOT / "tests").parts[0]
            count = -(-len(own) // SAMPLED.get(folder, 1))
        for first in range(0, len(own), count):
            some = own[first : first + count]
            # Any one of them: cases repeat in a rhythm of their own.
            taken = zlib.crc32(some[0].nodeid.encode()) % len(some)
            left_out |= {item for n, item in enumerate(some) if n != taken}
    return left_out


def _why_no_gpu() -> str:
    from featgraph.base.errors import DeviceError
    from featgraph.cuda import dialect

    try:
        dialect.require(gpu=True)
    except DeviceError as error:
        return f"needs a CUDA device: {error.what}"
    return ""


class _GpuReport:
    """Fails a GPU run in which the GPU's tests did not run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes: dict[str, list[str]] = {
            "passed": [],
            "skipped": [],
            "failed": [],
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "gpu" in report.keywords and (report.when == "call" or report.skipped):
            self.outcomes[report.outcome].append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        ran = self.outcomes["passed"] + self.outcomes["failed"]
        if self.outcomes["skipped"] or not ran:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        skipped, passed = self.outcomes["skipped"], self.outcomes["passed"]
        if skipped or not passed:
            terminalreporter.section("GPU run FAILED", red=True)
            terminalreporter.line(
                f"{len(passed)} tests passed on the GPU, {len(skipped)} were skipped"
            )


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    # Under xdist the controller sees the reports of all workers; a worker only its own.
    is_worker = hasattr(session.config, "workerinput")
    if session.config.option.target != "cpu" and not is_worker:
        session.config.pluginmanager.register(_GpuReport(session.config))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator of the test's own; a failure prints its seed."""
    seed = [request.config.option.seed, zlib.crc32(request.node.nodeid.encode())]
    print(f"rng: np.random.default_rng({seed})")
    return np.random.default_rng(seed)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt: it is ignored in jobs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real graphs: $FEATGRAPH_DATA, or ../shared/data."""
    default = ROOT.parent / "shared" / "data"
    folder = Path(os.environ.get("FEATGRAPH_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real graphs: {folder} is not there; set FEATGRAPH_DATA")
    return folder
