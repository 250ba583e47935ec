"""Operations that user functions call: names, docstrings and semantics.

The body of an operation is its definition: it computes the results of all features of a
vertex or edge from their operands, for the interpreter. The folder prints kernels that
compute the same (`fold/operations`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import UserFunctionError
from featgraph.program.source import FunctionSource, parse_function

__all__ = [
    "SEMIRINGS",
    "Collaborative",
    "Gives",
    "Nothing",
    "Operation",
    "all_features",
    "any_feature",
    "argmax",
    "atomic",
    "broadcast",
    "collaborative",
    "dot",
    "feature_max",
    "feature_min",
    "feature_sum",
    "interpreting",
    "inverse",
    "is_twin",
    "log_normalize",
    "logsumexp",
    "matvec",
    "norm",
    "normalize",
    "nothing",
    "operation",
    "outer",
    "reverse",
    "softmax",
    "solve",
]

Handler = Callable[["Operation", tuple[Any, ...], dict[str, Any]], Any]
_handler: ContextVar[Handler | None] = ContextVar("featgraph_handler", default=None)

#: The type of a result: a fixed one, that of the first operand ("operand"), or that
#: with integers and truth values widened to 64 bits ("number").
Gives = Literal["bool", "int64", "real", "edge", "operand", "number"]


@contextmanager
def interpreting(handler: Handler) -> Iterator[None]:
    """Evaluate each call of an `Operation` by ``handler(operation, args, kwargs)``."""
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)


class Operation:
    """A primitive operation of the programming model.

    Parameters
    ----------
    name : str
        Its name in `featgraph`.
    parameters : tuple of str
        Positional parameters.
    options : tuple of str
        Keyword parameters, the same for all features.
    gives : str
        Type of the result.
    matrix : str
        The parameter that is a k x k matrix; "" if none is.
    meaning : callable or None
        Defines the result of the lanes of a vertex or edge together: it takes the
        values of all features for each parameter, or the matrix, and the options, and
        returns the result of each feature. None if lanes do not work together.
    doc : str
        Docstring.
    """

    def __init__(
        self,
        name: str,
        parameters: tuple[str, ...],
        options: tuple[str, ...] = (),
        *,
        gives: Gives = "real",
        matrix: str = "",
        meaning: Callable[..., list[Any]] | None = None,
        doc: str | None = None,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.options = options
        self.gives = gives
        self.matrix = matrix
        self.meaning = meaning
        self.__name__ = name
        self.__doc__ = doc

    @property
    def collaborative(self) -> bool:
        """Whether all lanes of a vertex or edge take part."""
        return self.meaning is not None

    def __repr__(self) -> str:
        return f"<featgraph.{self.name}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of syntax trees refer to the same object

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler of `interpreting`."""
        handler = _handler.get()
        if handler is None:
            raise UserFunctionError(
                f"{self.name} was called outside a running superstep",
                where=f"featgraph.{self.name}",
                fix="call it inside a function given to fg.foldmap",
            )
        return handler(self, args, kwargs)


def operation(
    gives: Gives, matrix: str = ""
) -> Callable[[Callable[..., list[Any]]], Operation]:
    """Declare a collaborative operation by its definition.

    Its parameters without a default are operands, the others options.
    """

    def declare(meaning: Callable[..., list[Any]]) -> Operation:
        given = inspect.signature(meaning).parameters.values()
        return Operation(
            meaning.__name__,
            tuple(p.name for p in given if p.default is p.empty),
            tuple(p.name for p in given if p.default is not p.empty),
            gives=gives,
            matrix=matrix,
            meaning=meaning,
            doc=meaning.__doc__,
        )

    return declare


class Collaborative:
    """A collaborative operation written in terms of the primitive ones.

    See `collaborative`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.source: FunctionSource = parse_function(function, defaults=True)
        self.name: str = self.source.name
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.defaults: tuple[Any, ...] = function.__defaults__ or ()

    def __repr__(self) -> str:
        return f"<featgraph collaborative operation {self.name}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of syntax trees refer to the same object

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function."""
        return self.function(*args, **kwargs)


