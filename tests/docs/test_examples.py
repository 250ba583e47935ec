"""Every example runs: in README.md and docs/, and in the docstrings of public names.

A fenced block ``python`` runs, in one namespace with those above it in the same file;
with ``>>>`` lines its output is compared. ``python gpu`` runs where there is a GPU.
Pages that need data sets run where the real graphs are, from which these are made.
Anything else, such as a fragment, is fenced without ``python``.

Commands of blocks ``sh`` run behind a page's Python, in the same folder. Of installs
the extras are looked up, and names of data sets. Links lead to files that exist.
"""

from __future__ import annotations

import doctest
import gzip
import hashlib
import importlib
import inspect
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import coo_matrix, csc_matrix

import featgraph as fg
from featgraph.cli import main
from featgraph.cli.data import DATA_SETS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

#: The branch at which links of README.md point, which is also read on an index page.
ONLINE = re.compile(r"https://github\.com/featgraph/featgraph/(?:blob|tree)/main/")

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


def commands(page: Path) -> list[str]:
    """Return the lines of all blocks ``sh`` of a page."""
    found = re.findall(r"(?ms)^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"))
    return [line for block in found for line in block.splitlines()]


def extras() -> set[str]:
    with open(ROOT / "pyproject.toml", "rb") as stream:
        return set(tomllib.load(stream)["project"]["optional-dependencies"])


def run_command(line: str) -> None:
    """Run a line of a shell; of an install, look up the extras."""
    if line.startswith("pip install"):
        extra_names = {
            name
            for group in re.findall(r"\[(.+?)\]", line)
            for name in group.split(",")
        }
        assert extra_names <= extras(), line
    elif line.startswith("featgraph data "):
        # The fixture has made the files, not all with the bytes that are published.
        assert line.split()[-1] in DATA_SETS, line
    elif line.startswith("featgraph "):
        assert main(shlex.split(line)[1:]) == 0, line
    else:
        subprocess.run(["sh", "-ec", line], check=True)


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
        if blocks(page, gpu) or (commands(page) and not gpu)
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
    if not gpu:
        for line in commands(page):
            run_command(line)


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def dead_links(page: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of it."""
    text = re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", text, re.M)
    dead = []
    for link in map("".join, links):
        path, _, heading = ONLINE.sub(f"{ROOT}/", link).partition("#")
        if path.startswith("https://"):
            continue
        file = (page.parent / path) if path else page
        found = file.read_text(encoding="utf-8") if heading and file.is_file() else ""
        headings = map(anchor, re.findall(r"(?m)^#+ (.+)$", found))
        if not file.exists() or (heading and heading not in headings):
            dead.append(link)
    return dead


def test_links_lead_to_what_exists() -> None:
    dead = {str(page.relative_to(ROOT)): dead_links(page) for page in PAGES}
    assert not {page: links for page, links in dead.items() if links}


def test_an_index_page_has_no_relative_links() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", readme, re.M)
    assert [link for link in map("".join, links) if link[:1] not in ("#", "h")] == []


def test_metadata_readme_and_changelog_agree() -> None:
    with open(ROOT / "pyproject.toml", "rb") as stream:
        project = tomllib.load(stream)["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"(?m)^## {re.escape(project['version'])}$", changelog)
    urls = project["urls"].values()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    base = re.match(r"https://[^/]+/[^/]+/[^/]+", next(iter(urls)))
    assert base is not None
    assert all(url.startswith(base[0]) for url in urls)
    assert ONLINE.search(readme)[0].startswith(base[0])  # type: ignore[index]


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
