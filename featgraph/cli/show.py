"""``featgraph show``: the plan, passes and code of a foldmap."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import featgraph as fg
from featgraph.base.errors import FeatGraphError

__all__ = ["show"]


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
            "--pass names one of several",
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
