"""Combines: their table, with the implementation on every target and between ranks.

A combine is an entry of `RULES`. An entry with no more than `pair` and `neutral` runs
everywhere as a user's combine does: kernels call `pair`, compiled, in compare-and-swap
loops and on values from shared memory, and ranks gather their results. Other attributes
name faster implementations: functions of `featgraph.device` (`cpu`, `memory`, `warp`),
and of engines. `CUSTOM` has the rules of all combines of users.

`combine` declares a user's combine; `Combine` is the combine of a gather or reduce.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import UserFunctionError
from featgraph.program.source import FunctionSource, parse_function, plain_function

__all__ = [
    "CUSTOM",
    "NO_SOURCE",
    "NUMBERS",
    "RULES",
    "SELECTIVE",
    "Combine",
    "Rules",
    "as_combine",
    "combine",
    "identity_value",
    "require_integers",
]


#: Kinds of numbers that functions contribute.
NUMBERS = ("truth values", "integers", "reals")


@dataclass(frozen=True)
class Rules:
    """The implementation of a combine.

    Attributes
    ----------
    pair : callable or None
        The combine of two plain values; None for argmin, argmax and the user's. If
        there is no `atomic`, it is a function in the language of user functions.
    neutral : object
        Its identity; None if the identity is the largest (smallest) value of a type,
        for ``order="min"`` ("max").
    final : object
        A result that no contribution changes; None if there is none.
    order : str
        "min" or "max" if it compares contributions, else "".
    is_arg : bool
        Whether the result is a key with its source.
    takes : tuple of str
        Kinds of numbers that it combines, of `NUMBERS`; others are refused.
    selects : bool
        Whether the result is one of the contributions, and repeating one changes
        nothing. Therefore it does not round (`rounds`), gathers may have
        ``first=True``, and asynchronous and incremental runs may combine a contribution
        again.
    in_blocks : bool
        Whether many real numbers are combined in blocks, for the accuracy of sums.
    gives : str
        Type of the result: "bool" for votes; "int64" if integers are combined in that
        type; "" for the type of the contributions.
    update : str
        Statement that combines ``{1}`` into ``{0}``; "" calls `pair`.
    rows : str
        NumPy expression that combines all rows of ``partials``, except for sums of real
        numbers; "" if they are combined one by one.
    atomic : str
        Atomic function of ``cpu`` and ``warp``, without its prefix; "" calls `pair` in
        a compare-and-swap loop.
    shuffle : str
        Function of ``warp`` over lanes, without its prefix ``edge_lane_``; "" if lanes
        of several edges exchange values through shared memory instead.
    by_fours : bool
        Whether lanes combine four values with as many shuffles as two.
    exchange : str
        Operator of `Engine.all_reduce`, and of windows; "" if ranks gather results and
        each applies `pair` in their order.
    tree : numpy.ufunc or None
        Combines nodes of fixed trees, which ``deterministic=True`` needs for real
        numbers that round; None if it is refused on several ranks.
        `runtime.devices.cuda_trees` has addition and multiplication.
    patch : str
        How an incremental result is updated if a contribution changes: by the
        "difference" or the "quotient" of new and old one; or, for an "extremum", by
        combining the new one, unless it retreats. "" if it is computed again.
    """

    pair: Callable[[Any, Any], Any] | None = None
    neutral: Any = None
    final: Any = None
    order: str = ""
    is_arg: bool = False
    takes: tuple[str, ...] = NUMBERS
    selects: bool = False
    in_blocks: bool = False
    gives: str = ""
    update: str = ""
    rows: str = ""
    atomic: str = ""
    shuffle: str = ""
    by_fours: bool = False
    exchange: str = ""
    tree: Any = None
    patch: str = ""

    @property
    def is_sum(self) -> bool:
        """Whether it adds contributions."""
        return self.patch == "difference"

    @property
    def rounds(self) -> bool:
        """Whether a real result depends on the order of contributions.

        It does not if the result is one of the contributions.
        """
        return not self.selects


def _either(a: Any, b: Any) -> bool:
    return bool(a) or bool(b)


def _both(a: Any, b: Any) -> bool:
    return bool(a) and bool(b)


RULES = {
    "sum": Rules(
        operator.add,
        neutral=0,
        in_blocks=True,
        gives="int64",
        update="{0} += {1}",
        rows="partials.sum(axis=0)",
        atomic="add",
        shuffle="sum",
        by_fours=True,
        exchange="sum",
        tree=np.add,
        patch="difference",
    ),
    "min": Rules(
        min,
        order="min",
        selects=True,
        update="{0} = min({0}, {1})",
        rows="partials[partials.argmin(axis=0), np.arange(partials.shape[1])]",
        atomic="min",
        shuffle="min",
        by_fours=True,
        exchange="min",
        patch="extremum",
    ),
    "max": Rules(
        max,
        order="max",
        selects=True,
        update="{0} = max({0}, {1})",
        rows="partials[partials.argmax(axis=0), np.arange(partials.shape[1])]",
        atomic="max",
        shuffle="max",
        by_fours=True,
        exchange="max",
        patch="extremum",
    ),
    "product": Rules(
        operator.mul,
        neutral=1,
        gives="int64",
        update="{0} *= {1}",
        atomic="product",
        shuffle="product",
        by_fours=True,
        exchange="product",
        tree=np.multiply,
        patch="quotient",
    ),
    "any": Rules(
        _either,
        neutral=False,
        final=True,
        selects=True,
        gives="bool",
        update="{0} |= {1}",
        rows="(partials != 0).any(axis=0)",
        atomic="or",
        shuffle="any",
        exchange="or",
        patch="extremum",
    ),
    "all": Rules(
        _both,
        neutral=True,
        final=False,
        selects=True,
        gives="bool",
        update="{0} &= {1}",
        rows="(partials != 0).all(axis=0)",
        atomic="min",  # of truth values, which are 0 and 1
        shuffle="all",
        exchange="and",
    ),
    # Atomics take keys packed with their sources: the smaller number is the better pair
    # of both (`device/ordering.py`).
    "argmin": Rules(
        order="min", is_arg=True, selects=True, atomic="min", shuffle="argmin"
    ),
    "argmax": Rules(
        order="max", is_arg=True, selects=True, atomic="min", shuffle="argmax"
    ),
}

#: Rules of a user's combine; as it may be a sum, it is computed in blocks, and integers
#: in int64.
CUSTOM = Rules(in_blocks=True, gives="int64")

#: Names of combines whose result is one of the contributions.
SELECTIVE = tuple(name for name, rules in RULES.items() if rules.selects)


#: The result ``into_source`` of ``argmin`` and ``argmax`` if no edge contributed.
NO_SOURCE = -1


@dataclass(frozen=True)
class Combine:
    """An associative and commutative operator with its identity.

    Attributes
    ----------
    name : str
        Key of `RULES`, or the name of the user's function.
    function : callable or None
        The user's ``(a, b) -> value``; None for built-in ones.
    identity : float or int or bool or None
        Its identity; None for built-in ones, whose identity depends on the dtype
        (`identity_value`).
    source : FunctionSource or None
        The parsed user function.
    """

    name: str
    function: Callable[..., Any] | None = None
    identity: Any = None
    source: FunctionSource | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling parses the function again: syntax trees are not pickled.
        if self.function is None:
            return Combine, (self.name,)
        return _make_again, (self.function, self.identity)

    @property
    def is_custom(self) -> bool:
        """Whether it is a function of the user."""
        return self.function is not None

    @property
    def rules(self) -> Rules:
        """Its implementation; a function of the user may have any name."""
        return CUSTOM if self.is_custom else RULES[self.name]

    @property
    def pair(self) -> Any:
        """The combine of two plain values; None for argmin and argmax."""
        return self.function or self.rules.pair

    @property
    def is_called(self) -> bool:
        """Whether kernels call `pair`: there is no atomic operation for it."""
        return not self.rules.atomic

    @property
    def is_arg(self) -> bool:
        """Whether the result is a key with its source."""
        return self.rules.is_arg

    def require_numbers(self, type_: str, source: FunctionSource) -> None:
        """Raise UserFunctionError unless it combines numbers of the type `type_`."""
        kinds = {"bool": "truth values", "real": "reals"}
        kind, takes = kinds.get(type_, "integers"), self.rules.takes
        if kind not in takes:
            raise source.error(
                f"the combine {self.name!r} does not take these numbers",
                got=f"{kind} ({type_})",
                expected=" or ".join(takes),
                fix=f"return {takes[-1]}, or use another combine",
            )


def require_integers(combine: Combine, returned: str, source: FunctionSource) -> None:
    """Raise UserFunctionError if a reduce of integers has a combine of reals.

    `returned` is the type that the combine returns for integers.
    """
    identity = combine.identity
    if isinstance(identity, float):
        fits = identity.is_integer() and -(2.0**63) <= identity < 2.0**63
        returned = returned if fits else "real"
    if returned == "real":
        raise source.error(
            f"the combine {combine.name!r} makes real numbers of integers",
            got=f"integers, with the identity {identity}",
            expected="reals, in a reduce by this combine",
            fix="return float(...), or combine with an integer identity and result",
        )


def combine(function: Callable[..., Any], *, identity: float) -> Combine:
    """Declare a combine for `fg.gather` and `fg.reduce`.

    Parameters
    ----------
    function : callable
        ``(a, b) -> value``, associative and commutative; the order in which it is
        applied is not defined. Integers and truth values are combined in int64.
    identity : float or int or bool
        ``function(identity, x) == x`` for every x. With a float, which may be infinite
        or NaN, the result of a gather is real.

    Raises
    ------
    UserFunctionError
        If the source cannot be read, the function does not take two parameters, or the
        identity is no number, or an integer that does not fit int64.

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
    if isinstance(plain, int) and not -(2**63) <= plain < 2**63:
        raise source.error(
            "the identity of a combine does not fit int64",
            got=plain,
            expected="an integer of 64 bits, or a real number",
            fix="give a float, such as -math.inf, or the least integer of int64",
        )
    return Combine(source.name, plain_function(function), plain, source)


def _make_again(function: Callable[..., Any], identity: Any) -> Combine:
    return combine(function, identity=identity)


def as_combine(given: str | Combine, where: str) -> Combine:
    """Return a combine from its built-in name, or unchanged."""
    if isinstance(given, Combine):
        return given
    if not isinstance(given, str) or given not in RULES:
        raise UserFunctionError(
            "unknown combine",
            where=where,
            got=repr(given),
            expected=", ".join(RULES),
            fix="name one of these, or make one: fg.combine(function, identity=...)",
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
