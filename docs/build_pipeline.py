"""Builds the artefacts of docs/pipeline.md from label propagation, as it is folded.

``python docs/build_pipeline.py`` rewrites the text between ``<!-- built: NAME -->`` and
``<!-- end -->``; the prose outside of it is edited by hand. With ``--check`` it writes
nothing and fails, with a diff, if the page is out of date. Resources come from a
compiler. They are not rewritten if the compiler is missing, nor in a check if the page
names another version of it.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from featgraph.algorithms.belief_propagation import step as belief_propagation
from featgraph.algorithms.bfs import step as bfs
from featgraph.algorithms.label_propagation import labels_of_neighbors, relax, step
from featgraph.algorithms.triangle_count import step as triangle_count
from featgraph.cuda import dialect
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.passes.passes import NEST_PASSES
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.printing.emit import emit
from featgraph.fold.printing.explain import changed_lines, shown
from featgraph.fold.tree import statements

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "pipeline.md"
WIDTH = 4
MARKED = re.compile(r"(?ms)^<!-- built: (\w+) -->\n(.*?)^<!-- end -->$")


def example_state() -> fg.State:
    """Return a State of a random graph: 1000 vertices, 16 in-edges each on average."""
    rng = np.random.default_rng(1)
    ends = rng.integers(0, 1000, (2, 8000))
    graph = fg.Graph.from_edges(ends[0], ends[1], vertex_count=1000, directed=False)
    return fg.State(
        graph,
        label=fg.vertex_property(0.0, shape=(WIDTH,), iterated=True),
        clamped=fg.vertex_property(False),
        weight=fg.edge_property(1.0),
        alpha=0.85,
        epsilon=1e-3,
    )


def _fenced(text: str, language: str = "text") -> str:
    """Return `text` in a fence; ``py``, since tests run fences of ``python``."""
    text = textwrap.dedent(text).strip("\n").rstrip()
    return f"```{language}\n{text}\n```\n"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 88, break_on_hyphens=False)) + "\n"


def _local(text: str) -> str:
    """Return `text` with paths from the root of the repository."""
    # Algorithms are in a folder of their own, whichever way they were imported.
    return text.replace(f"{ROOT}/", "").replace("featgraph/algorithms/", "algorithms/")


def _declared() -> str:
    return _fenced(
        "\n\n".join(f.source.text for f in (labels_of_neighbors, relax)), "py"
    )


def _resolved(kernel: Any) -> str:
    kinds = (
        statements.Access,
        statements.Scalar,
        statements.Operate,
        statements.MathCall,
    )
    rows: dict[str, str] = {}
    for function in kernel.plan.analysis.functions:
        for node in (n for s in function.body for n in ast.walk(s)):
            if isinstance(node, kinds):
                rows[shown(node)] = type(node).__name__
    wide = max(map(len, rows))
    ordered = sorted(rows.items(), key=lambda row: (row[1], row[0]))
    return _fenced("\n".join(f"{text:{wide}}  {kind}" for text, kind in ordered))


def _lowered(kernel: Any) -> str:
    texts = []
    for function in kernel.plan.analysis.functions:
        body = "\n".join(shown(statement) for statement in function.body)
        texts.append(f"{function.name}:\n{body}".replace("\n", "\n    "))
    return _fenced("\n\n".join(texts))


def _typed(kernel: Any) -> str:
    lines = []
    for function in kernel.plan.analysis.functions:
        lines.append(f"{function.name} -> {function.returns}, K = {function.width}")
        for name, type_ in function.variables.items():
            varies = "varies" if name in function.varying else "uniform"
            lines.append(f"    {name:20} {type_:6} {varies}")
    return _fenced("\n".join(lines))


def _accesses(kernel: Any) -> str:
    return _fenced(kernel.explain().partition("accesses:\n")[2])


def _explained(kernel: Any) -> str:
    return _fenced(kernel.explain().partition("\n\naccesses:\n")[0])


def _plan(kernel: Any) -> str:
    return _fenced(str(kernel.plan))


def _source(kernel: Any) -> str:
    return _fenced(_local(kernel.source), "py")


def _gathered(kernel: Any) -> str:
    """Return the lines of the kernel that gather for a vertex."""
    text = kernel.source.partition("alive = True\n")[2]
    text = text.partition("            # vertex function")[0]
    return _fenced(text, "py")


def _passes(kernels: dict[str, Any]) -> str:
    """Return what each pass changes, with its reason.

    A pass is shown on the first of `kernels` that it changes. A sentence introduces
    those behind the first.
    """
    told = {label: _changes_by_pass(kernel) for label, kernel in kernels.items()}
    usual = next(iter(told))
    texts = []
    for one in NEST_PASSES:
        does, _, why = inspect.cleandoc(str(one.run.__doc__)).partition("\n\n")
        label = next((n for n, changes in told.items() if changes[one.name]), "")
        if not told[label][one.name]:
            raise LookupError(f"{one.name} changes none of the kernels: add one")
        said = f"{does} {why}" if label == usual else f"{does} {why} {label}:"
        texts += [f"### `{one.name}`\n", _wrapped(said)]
        texts.append(_fenced(told[label][one.name], "diff"))
    return "\n".join(["", *texts, ""])


def _function_passes(kernel: Any, name: str) -> str:
    """Return what passes make of one function of a kernel."""
    trees = [t for t in kernel.trees() if t.kernel == name]
    texts, before = list[str](), ""
    for one in trees:
        if one.text != before:
            changed = changed_lines(before, one.text) if before else one.text
            texts += [f"`{one.name}`. {one.does}\n", _fenced(changed, "diff")]
        before = one.text
    return "\n".join(["", *texts, ""])


def _changes_by_pass(kernel: Any) -> dict[str, str]:
    """Return what each pass changes in the first kernel; the first pass makes it."""
    nests = [t for t in kernel.trees() if not t.is_function]
    first, *others = [t for t in nests if t.kernel == nests[0].kernel]
    changes, before = {first.name: first.text}, first.text
    for one in others:
        changes[one.name] = changed_lines(before, one.text)
        before = one.text
    return changes


def _with_long_rows(kernel: Any) -> Any:
    """Return the kernel of a graph with rows so long that blocks of them are summed."""
    plan = kernel.plan
    traits = replace(plan.traits, long_rows=True)
    signature = plan.analysis.signature
    return Kernel(emit(make_plan(step.program, signature, plan.options, traits)))


def _entries(kernel: Any) -> str:
    lines = [f"{e.name}({', '.join(e.arguments)})" for e in kernel.entries]
    fields = ", ".join(f"{f.name}: {f.source}" for f in kernel.kernel_source.fields)
    return _fenced("\n".join([*lines, f"d = Data({fields})"]))


def versions() -> str:
    """Return the versions that registers and spills depend on."""
    packages = ("numba-cuda", "nvidia-cuda-nvrtc", "cuda-core")
    found = []
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def _resources(kernels: dict[str, Any]) -> str:
    lines = [f"sm_90, {versions()}", ""]
    for label, kernel in kernels.items():
        doubles = len(re.findall(r"\.f64\b", kernel.ptx((9, 0))))
        for name, used in kernel.resources((9, 0)).items():
            spilled = used.spill_stores_bytes + used.spill_loads_bytes
            lines.append(
                f"{label:4} {name} {used.registers:3} registers, "
                f"{spilled} bytes spilled, {doubles} float64 instructions"
            )
    return _fenced("\n".join(lines))


def build(page: str, *, keep_other_compiler: bool) -> str:
    """Return `page` with its artefacts made anew.

    Parameters
    ----------
    page : str
        The page as it is.
    keep_other_compiler : bool
        Do not rewrite resources that a compiler of another version has reported.
    """
    state = example_state()
    cpu = step.fold(state, target="cpu")
    patching = step.fold(state, target="cpu", change_driven=True)
    cuda = step.fold(state, target="cuda")
    nfa = step.fold(state, target="cuda", feature_parallel=False)
    both = {"FA": cuda, "NFA": nfa}
    kept = step.fold(state, target="cuda", change_driven=True)
    search = bfs.fold(k=WIDTH, target="cuda", feature_parallel=False)
    messages = belief_propagation.fold(k=WIDTH, target="cuda", feature_parallel=False)
    wide = step.fold(k=2 * WIDTH, target="cuda")
    kernels = {
        "": cuda,
        "Here one thread a vertex": nfa,
        "Here with `change_driven=True`": kept,
        "Here breadth-first search, one thread a vertex": search,
        "Here belief propagation, one thread a vertex": messages,
        "Here triangle counts": triangle_count.fold(target="cuda"),
        "Here for a graph with long rows": _with_long_rows(cuda),
    }
    makers: dict[str, Callable[[], str]] = {
        "declared": _declared,
        "resolved": lambda: _resolved(cpu),
        "lowered": lambda: _lowered(cpu),
        "typed": lambda: _typed(cpu),
        "accesses": lambda: _accesses(cpu),
        "plan": lambda: _plan(cpu),
        "function_passes": lambda: _function_passes(wide, "relax"),
        "passes": lambda: _passes(kernels),
        "plan_cuda": lambda: _plan(cuda),
        "plan_nfa": lambda: _plan(nfa),
        "plan_patch": lambda: _plan(patching),
        "source_patch": lambda: _gathered(patching),
        "plan_push": lambda: _plan(step.fold(state, target="cpu", direction="push")),
        "source_cpu": lambda: _source(cpu),
        "source_cuda": lambda: _source(cuda),
        "entries": lambda: _entries(cpu),
        "explained": lambda: _explained(cpu),
    }

    def made(match: re.Match[str]) -> str:
        name, old = match[1], match[2]
        if name == "resources":
            kept = keep_other_compiler and versions() not in old
            new = old if kept or not dialect.is_installed() else _resources(both)
        else:
            new = makers[name]()
        return f"<!-- built: {name} -->\n{new}<!-- end -->"

    return MARKED.sub(made, page)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    old = PAGE.read_text(encoding="utf-8")
    new = build(old, keep_other_compiler=options.check)
    if not options.check:
        PAGE.write_text(new, encoding="utf-8")
        return 0
    if new == old:
        return 0
    names = ("docs/pipeline.md", "as it is built now")
    sys.stdout.writelines(
        difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names)
    )
    print("docs/pipeline.md is out of date: run python docs/build_pipeline.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
