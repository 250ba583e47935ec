"""Generated text as a module, in the store of compiled kernels.

`load_module` is the only place that executes generated code. Modules are in a
content-addressed store: the name of a module's file has a digest of its text, and of
all versions on which compiled code depends. The text includes the user functions, the
functions that they call, and captured constants. Compiled functions are in a folder
beside the modules (`featgraph.base.store`).
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Protocol

from featgraph.base.errors import CacheWarning, FeatGraphError, UserFunctionError
from featgraph.base.files import DistrustedError, read_private, replace_private
from featgraph.base.interrupts import import_whole, with_shielded_compilation
from featgraph.base.store import (
    COMPILATION,
    COMPILED,
    forget,
    guard_disk_cache,
    private_directory,
    shared_folders,
    source_digest,
    store_directory,
)
from featgraph.fold.printing.module import KernelSource

__all__ = ["check_module", "explain_numba_error", "load_module"]


class _TextLoader(SourceFileLoader):
    """Loader that executes the given text, not a file or cached bytecode."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        super().__init__(name, str(path))
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled text."""
        return self.source_to_code(self._text.encode(), self.path)


class Source(Protocol):
    """Interface of objects that `load_module` loads."""

    @property
    def text(self) -> str:
        """Text of the module."""

    @property
    def stem(self) -> str:
        """Beginning of the file name, readable."""

    @property
    def program(self) -> str:
        """Name of the program, for messages; "" where all programs share the module."""


def load_module(source: Source) -> ModuleType:
    """Write the text of a module to the store, import it, and return the module.

    With a file, tracebacks, profilers and Numba's disk cache work as for any module.
    """
    COMPILATION.program = source.program or COMPILATION.program
    path = module_path(source.text, source.stem)
    name = f"featgraph_kernel_{path.stem}"
    import_whole("numba")  # with the first kernel, not with featgraph
    from numba.core.compiler_lock import global_compiler_lock

    # Another thread may be importing this module. A fork waits for this lock, so that
    # no child has half of a module.
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
        # Numba identifies namedtuples by class name and fields; if two are equal, it
        # searches the kernel at every launch, which takes a quarter of a millisecond.
        # Pickle uses __qualname__, which remains.
        if hasattr(module, "Data"):
            module.Data.__name__ = path.stem
        guard_disk_cache(module, path.parent / COMPILED, shared_folders())
        for value in vars(module).values():
            if hasattr(value, "_compile_for_args"):
                with_shielded_compilation(value)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_module(text: str) -> None:
    """Parse generated text, and check that all names in it are bound somewhere.

    Raises
    ------
    FeatGraphError
        If a name is unbound or the text does not parse: a fault of the folder, not of
        the user.
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
                f"the generated module uses {node.id!r}, which is unbound",
                where=f"line {node.lineno}",
            )


def explain_numba_error(
    sources: Sequence[KernelSource], error: Exception
) -> UserFunctionError:
    """Return an error with the user's file and line, and the message of Numba.

    `sources` are the generated modules whose lines the message may contain; each has
    the user's line for its own lines (`origins`).
    """
    text = str(error)
    files = {Path(str(load_module(s).__file__)).name: s.origins for s in sources}
    found = re.findall(r'File "([^"]+)", line (\d+)', text)
    lines = [(files.get(Path(file).name, {}), int(number)) for file, number in found]
    places = [origins[number] for origins, number in lines if number in origins]
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


def module_path(text: str, stem: str) -> Path:
    """Write `text` to the store, unless it exists; return its path.

    Only texts that `check_module` has checked are written.

    Parameters
    ----------
    text : str
        The generated module.
    stem : str
        Beginning of the file name, readable; an identifier.
    """
    path = store_directory() / f"{stem[:40]}_{source_digest(text)}.py"
    problem = "was damaged"
    try:
        if read_private(path) == text.encode():
            return path
    except DistrustedError as error:
        problem = str(error)
    except FileNotFoundError:  # another process may write it from here on
        problem = ""
    except OSError:  # cannot be read, as if it were damaged
        pass
    if problem and os.path.lexists(path):
        warnings.warn(
            f"{path} {problem} and is written again", CacheWarning, stacklevel=2
        )
        forget(path)
    check_module(text)
    try:
        _write_whole(path, text)
    except OSError as error:
        warnings.warn(
            f"{path.parent} cannot be written ({error}); kernels are not stored",
            CacheWarning,
            stacklevel=2,
        )
        path = private_directory() / path.name
        _write_whole(path, text)
    return path


def _write_whole(path: Path, text: str) -> None:
    """Write a temporary file and rename it, so that readers see whole files only."""
    replace_private(path, [text.encode()])
