"""A program: the functions of a foldmap in order, with their captured values.

Values of free names are read once, when the foldmap is declared, so that later
assignments do not change compiled kernels. The digest of a program identifies it in
caches and saved States.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, field
from featgraph.base.errors import UserFunctionError
from featgraph.program.functions import GatherFunction, ReduceFunction, UserFunction
from featgraph.program.operations import Collaborative
from featgraph.program.source import (
    FunctionSource,
    captured_value,
    parse_function,
    plain_function,
)

__all__ = ["Program"]

_UNKNOWN = object()

#: Helper -> its source, for all programs that call it.
_parsed: weakref.WeakKeyDictionary[Callable[..., Any], FunctionSource] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False)
class Program:
    """User functions in the order in which they run, with their captured names frozen.

    Attributes
    ----------
    functions : tuple of UserFunction
        In order.
    captured : dict
        For each function and helper (by its plain Python function): free name -> value
        at the time when the foldmap was declared.
    helpers : dict
        Plain Python function -> its parsed source, for the functions that the user
        functions call.
    """

    functions: tuple[UserFunction, ...]
    captured: dict[Callable[..., Any], dict[str, Any]] = field(default_factory=dict)
    helpers: dict[Callable[..., Any], FunctionSource] = field(default_factory=dict)

    @classmethod
    def declare(cls, functions: Sequence[Any]) -> Program:
        """Check `functions` against each other, and freeze their captured values.

        Raises
        ------
        UserFunctionError
            If a function is not declared by a decorator of featgraph, or two functions
            have results of the same name.
        """
        if not functions:
            raise UserFunctionError(
                "a foldmap needs at least one function", where="fg.foldmap()"
            )
        for function in functions:
            if not isinstance(function, UserFunction):
                raise UserFunctionError(
                    "not a declared function",
                    where="fg.foldmap",
                    got=getattr(function, "__name__", repr(function)),
                    expected=(
                        "functions decorated with @fg.vertex, @fg.gather, @fg.edge, "
                        "@fg.triangle or @fg.reduce"
                    ),
                )
        _refuse_shared_into(functions)
        _refuse_beside_exclusive(functions)
        program = cls(tuple(functions))
        for function in functions:
            program._freeze(function.function, function.source)
            combine = getattr(function, "combine", None)
            if combine is not None and combine.source is not None:
                program._freeze(combine.function, combine.source)
        return program

    @cached_property
    def digest(self) -> str:
        """Hash of the functions' text and their captured values.

        It is equal in every process, and independent of the file of the functions.
        """
        # The number changes with the form of `_parts`: old digests then match none.
        found = hashlib.blake2b(b"featgraph program 1", digest_size=16)
        for part in self._parts():
            # With its length: parts that are split elsewhere have another digest.
            found.update(f"{len(part)}:{part}".encode())
        return found.hexdigest()

    def _parts(self) -> Iterator[str]:
        waiting: list[tuple[Any, FunctionSource]] = []
        for function in self.functions:
            waiting.append((function.function, function.source))
            yield f"{function.kind} {function.settings()}"
            combine = getattr(function, "combine", None)
            if combine is not None and combine.source is not None:
                waiting.append((combine.function, combine.source))
                yield repr(combine.identity)
        seen = set()
        for function, source in waiting:  # grows within the loop
            if function in seen:
                continue
            seen.add(function)
            yield source.text
            for name, value in sorted(self.captured.get(function, {}).items()):
                plain = plain_function(value)
                if isinstance(value, Collaborative):
                    waiting.append((value.function, value.source))
                elif plain in self.helpers:
                    waiting.append((plain, self.helpers[plain]))
                yield f"{name} = {_describe(value)}"

    def captured_by(self, function: Any, source: FunctionSource) -> dict[str, Any]:
        """Return the captured values of `function`.

        A function reached through a module (``fg.norm``) is frozen on first use.
        """
        self._freeze(function, source)
        return self.captured[function]

    def helper(self, function: Callable[..., Any]) -> FunctionSource:
        """Return the parsed source of a helper."""
        if function not in self.helpers:
            if function not in _parsed:
                _parsed[function] = parse_function(function)
            self.helpers[function] = _parsed[function]
        return self.helpers[function]

    def _freeze(self, function: Callable[..., Any], source: FunctionSource) -> None:
        if function in self.captured:
            return
        names: dict[str, Any] = {}
        self.captured[function] = names
        for name in source.free_names:
            try:
                names[name] = captured_value(function, name)
            except KeyError:
                # an unknown name is reported with its line when the function is lowered
                continue
        for dotted in source.dotted_names:
            root, *path = dotted.split(".")
            value = names.get(root, _UNKNOWN)
            for attribute in path:
                value = getattr(value, attribute, _UNKNOWN)
            if root in names and value is not _UNKNOWN:
                names[dotted] = value
        for value in list(names.values()):
            plain = plain_function(value)
            if isinstance(value, Collaborative):
                self._freeze(value.function, value.source)
            elif isinstance(plain, FunctionType):
                self._freeze(plain, self.helper(plain))


def _describe(value: Any) -> str:
    """Return a text of a captured value that is the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.generic | np.ndarray):
        return f"{value.dtype} {value.shape} {value.tolist()!r}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_describe, value))})"
    name = getattr(plain_function(value), "__name__", "")
    return f"{type(value).__qualname__} {name}"


def _refuse_shared_into(functions: Sequence[UserFunction]) -> None:
    """Raise UserFunctionError if two functions have results of the same name."""
    seen: dict[str, UserFunction] = {}
    for function in functions:
        if not isinstance(function, GatherFunction | ReduceFunction):
            continue
        names = [function.into]
        if function.combine.is_arg:
            names.append(f"{function.into}_source")
        for name in names:
            if seen.get(name, function) is not function:
                raise function.source.error(
                    f"{name!r} is filled by another function of this foldmap",
                    got=seen[name].name,
                    fix="give one of them another into",
                )
            seen[name] = function


def _refuse_beside_exclusive(functions: Sequence[UserFunction]) -> None:
    """Refuse another function on edges or triangles beside an exclusive one (S11)."""
    found = [f for f in functions if f.kind.exclusive]
    for one, other in ((one, other) for one in found for other in functions):
        if other is not one and (other.kind.writes_edges or other.kind.intersects):
            raise other.source.error(
                "an exclusive function is the only one on edges of its foldmap",
                got=f"{one.name}, which is exclusive, and {other.name}",
                expected="vertex functions, gathers and reduces beside it",
                fix="make two foldmaps",
            )
