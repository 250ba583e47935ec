"""Combine operators: how the contributions to one vertex become one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import UserFunctionError
from featgraph.program.combines import CUSTOM, RULES, Rules
from featgraph.program.source import FunctionSource, parse_function, plain_function

__all__ = ["NO_SOURCE", "Combine", "as_combine", "combine", "identity_value"]

#: The source that ``argmin`` and ``argmax`` give where nothing contributed.
NO_SOURCE = -1


@dataclass(frozen=True)
class Combine:
    """An associative and commutative operator with its identity.

    Attributes
    ----------
    name : str
        Key of `combines.RULES`, or the name of the user's function.
    function : callable or None
        The user's ``(a, b) -> value``; None for the builtin ones.
    identity : float or int or bool or None
        Its identity; None for the builtin ones, whose identity depends on the dtype
        (`identity_value`).
    source : FunctionSource or None
        The parsed user function.
    """

    name: str
    function: Callable[..., Any] | None = None
    identity: Any = None
    source: FunctionSource | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # The syntax tree is made anew.
        if self.function is None:
            return Combine, (self.name,)
        return _make_again, (self.function, self.identity)

    @property
    def is_custom(self) -> bool:
        """Whether it is a function of the user's."""
        return self.function is not None

    @property
    def rules(self) -> Rules:
        """How it combines; a function of the user's may have any name."""
        return CUSTOM if self.is_custom else RULES[self.name]

    @property
    def pair(self) -> Any:
        """The combine of two plain values; None for argmin and argmax."""
        return self.function or self.rules.pair

    @property
    def is_called(self) -> bool:
        """Whether kernels call `pair`, and have no operation for it."""
        return not self.rules.atomic

    @property
    def is_arg(self) -> bool:
        """Whether it gives a key and its source."""
        return self.rules.is_arg


def combine(function: Callable[..., Any], *, identity: float) -> Combine:
    """Declare a combine for `fg.gather` and `fg.reduce`.

    Parameters
    ----------
    function : callable
        ``(a, b) -> value``, associative and commutative; the order in which it is
        applied is not defined.
    identity : float or int or bool
        ``function(identity, x) == x`` for every x.

    Raises
    ------
    UserFunctionError
        If the source cannot be read or the function does not take two parameters.

    Examples
    --------
    >>> import featgraph as fg
    >>> def hypotenuse(a, b):
    ...     return (a * a + b * b) ** 0.5
    >>> fg.combine(hypotenuse, identity=0.0).name
    'hypotenuse'
    """
    source = parse_function(function)
    if len(source.parameters) != 2:
        raise source.error(
            "a combine takes two values",
            got=f"({', '.join(source.parameters)})",
            expected="(a, b)",
        )
    plain = identity.item() if isinstance(identity, np.generic) else identity
    if not isinstance(plain, bool | int | float):
        raise source.error(
            "the identity of a combine is a number",
            got=repr(identity),
            expected="int, float or bool",
        )
    return Combine(source.name, plain_function(function), plain, source)


def _make_again(function: Callable[..., Any], identity: Any) -> Combine:
    return combine(function, identity=identity)


def as_combine(given: str | Combine, where: str) -> Combine:
    """Return the `Combine` that `given` names."""
    if isinstance(given, Combine):
        return given
    if not isinstance(given, str) or given not in RULES:
        raise UserFunctionError(
            "unknown combine",
            where=where,
            got=repr(given),
            expected=", ".join(RULES),
            fix="or make one with fg.combine(function, identity=...)",
        )
    return Combine(given)


def identity_value(operator: Combine, dtype: np.dtype[Any]) -> Any:
    """Return the identity of `operator` (argmin, argmax: of its key) as a number."""
    if operator.is_custom:
        return operator.identity
    neutral, least = operator.rules.neutral, operator.rules.order == "min"
    if neutral is not None:
        return neutral if operator.rules.gives == "bool" else dtype.type(neutral).item()
    if dtype.kind == "f":
        return float("inf") if least else float("-inf")
    if dtype.kind == "b":
        return least
    limits = np.iinfo(dtype)
    return int(limits.max if least else limits.min)
