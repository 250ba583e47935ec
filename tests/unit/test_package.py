"""Rules across modules: layers, sizes, imports, docstrings, and the package."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

import featgraph as fg

ROOT = Path(__file__).parents[2]

# Rooms that each may import beside its own modules; docs/design/0001-architecture.md.
DECLARED = {"base", "cuda", "graph", "program"}
LAYERS = {
    "base": set(),
    "cuda": {"base"},
    "device": {"base", "cuda"},
    # Its edges may be on the GPU, and are sorted there.
    "graph": {"base", "cuda"},
    "program": {"base", "cuda", "graph"},
    "reference": {"base", "graph", "program"},
    "fold": DECLARED | {"device"},
    "runtime": DECLARED | {"device", "fold"},
    "ranks": DECLARED | {"device", "fold", "runtime"},
    # The public names of ranks.
    "distributed": {"ranks"},
    "dynamic": DECLARED | {"device", "fold", "runtime"},
    "__init__": {
        "base",
        "graph",
        "program",
        "runtime",
        "ranks",
        "distributed",
        "dynamic",
    },
    "networkx": {"base", "__init__", "algorithms"},
    "cli": {"base", "graph", "runtime", "ranks", "dynamic", "__init__", "algorithms"},
    "__main__": {"cli"},
}

# The folders below those, from the ground up: imports point down the list, those in
# functions and under TYPE_CHECKING included.
FLOORS = (
    "graph.inputs",
    "graph.building",
    "graph.views",
    "graph.partition",
    "graph",
    "graph.slices",
    "graph.formats",
    "fold.tree",
    "fold.schedules",
    "fold.operations",
    "fold.syntax",
    "fold.analysis",
    "fold.kinds",
    "fold.plan",
    "fold.passes.bodies",
    "fold.passes.nests",
    "fold.passes.worklists",
    "fold.passes",
    "fold.printing",
    "fold.compiling",
    "fold",
    "runtime.recording",
    "runtime.devices",
    "runtime.streaming",
    "runtime.memory",
    "runtime.superstep",
    "runtime.loops",
    "runtime.checkpoints",
    "runtime",
    "ranks.engines",
    "ranks.launching",
    "ranks.exchange",
    "ranks.cost",
    "ranks",
    "ranks.loading",
    "ranks.moving",
)

# Modules of the folder that the runtime may import: the table of contents, and data.
READ_BY_RUNTIME = {
    "folder",  # a foldmap folds
    "plan.options",  # what was asked for
    "plan.traits",  # traits of a graph that plans depend on, and names of its arrays
    "plan.plan",  # the phases, and the facts
    "schedules.mapping",  # the sizes that a schedule finds a grid for
    "printing.module",  # the entries of a kernel, and what they take
    "compiling.kernel",  # what is launched
    "compiling.jobs",  # groups of equal kernels, which processes store ahead
}

TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "_featgraph_networkx",
    "algorithms",
    "bench",
    "docs",
    "featgraph",
    "pyproject.toml",
    "setup.cfg",
    "tests",
}

#: Lines of a file; lines and positional parameters of a function. `test_structure` has
#: the limits that fall.
MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS = 800, 80, 7


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if "golden" not in path.parts)


def identify(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported_modules(tree: ast.AST) -> set[str]:
    """Return the dotted names imported anywhere, functions' bodies included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", sources("featgraph"), ids=identify)
def test_no_property_holds_a_lock(path: Path) -> None:
    # functools' one does in Python 3.11: a forked child may wait for it for ever.
    locking = {"functools.cached_property"}
    if identify(path) != "featgraph/base/cached.py":
        assert not imported_modules(parse(path)) & locking


def layers_imported(tree: ast.AST) -> set[str]:
    """Return the layers of featgraph that are imported."""
    layers = set()
    for name in imported_modules(tree):
        package, _, rest = name.partition(".")
        if package == "featgraph":
            layer = rest.partition(".")[0]
            is_layer = layer in LAYERS or layer == "algorithms"
            layers.add(layer if is_layer else "__init__")
    return layers


@pytest.mark.parametrize("path", sources("featgraph"), ids=identify)
def test_imports_point_downward(path: Path) -> None:
    layer = path.relative_to(ROOT / "featgraph").parts[0].removesuffix(".py")
    assert layer in LAYERS, "a new layer: say in the architecture note where it stands"
    assert layers_imported(parse(path)) <= LAYERS[layer] | {layer}


def floor_of(module: str) -> int:
    """Return the place of a module in FLOORS, by the longest name that fits."""
    name = module.removeprefix("featgraph.")
    held = [f for f in FLOORS if name == f or name.startswith(f"{f}.")]
    return FLOORS.index(max(held, key=len))


