"""NetworkX's own tests, with featgraph behind its functions.

The test hook of NetworkX converts every graph and asks for no *should_run*, so that
tiny graphs are served, too. Where a call is declined NetworkX answers it itself:
a backend that declined everything would pass. Hence the counts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from featgraph.networkx.backend import CLAIMS

ROOT = Path(__file__).parents[2]

#: Where NetworkX tests what is claimed, below networkx.algorithms.
MODULES = [
    "centrality.tests.test_eigenvector_centrality",
    "centrality.tests.test_katz_centrality",
    "link_analysis.tests.test_pagerank",
    "shortest_paths.tests.test_unweighted",
    "shortest_paths.tests.test_weighted",
    "tests.test_core",
    "traversal.tests.test_bfs",
]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, int]]:
    """Run the modules; return what pytest printed, and calls served by function."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    counts = folder / "served.json"
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "NETWORKX_TEST_BACKEND": "featgraph",
        "NETWORKX_FALLBACK_TO_NX": "True",
        "FEATGRAPH_SERVED": str(counts),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.networkx.count_served"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--pyargs"]
        + [f"networkx.algorithms.{module}" for module in MODULES],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-5000:]
    return output, json.loads(counts.read_text(encoding="utf-8"))


def test_its_tests_pass(suite: tuple[str, dict[str, int]]) -> None:
    output, _ = suite
    assert re.search(r"\d+ passed", output), output[-2000:]
    assert not re.search(r"xfailed|failed|error", output), output[-2000:]


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_calls_are_served(name: str, suite: tuple[str, dict[str, int]]) -> None:
    _, counts = suite
    assert counts[name] > 0, f"no call of {name} was answered by a kernel"
