"""What a checkpoint is of: digests of arguments, programs and options."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from featgraph.base.errors import StateError
from featgraph.graph import Graph
from featgraph.program.active import ActiveSet
from featgraph.program.state import State
from featgraph.runtime.loops.stopping import StoppingTest
from featgraph.runtime.superstep.foldmap import FoldMap, as_active

__all__ = ["argument_digests", "iterate_identity", "refuse_other"]

#: Options that may be others when a run is gone on with: where it runs, how far, what
#: is told of it, and in which form ranks send rows.
_FREE = frozenset({"target", "max_supersteps", "progress", "callback", "exchange"})

#: Arguments that stand for random numbers; None for others in each call.
_SEEDS = frozenset({"seed", "random_state"})


def argument_digests(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, str]:
    """Return a digest of each argument of a call, but of those that may change."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name)
    if given.get("samples", True) is not None:  # else nothing is drawn
        for name in _SEEDS & given.keys():
            if given[name] is None:
                given[name] = secrets.token_bytes(8)  # the next call draws anew
    return {n: _digest(value) for n, value in given.items() if n not in _FREE}


def _digest(value: Any) -> str:
    found = hashlib.blake2b(digest_size=16)
    _add(found, value)
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    """Add a value to a digest, by its content."""

    def say(*parts: object) -> None:
        found.update(repr(parts).encode())

    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        say(type(value).__name__, value)
    elif isinstance(value, Graph):
        say("graph", value.digest, value.weights_digest)
    elif isinstance(value, np.random.Generator):
        say("generator", value.bit_generator.state)
    elif isinstance(value, np.dtype | type):
        say("type", str(value))
    elif isinstance(value, ActiveSet):
        _add(found, value.words)
    elif isinstance(value, os.PathLike):
        say("path", os.fspath(value))
    elif isinstance(value, np.generic):
        say(value.dtype.name, value.item())
    elif isinstance(value, Mapping):
        say("mapping", len(value))
        for key in value:
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, list | tuple) and not _is_numbers(value):
        say("sequence", len(value))
        for item in value:
            _add(found, item)
    elif callable(value):
        say("function")  # what is called behind supersteps may change
    elif hasattr(value, "tocoo"):  # scipy.sparse
        rows = value.tocoo()
        for part in (np.asarray(rows.shape), *rows.coords, rows.data):
            _add(found, part)
    elif dataclasses.is_dataclass(value):
        _add(found, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    else:
        _add_array(found, value)


def _is_numbers(values: Sequence[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)


def _add_array(found: Any, value: Any) -> None:
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    elif hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
        value = value.get()  # of CuPy
    elif hasattr(value, "detach"):
        value = value.detach().cpu()
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.partition(".")[0] == "networkx":
        found.update(name.encode())  # the graph that is made of it has a digest
        return
    array = np.asarray(value)
    if array.dtype != object:
        found.update(f"{array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    elif array.ndim:
        _add(found, array.ravel().tolist())
    else:
        found.update(name.encode())
        _add(found, getattr(value, "__dict__", {}))


def iterate_identity(
    foldmaps: Sequence[FoldMap], state: State, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a run of foldmaps is, beside the values it begins with."""
    options = {
        name: repr(value)
        for name, value in asked.items()
        if name not in _FREE and not (callable(value) and not _is_test(value))
    }
    return {
        "graph": state.graph.digest,
        "programs": [_program(foldmap, state) for foldmap in foldmaps],
        "options": dict(sorted(options.items())),
        "properties": {n: type_.describe() for n, type_ in state.signature.items()},
    }


def _is_test(value: Any) -> bool:
    return isinstance(value, StoppingTest)


def _program(foldmap: FoldMap, state: State) -> str:
    if foldmap.vertices is None:
        return foldmap.program.digest
    words = as_active(foldmap.vertices, state).words
    return f"{foldmap.program.digest} on {_digest(words)}"


#: What differs, for people.
_CALLED = {
    "function": "another function",
    "arguments": "other arguments",
    "graph": "another graph",
    "programs": "other functions, or vertices that they run on",
    "options": "other options",
    "properties": "other properties",
    "first": "other values to begin with",
}


def refuse_other(where: str, told: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """See that a checkpoint is of what is called now.

    Raises
    ------
    StateError
        If not; it says what differs.
    """
    for key, what in _CALLED.items():
        before, given = told.get(key), now.get(key)
        if key not in now or before == given:
            continue
        got, expected = given, before
        if isinstance(before, dict) and isinstance(given, dict):
            names = [n for n in {**before, **given} if before.get(n) != given.get(n)]
            what += f": {', '.join(names)}"
            got = {n: given.get(n, "not given") for n in names}
            expected = {n: before.get(n, "not given") for n in names}
        raise StateError(
            f"the checkpoint is of {what}",
            where=where,
            got=f"{got!s:.300}",
            expected=f"{expected!s:.300}",
            fix="to begin anew, give another folder as checkpoint=, or remove this one",
        )