def collaborative(function: Callable[..., Any]) -> Collaborative:
    """Declare a collaborative operation.

    The function takes values of the lane's feature and may call every collaborative
    operation. Its body is assignments and one final ``return``; parameters with a
    default take constants only. It is inlined wherever it is called.

    Parameters
    ----------
    function : callable
        For example ``def standardize(x): return x - fg.feature_sum(x) / ...``.

    Returns
    -------
    Collaborative
        Callable inside folded functions and other collaborative operations.

    Raises
    ------
    UserFunctionError
        If the source cannot be read or the signature is not plain.

    Examples
    --------
    >>> import featgraph as fg
    >>> @fg.collaborative
    ... def standardize(x):
    ...     deviation = x - fg.feature_sum(x) / fg.feature_sum(1.0)
    ...     return deviation / fg.norm(deviation)
    """
    return Collaborative(function)


#: Values of an operand, one for each feature; and a k x k matrix.
Values = list[Any]
Matrix = npt.NDArray[np.float64]


class Nothing:
    """The value that a gather returns for an edge that contributes nothing."""

    def __repr__(self) -> str:
        return "featgraph.nothing"


nothing = Nothing()


# Reductions over features


def _in_groups(
    combine: Callable[[Values], Any], values: Values, group: int | None
) -> Values:
    """Combine the values of each group; return the result of each feature's group."""
    size = group or len(values)
    if len(values) % size:
        raise UserFunctionError(
            "the groups do not divide the features",
            got=f"group={group}",
            expected=f"a divisor of K = {len(values)}",
        )
    answers: Values = []
    for start in range(0, len(values), size):
        answers += [combine(values[start : start + size])] * size
    return answers


def _numbers(values: Values) -> Values:
    """Return values with True and False as 1 and 0."""
    return [int(value) if isinstance(value, bool) else value for value in values]


@operation(gives="bool")
def any_feature(condition: Values, group: int | None = None) -> Values:
    """Whether `condition` holds for any feature (of the group)."""
    return _in_groups(any, condition, group)


@operation(gives="bool")
def all_features(condition: Values, group: int | None = None) -> Values:
    """Whether `condition` holds for all features (of the group)."""
    return _in_groups(all, condition, group)


@operation(gives="number")
def feature_sum(x: Values, group: int | None = None) -> Values:
    """Sum of `x` over the features."""
    return _in_groups(np.sum, _numbers(x), group)


@operation(gives="operand")
def feature_max(x: Values, group: int | None = None) -> Values:
    """Largest `x` over the features."""
    return _in_groups(np.max, _numbers(x), group)


@operation(gives="operand")
def feature_min(x: Values, group: int | None = None) -> Values:
    """Smallest `x` over the features."""
    return _in_groups(np.min, _numbers(x), group)


# Selection


