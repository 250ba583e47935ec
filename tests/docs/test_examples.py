"""Every example runs: in README.md and docs/, and in the docstrings of public names.

A fenced block ``python`` runs, in one namespace with those above it in the same file;
with ``>>>`` lines its output is compared. ``python gpu`` runs where there is a GPU.
Pages that need data sets run where the real graphs are, from which these are made.
Anything else, such as a fragment, is fenced without ``python``.
"""

from __future__ import annotations

import doctest
import gzip
import hashlib
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import coo_matrix, csc_matrix

import featgraph as fg
from featgraph.data import DATA_SETS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"(?ms)^```python( gpu)?\n(.*?)^```$")


def blocks(page: Path, gpu: bool) -> list[tuple[int, str]]:
    """Return (line, code) of the blocks to run on a GPU, or without one."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(2)), match[2])
        for match in _FENCE.finditer(text)
        if bool(match[1]) == gpu
    ]


def run_page(page: Path, gpu: bool, folder: Path) -> None:
    """Run the blocks of a page in one namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, (line, code) in enumerate(blocks(page, gpu)):
        if ">>>" in code:
            name = f"{page.stem}[{number}]"
            parser = doctest.DocTestParser()
            session = parser.get_doctest(code, namespace, name, str(page), line)
            assert _run(session) == 0, "the output differs, see above"
            namespace = session.globs
        else:
            # A real file, because user functions are read back from theirs; blank lines
            # above, so that a traceback has the line of the page.
            script = folder / f"{page.stem}_{number}.py"
            script.write_text("\n" * line + code, encoding="utf-8")
            exec(compile(script.read_text("utf-8"), str(script), "exec"), namespace)


@pytest.fixture(scope="session")
def data_sets(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data sets as `featgraph data` fetches them."""
    made = tmp_path_factory.mktemp("data")
    for name, known in DATA_SETS.items():
        (made / name).mkdir()
        for file in known.files:
            target = made / name / file.name
            if file.name == "blogcatalog.mat":
                savemat(target, _blogcatalog(data_dir / "small"))
                continue
            given = next((data_dir / "small").rglob(f"{file.name}.gz"))
            target.write_bytes(gzip.decompress(given.read_bytes()))
            found = hashlib.sha256(target.read_bytes()).hexdigest()
            assert found == file.sha256, "the table is that of these files"
    return made


def _blogcatalog(folder: Path) -> dict[str, Any]:
    network = fg.read_graph(folder / "blogcatalog.mtx.gz").to_scipy()
    at = np.loadtxt(folder / "blogcatalog.labels.gz", dtype=int).T
    group = coo_matrix((np.ones(at.shape[1]), tuple(at)), (network.shape[0], 39))
    return {"network": csc_matrix(network), "group": group}


def _run(example: doctest.DocTest) -> int:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    return runner.run(example, clear_globs=False).failed


def pages_with_blocks() -> list[Any]:
    marks = {False: (), True: (pytest.mark.gpu,)}
    return [
        pytest.param(
            page,
            gpu,
            id=f"{page.relative_to(ROOT)}{' gpu' if gpu else ''}",
            marks=marks[gpu],
        )
        for page in PAGES
        for gpu in (False, True)
        if blocks(page, gpu)
    ]


@pytest.mark.parametrize(("page", "gpu"), pages_with_blocks())
def test_page(
    page: Path,
    gpu: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if any("data_folder(" in code for _, code in blocks(page, gpu)):
        folder = request.getfixturevalue("data_sets")  # skips where there are none
        monkeypatch.setenv("FEATGRAPH_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    run_page(page, gpu, tmp_path)


def public_doctests() -> list[Any]:
    owners = [(fg, "fg")]
    for path in sorted((ROOT / "algorithms").glob("[!_]*.py")):
        module = importlib.import_module(f"featgraph.algorithms.{path.stem}")
        owners.append((module, path.stem))
    found = {}
    for owner, prefix in owners:
        for name in owner.__all__:
            value = getattr(owner, name)
            documented = inspect.isclass(value) or callable(value)
            if not documented:
                continue
            for test in doctest.DocTestFinder(recurse=True).find(
                value, f"{prefix}.{name}", globs={}
            ):
                if test.examples:
                    found[test.name] = test
    return [pytest.param(test, id=name) for name, test in found.items()]


@pytest.mark.parametrize("example", public_doctests())
def test_docstring(example: doctest.DocTest) -> None:
    # Methods' examples may name their class without importing it.
    example.globs.update({name: getattr(fg, name) for name in fg.__all__})
    assert _run(example) == 0, "the output differs, see above"


def test_readme_commands_are_those_that_ci_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"(?ms)^```bash\n(.*?)^```$", readme)
    tests = [command.strip() for command in commands if "pytest" in command]
    assert len(tests) == 1, "one command installs and passes the tests"
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for part in tests[0].split(" && "):
        assert part in script, f"not in .ci/run: {part}"
