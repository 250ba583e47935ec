"""Kernels for a GPU with equal content, of which one is compiled, in any process.

The modules of a foldmap for graphs of different traits often differ in one kernel only.
Two functions have equal content if their code, their constants and all that they call
are equal, and if their arguments have types of one kind: types that differ in the class
of `d` only, the namedtuple of each module. Their machine code is then the same, apart
from names. `JobsByContent` groups functions; `Job` compiles one function of a group and
stores its code for each, under the types of that function. Device functions with equal
content are compiled once, too, for all kernels of a process.

A job is pickled for another process by the paths of modules, which are in the store.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from featgraph.cuda import dialect
from featgraph.fold.compiling.compile import load_module

__all__ = ["Job", "JobsByContent", "Named"]

ComputeCapability = tuple[int, int]
#: The name of a function's module, its name, and types of its arguments.
Named = tuple[str, str, tuple[Any, ...]]


class Job(NamedTuple):
    """Functions with equal content, of which one is compiled; for another process.

    Attributes
    ----------
    cc : (int, int)
        The compute capability of the GPU.
    modules : tuple of str
        Paths of the generated modules of the functions, and of types of arguments.
    functions : bytes
        The pickled functions. They can be loaded once the modules are imported.
    """

    cc: ComputeCapability
    modules: tuple[str, ...]
    functions: bytes

    @classmethod
    def of(cls, cc: ComputeCapability, functions: Sequence[Named]) -> Job:
        """Return the job of functions with equal content."""
        classes = (
            getattr(t, "instance_class", None) for _, _, ts in functions for t in ts
        )
        names = {module for module, _, _ in functions}
        names |= {made.__module__ for made in classes if made is not None}
        files = (str(sys.modules[name].__file__) for name in sorted(names))
        return cls(cc, tuple(files), pickle.dumps(functions))

    def run(self) -> None:
        """Compile one of the functions, and store its code for all."""
        for path in map(Path, self.modules):
            # Without "_" and the 32 digits of the digest.
            module = load_module(_Stored(path.read_text("utf-8"), path.stem[:-33]))
            _share_functions(module)
        found = [
            (getattr(sys.modules[module], name), types)
            for module, name, types in pickle.loads(self.functions)  # noqa: S301
        ]
        types = tuple(_SHARED.setdefault(_kind(t), t) for t in found[0][1])
        with dialect.storing_for(self.cc):
            dialect.compile_for_all(found, types)


class JobsByContent:
    """Groups of functions with equal content."""

    def __init__(self) -> None:
        #: Content and kinds of arguments -> functions, as keys.
        self._groups: dict[Any, dict[Named, None]] = {}

    def add(self, function: Any, types: tuple[Any, ...]) -> None:
        """Add a kernel of a generated module, for some types of arguments."""
        kinds = *map(_kind, types), repr(sorted(function.targetoptions.items()))
        group = self._groups.setdefault((_content(function), kinds), {})
        plain = function.py_func
        group[plain.__module__, plain.__qualname__, types] = None

    @property
    def functions(self) -> list[Named]:
        """All functions."""
        return [one for group in self._groups.values() for one in group]

    def jobs(self, cc: ComputeCapability) -> list[Job]:
        """Return the jobs that compile and store all functions for a GPU."""
        return [Job.of(cc, list(group)) for group in self._groups.values()]


class _Stored(NamedTuple):
    """A module in the store, whose file name ends with a digest."""

    text: str
    stem: str
    program: str = ""


#: Content -> a device function of this process, and kind -> a type of an argument. The
#: dialect compiles a device function once for the same types.
_SHARED: dict[Any, Any] = {}


def _share_functions(module: ModuleType) -> None:
    """Replace device functions of a module by those of others with equal content."""
    for name, value in vars(module).items():
        if getattr(value, "targetoptions", {}).get("device"):
            vars(module)[name] = _SHARED.setdefault(_content(value), value)


def _content(function: Any) -> Any:
    """Return code, constants and callees of a function of a generated module.

    Lines of the code are left out. Functions of other modules, and other objects, stand
    for themselves.
    """
    plain = getattr(function, "py_func", None)
    if plain is None:
        is_constant = not (callable(function) or isinstance(function, ModuleType))
        return repr(function) if is_constant else function
    if plain.__module__.startswith("featgraph."):
        return plain
    code, within = plain.__code__, plain.__globals__
    called = (_content(within[name]) for name in code.co_names if name in within)
    return code.co_code, repr(code.co_consts), code.co_names, code.co_varnames, *called


def _kind(argument: Any) -> Any:
    """Return the type of an argument; of a namedtuple, names and types of its fields.

    Its class is that of the module, which other modules with equal functions lack.
    """
    is_data = hasattr(argument, "instance_class")
    return (argument.fields, argument.types) if is_data else argument