@operation(gives="int64")
def argmax(x: Values, group: int | None = None) -> Values:
    """Feature of the largest `x`; the smallest feature on ties.

    Counted from the start of the vertex's row, also with `group`.
    """
    within = _in_groups(np.argmax, _numbers(x), group)
    size = group or len(x)
    return [f // size * size + int(place) for f, place in enumerate(within)]


@operation(gives="operand")
def broadcast(x: Values, i: Values) -> Values:
    """`x` of feature `i`, for every feature."""
    for feature in i:
        if not 0 <= int(feature) < len(x):
            raise UserFunctionError(
                "broadcast of a feature that does not exist",
                got=int(feature),
                expected=f"0 <= i < K = {len(x)}",
            )
    return [x[int(feature)] for feature in i]


# Products of matrices

#: Values of ``matvec(..., semiring=)``: the sum of terms, and the product in a term.
SEMIRINGS = ("plus_times", "log_plus", "max_plus")


@operation(gives="real")
def outer(x: Values, y: Values) -> Values:
    """Matrix with entry [i, f] = x[i] * y[f]; index it, or give it to `matvec`."""
    return [np.outer(x, y).astype(np.float64)] * len(x)


@operation(gives="real", matrix="A")
def matvec(
    A: Matrix, x: Values, transpose: Any = False, semiring: str = "plus_times"
) -> Values:
    """Feature f of ``A @ x`` (of ``A.T @ x`` with ``transpose=True``).

    `transpose` may depend on the vertex or edge. ``semiring='log_plus'``: the logarithm
    of the sum of ``exp(A[f, i] + x[i])``, without overflow; -inf if all terms are -inf.
    ``'max_plus'``: the largest ``A[f, i] + x[i]``. Default: ``'plus_times'``.
    """
    vector = np.array(x, np.float64)
    matrix = A.T if transpose else A
    if semiring == "plus_times":
        return list(matrix @ vector)
    if semiring == "max_plus":
        return list((matrix + vector).max(axis=1))
    if semiring == "log_plus":
        return list(np.logaddexp.reduce(matrix + vector, axis=1))
    raise UserFunctionError(
        "semiring= must be the name of a semiring",
        got=repr(semiring),
        expected=", ".join(map(repr, SEMIRINGS)),
    )


# Systems


@operation(gives="real", matrix="A")
def solve(A: Matrix, b: Values, diagonal: Any = 0.0, spd: bool = False) -> Values:
    """Feature f of the x with ``(A + diagonal * I) @ x = b``.

    Partial pivoting; ``spd=True`` is for a symmetric positive definite A
    (Cholesky). A singular system gives inf or nan.
    """
    shifted = A + float(diagonal) * np.eye(len(b))
    try:
        return list(np.linalg.solve(shifted, np.array(b, np.float64)))
    except np.linalg.LinAlgError:
        return [math.nan] * len(b)


@operation(gives="real", matrix="A")
def inverse(A: Matrix, spd: bool = False) -> Values:
    """Inverse of a k x k matrix; index it with [i, f], or give it to `matvec`."""
    try:
        inverted = np.linalg.inv(A)
    except np.linalg.LinAlgError:
        inverted = np.full(A.shape, np.nan)
    return [inverted] * len(A)


# Edges

reverse = Operation(
    "reverse",
    ("e",),
    gives="edge",
    doc="The twin of edge `e` of an undirected graph; a self-loop is its own twin.",
)
is_twin = Operation(
    "is_twin",
    ("e",),
    gives="bool",
    doc=(
        "Whether edge `e` of an undirected graph is a twin: False for given edges, "
        "self-loops included."
    ),
)


class _Atomic:
    """Atomic updates of a property.

    ``fg.atomic.add(d.count, v, 1)``, ``fg.atomic.min(d.low, (v, f), x)``.

    Each takes the property as a whole, the index (or a tuple of indices) and the value,
    and returns the old value.
    """

    add = Operation("atomic.add", ("property", "index", "value"))
    min = Operation("atomic.min", ("property", "index", "value"))
    max = Operation("atomic.max", ("property", "index", "value"))


atomic = _Atomic()


# Operations written in terms of the primitive ones


@collaborative
def normalize(x, group=None):  # type: ignore[no-untyped-def]
    """Divide `x` by its sum over the features; a zero sum leaves zeros."""
    total = feature_sum(x, group=group)
    return x / total if total != 0.0 else 0.0


@collaborative
def softmax(x, group=None):  # type: ignore[no-untyped-def]
    """``exp(x)`` divided by its sum over the features, computed without overflow."""
    top = feature_max(x, group=group)
    raised = math.exp(x - top)
    return raised / feature_sum(raised, group=group)


@collaborative
def norm(x, group=None):  # type: ignore[no-untyped-def]
    """Euclidean norm of `x` over the features."""
    return math.sqrt(feature_sum(x * x, group=group))


@collaborative
def dot(x, y, group=None):  # type: ignore[no-untyped-def]
    """Sum of ``x * y`` over the features."""
    return feature_sum(x * y, group=group)


@collaborative
def logsumexp(x, group=None):  # type: ignore[no-untyped-def]
    """Logarithm of the sum of ``exp(x)`` over the features, without overflow.

    -inf where all are -inf, inf where one is; nan where one is nan.
    """
    top = feature_max(x, group=group)
    shift = top if abs(top) < math.inf else 0.0
    total = feature_sum(math.exp(x - shift), group=group)
    # The largest term is exp(0) = 1. If x is huge, it may be less, since the compiler
    # reorders the sums from which x is computed.
    bounded = 1.0 if total < 1.0 or total == math.inf else total
    return top + math.log(bounded)


@collaborative
def log_normalize(x, group=None):  # type: ignore[no-untyped-def]
    """``x - logsumexp(x)``: logarithms of weights become logarithms of probabilities.

    A row of -inf (all weights are zero) stays -inf. If an entry is inf, it becomes nan,
    and all others -inf. If an entry is nan, the whole row becomes nan.
    """
    top = feature_max(x, group=group)
    shift = top if abs(top) < math.inf else 0.0
    deviation = x - shift
    total = feature_sum(math.exp(deviation), group=group)
    is_off = total < 1.0 or (total == math.inf and top < math.inf)  # see logsumexp
    return deviation - math.log(1.0 if is_off else total)
