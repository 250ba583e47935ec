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
    "centrality.tests.test_betweenness_centrality",
    "centrality.tests.test_closeness_centrality",
    "centrality.tests.test_eigenvector_centrality",
    "centrality.tests.test_katz_centrality",
    "components.tests.test_connected",
    "components.tests.test_strongly_connected",
    "components.tests.test_weakly_connected",
    "link_analysis.tests.test_pagerank",
    "shortest_paths.tests.test_generic",
    "shortest_paths.tests.test_unweighted",
    "shortest_paths.tests.test_weighted",
    "tests.test_cluster",
    "tests.test_core",
    "traversal.tests.test_bfs",
]


@pytest.mark.slow
def test_its_tests_pass_and_calls_of_every_function_are_served(tmp_path: Path) -> None:
    """One test, so that workers of one run do not run the tests of NetworkX twice."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    counts = tmp_path / "served.json"
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
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-5000:]
    assert re.search(r"\d+ passed", output), output[-2000:]
    assert not re.search(r"xfailed|failed|error", output), output[-2000:]
    served = json.loads(counts.read_text(encoding="utf-8"))
    print(output.splitlines()[-1], served)
    assert set(served) == set(CLAIMS)
    never = [name for name, count in served.items() if not count]
    assert not never, f"no call of {never} was answered by a kernel"
