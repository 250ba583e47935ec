"""What all tests share: targets, seeds, data, and how strict a run is.

``--target cuda`` is a GPU run: the tests take ``target="cuda"``, and it fails if one
that needs the GPU was skipped, or none was there. ``--hypothesis-profile deep`` tries
more cases.
"""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent

# Both repeat from run to run: what fails here fails at the next one's desk, too.
hypothesis.settings.register_profile(
    "ci", max_examples=25, deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile(
    "deep", parent=hypothesis.settings.get_profile("ci"), max_examples=1000
)
hypothesis.settings.load_profile("ci")


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


def pytest_configure(config: pytest.Config) -> None:
    # Kernels of the tests stay out of the user's cache, and from one run to the next.
    kernels = ROOT / ".pytest_cache" / "kernels"
    os.environ.setdefault("FEATGRAPH_CACHE_DIR", str(kernels))
    kernels.parent.mkdir(exist_ok=True)
    # Compilers make objects by the million that stay: looking for garbage among them
    # after every 700 took a seventh of the time.
    gc.set_threshold(100_000, 20, 50)
    # Read when OpenMP is loaded: threads of several workers on few cores must not spin.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session", autouse=True)
def small_graphs_are_as_large_ones() -> Iterator[None]:
    """Have lanes share matrices, and only due vertices evaluated, on small graphs."""
    from featgraph.fold import choose
    from featgraph.runtime import stale

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "FEW_EDGES", 0)
        patch.setattr(stale, "FEWEST_TO_SKIP", 0)
        yield


def pytest_report_header(config: pytest.Config) -> str:
    return f"featgraph: target {config.option.target}, seed {config.option.seed}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        chosen = metafunc.config.option.target
        targets = ["cpu", "cuda"] if chosen == "all" else [chosen]
        marks = {"cpu": (), "cuda": (pytest.mark.gpu,)}
        metafunc.parametrize(
            "target", [pytest.param(name, marks=marks[name]) for name in targets]
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(item.get_closest_marker("gpu") for item in items):
        reason = _why_no_gpu()
        if reason:
            for item in items:
                if item.get_closest_marker("gpu"):
                    item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str:
    from featgraph import _cuda
    from featgraph.errors import DeviceError

    try:
        _cuda.require(gpu=True)
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


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real graphs: $FEATGRAPH_DATA, or ../shared/data."""
    default = ROOT.parent / "shared" / "data"
    folder = Path(os.environ.get("FEATGRAPH_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real graphs: {folder} is not there; set FEATGRAPH_DATA")
    return folder