@cache
def import_graph() -> dict[str, set[str]]:
    """Return which modules of featgraph each one imports."""
    modules = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
        for p in sources("featgraph")
    }
    return {
        name: {
            full if full in modules else full.rpartition(".")[0]
            for full in imported_modules(parse(path))
        }
        & (modules.keys() - {name})
        for name, path in modules.items()
    }


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = nx.DiGraph(import_graph())
    circles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles


@pytest.mark.parametrize("path", sources("featgraph/runtime"), ids=identify)
def test_the_runtime_reads_the_plan_and_never_the_analysis(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ".analysis" not in text
    imported = {
        name.removeprefix("featgraph.fold.").rpartition(".")[0]
        for name in imported_modules(ast.parse(text))
        if name.startswith("featgraph.fold.")
    }
    assert imported <= READ_BY_RUNTIME


@pytest.mark.parametrize("path", sources("algorithms"), ids=identify)
def test_algorithms_import_only_what_is_public(path: Path) -> None:
    tree = parse(path)
    for name in imported_modules(tree):
        if name.startswith("featgraph.") and not name.startswith(
            "featgraph.algorithms"
        ):
            assert name.removeprefix("featgraph.") in fg.__all__, name
        assert not name.startswith(("numba", "cuda")), name
    for node in ast.walk(tree):
        is_attribute = isinstance(node, ast.Attribute) and isinstance(
            node.value, ast.Name
        )
        if is_attribute and node.value.id == "fg":
            assert node.attr in fg.__all__, f"line {node.lineno}: fg.{node.attr}"


#: Modules that may import the dialect's packages.
DIALECT = {"featgraph/cuda/dialect.py", "featgraph/cuda/tiles.py"}


def test_one_module_imports_the_cuda_dialect() -> None:
    dialects = re.compile(r"(numba\.cuda|numba_cuda|cuda)(\.|$)")
    found = {
        identify(path)
        for path in sources("featgraph", "algorithms")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(dialects.match(name) for name in imported_modules(node))
    }
    # Its imports are lazy, by name, so that none may show even there.
    assert found <= DIALECT
    named = {
        identify(path)
        for path in sources("featgraph", "algorithms")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"(numba\.cuda|numba_cuda)(\.\w*)*", node.value)
    }
    assert named <= DIALECT


def test_kernels_have_types_of_numbers_from_the_dialect() -> None:
    """Also those of generated modules; Numba's own are for the CPU."""
    for path in sources("featgraph", "algorithms"):
        tree = parse(path)
        imported = imported_modules(tree)
        of_numba = any(re.match(r"numba(\.|$)", name) for name in imported)
        has_dialect = any(
            isinstance(node, ast.ImportFrom)
            and node.module == "featgraph.cuda.dialect"
            and {"cuda", "kernel", "device_function"} & {a.name for a in node.names}
            for node in ast.walk(tree)
        )
        assert not (of_numba and has_dialect), identify(path)
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and "from numba import" in node.value:
                assert "njit" in node.value or identify(path) in DIALECT, path


def test_one_module_imports_torch() -> None:
    # By name, when the first engine is made that needs it.
    found = {
        identify(path)
        for path in sources("featgraph", "algorithms")
        if re.search(r"(import|import_\w+\(\")\s*torch\b", path.read_text("utf-8"))
    }
    assert found == {"featgraph/ranks/engines/torch_engine.py"}


def test_one_place_executes_generated_code() -> None:
    found = [
        f"{identify(path)}:{node.lineno}"
        for path in sources("featgraph", "algorithms")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and re.fullmatch(r"exec|eval|.*\.exec_module", ast.unparse(node.func))
    ]
    assert [place.split(":")[0] for place in found] == [
        "featgraph/fold/compiling/compile.py"
    ]


def line_count(node: Any) -> int:
    return int(node.end_lineno) - int(node.lineno) + 1


def docstring_line_count(node: Any) -> int:
    """Count the lines of the docstring: what makes a function long is its code."""
    return line_count(node.body[0]) if ast.get_docstring(node) is not None else 0


EVERYWHERE = ("featgraph", "algorithms", "tests", "bench")
#: Decorators of functions whose parameters are not ours to choose: compiled code takes
#: arrays one by one.
GIVEN = {"jit", "njit", "_njit", "kernel", "device_function"}


def decorators(node: Any) -> set[str]:
    """Return the names of a function's decorators, without their arguments."""
    found = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
    return {ast.unparse(d) for d in found}


