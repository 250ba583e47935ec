"""Turns generated text into a module: the only place where generated code runs."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Protocol

from featgraph._interrupts import compiled_aside, import_whole
from featgraph.errors import FeatGraphError, UserFunctionError
from featgraph.fold.compiling.disk_cache import guard_disk_cache
from featgraph.fold.compiling.store import COMPILED, module_path
from featgraph.fold.printing.module import KernelSource

__all__ = ["check_module", "explain_numba_error", "load_module"]


class _TextLoader(SourceFileLoader):
    """Runs the text that is at hand, neither what a file holds nor what Python kept."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        super().__init__(name, str(path))
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled text."""
        return self.source_to_code(self._text.encode(), self.path)


class Source(Protocol):
    """What a module is loaded from."""

    @property
    def text(self) -> str:
        """Its text."""

    @property
    def stem(self) -> str:
        """Start of its file's name."""


def load_module(source: Source) -> ModuleType:
    """Store the module's text and import it from there.

    Tracebacks, profilers and Numba's disk cache then work as for any file.
    """
    check_module(source.text)
    path = module_path(source.text, source.stem)
    name = f"featgraph_kernel_{path.stem}"
    import_whole("numba")  # with the first kernel, not with featgraph
    from numba.core.compiler_lock import global_compiler_lock

    # Another thread may be within the module. Forks wait for this lock.
    with global_compiler_lock:
        known = sys.modules.get(name)
        if known is not None and known.__file__ == str(path):
            return known
        return _import_text(name, path, source.text)


def _import_text(name: str, path: Path, text: str) -> ModuleType:
    loader = _TextLoader(name, path, text)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:  # not with a loader
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    # Numba's cache finds the namedtuple by its module's name.
    sys.modules[name] = module
    try:
        loader.exec_module(module)
        # Numba knows namedtuples by the name of their class and what is in them; where
        # these are the same it looks for the kernel anew at every launch, for a quarter
        # of a millisecond. Pickle goes by __qualname__, which stays.
        if hasattr(module, "Data"):
            module.Data.__name__ = path.stem
        guard_disk_cache(module, path.parent / COMPILED)
        for value in vars(module).values():
            if hasattr(value, "_compile_for_args"):
                compiled_aside(value)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_module(text: str) -> None:
    """Parse generated text and see that every name in it is bound.

    Raises
    ------
    FeatGraphError
        If it does not hold: a fault of the folder.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise FeatGraphError(
            "the generated module does not parse",
            where=f"line {error.lineno}",
            got=error.text,
        ) from error
    bound: set[str] = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.FunctionDef):
            bound |= {node.name, *(a.arg for a in node.args.args)}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in bound:
            raise FeatGraphError(
                f"the generated module uses {node.id!r}, which nothing binds",
                where=f"line {node.lineno}",
            )


def explain_numba_error(
    source: KernelSource, module: ModuleType, error: Exception
) -> UserFunctionError:
    """Return an error that points at the user's line, with Numba's text."""
    text = str(error)
    lines = [
        int(number)
        for file, number in re.findall(r'File "([^"]+)", line (\d+)', text)
        if str(module.__file__).endswith(file.split("/")[-1])
    ]
    places = [source.origins[n] for n in lines if n in source.origins]
    where = f"{places[-1][0]}:{places[-1][1]}" if places else None
    first = next(
        (x for x in text.splitlines() if x.strip() and "Failed in" not in x), text
    )
    return UserFunctionError(
        "the compiler refuses this function",
        where=where,
        got=re.sub(r"\x1b\[[0-9;]*m", "", first).strip(),
        expected="numbers, properties, functions of math, featgraph operations",
        fix="the compiler's whole text is the cause of this error",
    )