def parameters(node: Any) -> list[str]:
    """Return the positional parameters of a function."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


@pytest.mark.parametrize("path", sources(*EVERYWHERE), ids=identify)
def test_sizes(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_FILE, f"{lines} lines"
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = line_count(node) - docstring_line_count(node)
        assert length <= MAX_FUNCTION, f"{node.name}: {length} lines"
        if node.name.startswith("test_") or decorators(node) & GIVEN:
            continue
        count = len(parameters(node))
        assert count <= MAX_PARAMETERS, f"{node.name}: {count} parameters"


#: A dotted name below the package, and one that a placeholder of an f-string goes on.
DOTTED = re.compile(r"(?<![\w.])featgraph((?:\.[A-Za-z_]\w*)+)")
OPEN_END = re.compile(r"(?<![\w.])featgraph[\w.]*$")


def texts_of(tree: ast.Module) -> Iterator[str]:
    """Generate the text of each constant, without names left open."""
    is_open = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part, next_ in pairwise(node.values)
        if isinstance(next_, ast.FormattedValue)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if id(node) in is_open and (cut := OPEN_END.search(text)):
                text = text[: cut.start()] + cut[0].rpartition(".")[0]
            yield text


@cache
def bound_names(path: Path) -> frozenset[str]:
    """Return the names that the statements of a module bind, without running it."""
    found: set[str] = set()
    nodes: list[ast.AST] = [parse(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
            continue  # its own names are no attributes of the module
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {a.asname or a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        nodes.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def exists(name: str) -> bool:
    """Whether a name below featgraph is that of a module, or of what a module binds."""
    place, path = ROOT / "featgraph", ROOT / "featgraph" / "__init__.py"
    for number, part in enumerate(name.split(".")):
        if number == 0 and part == "algorithms":
            place = ROOT
        if (place / part / "__init__.py").exists():
            place, path = place / part, place / part / "__init__.py"
        elif place.joinpath(f"{part}.py").exists() and path.stem == "__init__":
            path = place / f"{part}.py"
        else:
            is_special = part.startswith("__") and part.endswith("__")
            return is_special or part in bound_names(path)
    return True


@pytest.mark.parametrize("path", sources(*EVERYWHERE), ids=identify)
def test_names_in_imports_and_texts_exist(path: Path) -> None:
    """Also those that tests patch, that are imported by name, and that prose names."""
    imported = imported_modules(parse(path))
    named = {name for name in imported if name.startswith("featgraph.")}
    for text in texts_of(parse(path)):
        named |= {f"featgraph{name}" for name in DOTTED.findall(text)}
    assert not [name for name in named if not exists(name.removeprefix("featgraph."))]


def test_names_of_modules_are_found_in_texts() -> None:
    text = 'f"ours.runtime.loops.{x}", f"ours.ranks.en{x}", "of ours.b.c", "hours.b"'
    texts = texts_of(ast.parse(text.replace("ours.", "featgraph.")))
    found = [name for text in texts for name in DOTTED.findall(text)]
    assert sorted(found) == [".b.c", ".ranks", ".runtime.loops"]
    assert exists("runtime.iterate")
    assert exists("runtime.iterate.iterate")
    assert exists("algorithms.bfs")
    assert exists("Graph.from_edges")
    assert not exists("runtime.loops.turns")
    assert not exists("runtime.iterate.limit")  # a local


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )


def test_import_is_quick_and_silent_and_needs_no_driver() -> None:
    code = (
        "import sys, time\n"
        "start = time.process_time()\n"
        "import featgraph\n"
        "seconds = time.process_time() - start\n"
        "cuda = [m for m in sys.modules if m.split('.')[0] in ('cuda', 'numba_cuda')"
        " or m.startswith('numba.cuda')]\n"
        "assert not cuda, cuda\n"
        "assert not {'sklearn', 'matplotlib', 'torch'} & set(sys.modules)\n"
        "sys.stderr.write(str(seconds))"
    )
    runs = [run_python(code) for _ in range(3)]
    for run in runs:
        assert run.returncode == 0, run.stderr
        assert run.stdout == ""
        assert float(run.stderr) > 0  # and so stderr has nothing else
    # The limit is of the contract, not of this machine and what else it does: time of
    # the processor, and the best of three.
    assert min(float(run.stderr) for run in runs) < 1


def test_a_first_call_imports_no_linear_algebra_of_scipys() -> None:
    code = (
        "import sys, featgraph as fg, numpy as np\n"
        "from featgraph.algorithms import bfs\n"
        "graph = fg.Graph.from_edges([0, 1], [1, 2])\n"
        "assert bfs(graph, 0, target='cpu').levels.tolist() == [0, 1, 2]\n"
        "assert 'numba.np.arraymath' in sys.modules\n"
        "assert 'scipy.linalg' not in sys.modules\n"
        "import numba\n"
        "dot = numba.njit(lambda a, b: np.dot(a, b))\n"
        "assert dot(np.ones((2, 3)), np.ones(3)).tolist() == [3, 3]\n"
        "assert 'scipy.linalg' in sys.modules"
    )
    made = run_python(code)
    assert (made.returncode, made.stdout + made.stderr) == (0, "")


def test_a_first_call_without_a_driver_imports_no_dialect() -> None:
    code = (
        "import sys, featgraph as fg\n"
        "from featgraph.algorithms import bfs\n"
        "from featgraph.cuda import dialect\n"
        "dialect._DRIVERS[:] = ['no driver']\n"
        "graph = fg.Graph.from_edges([0, 1], [1, 2])\n"
        "assert bfs(graph, 0).levels.tolist() == [0, 1, 2]\n"
        "cuda = [m for m in sys.modules if m.split('.')[0] in ('cuda', 'numba_cuda')"
        " or m.startswith('numba.cuda')]\n"
        "assert not cuda, cuda\n"
    )
    made = run_python(code)
    assert (made.returncode, made.stdout + made.stderr) == (0, "")


def test_wheel_and_editable_install_have_every_package() -> None:
    with open(ROOT / "pyproject.toml", "rb") as stream:
        settings = tomllib.load(stream)["tool"]["setuptools"]
    folders = {path.parent for path in sources("featgraph") if path.stem == "__init__"}
    expected = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    beside = {"_featgraph_networkx", "featgraph.algorithms"}
    assert set(settings["packages"]) == expected | beside
    with_modules = {path.parent for path in sources("featgraph")}
    assert folders == with_modules, "a folder of modules without __init__.py"
    assert settings["package-dir"]["featgraph.algorithms"] == "algorithms"
    import featgraph.algorithms

    assert Path(featgraph.algorithms.__file__).parent == ROOT / "algorithms"


def test_a_checkout_is_importable_as_it_stands(tmp_path: Path) -> None:
    # Whatever is installed, Python that is started in a checkout finds its featgraph/
    # first, and has to find algorithms/ beside it.
    for name in ("featgraph", "algorithms", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    code = (
        "import featgraph\n"
        "from featgraph.algorithms import bfs\n"
        "import sys\n"
        "print(featgraph.__file__, sys.modules[bfs.__module__].__file__)"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.check_output(command, cwd=tmp_path, text=True).split()
    assert found == [
        str(tmp_path / "featgraph" / "__init__.py"),
        str(tmp_path / "algorithms" / "bfs.py"),
    ]


def test_top_level_holds_what_is_named() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout, so that built files cannot be told from ours")
    assert {name.split("/")[0] for name in listed.stdout.splitlines()} <= TOP_LEVEL


SECTIONS = (
    "Parameters",
    "Attributes",
    "Returns",
    "Yields",
    "Raises",
    "Warns",
    "See Also",
    "Notes",
    "References",
    "Examples",
)


def sections_of(docstring: str) -> dict[str, str]:
    """Return the numpydoc sections in order, and the summary under the empty name."""
    parts = re.split(r"(?m)^([A-Z][A-Za-z ]+)\n(-{3,})$\n?", docstring)
    found = {"": parts[0]}
    for i in range(1, len(parts), 3):
        title, rule, body = parts[i : i + 3]
        assert title in SECTIONS, f"unknown section {title}"
        assert len(rule) == len(title), f"the rule under {title}"
        found[title] = body
    return found


def documented_names(body: str) -> list[str]:
    heads = re.findall(r"(?m)^(?! )([^:\n]+?)(?: :.*)?$", body)
    return [name.strip().lstrip("*") for head in heads for name in head.split(",")]


def public_objects() -> list[Any]:
    return [
        pytest.param(value, id=name)
        for name in fg.__all__
        if inspect.isfunction(value := getattr(fg, name)) or inspect.isclass(value)
    ]


@pytest.mark.parametrize("public", public_objects())
def test_public_names_have_numpydoc(public: Any) -> None:
    docstring = inspect.getdoc(public)
    assert docstring, "no docstring"
    summary = docstring.split("\n")[0]
    assert re.search(r"[.:]$", summary), f"the first line is a sentence: {summary!r}"
    sections = sections_of(docstring)
    order = [name for name in SECTIONS if name in sections]
    assert [name for name in sections if name] == order, "the order of the sections"
    try:
        parameters = list(inspect.signature(public).parameters)
    except ValueError:  # an exception class that inherits its __init__ from C
        parameters = []
    if "Parameters" in sections:
        documented = documented_names(sections["Parameters"])
        assert set(documented) <= set(parameters), documented
    if inspect.isfunction(public) and len(parameters) > 1:
        assert "Parameters" in sections


def test_public_names_are_listed_and_exist() -> None:
    assert sorted(fg.__all__) == sorted(set(fg.__all__))
    missing = [name for name in fg.__all__ if not hasattr(fg, name)]
    assert not missing


def test_contributing_is_short() -> None:
    assert (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").count("\n") <= 100
