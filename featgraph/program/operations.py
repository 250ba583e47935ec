"""Operations that user functions call.

They are markers that the folder recognises by identity. Called outside a folded
function they ask the interpreter that is running (`reference/`), and are an error where
none is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from featgraph.errors import UserFunctionError
from featgraph.program.source import FunctionSource, parse_function

__all__ = [
    "SEMIRINGS",
    "Collaborative",
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
    "outer",
    "reverse",
    "softmax",
    "solve",
]

Handler = Callable[["Operation", tuple[Any, ...], dict[str, Any]], Any]
_handler: ContextVar[Handler | None] = ContextVar("featgraph_handler", default=None)


@contextmanager
def interpreting(handler: Handler) -> Iterator[None]:
    """Answer each call of an `Operation` with ``handler(operation, args, kwargs)``."""
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
        Keyword parameters whose values are constants.
    collaborative : bool
        Whether all lanes of a vertex or edge take part.
    """

    def __init__(
        self,
        name: str,
        parameters: tuple[str, ...],
        options: tuple[str, ...] = (),
        *,
        collaborative: bool = True,
        doc: str = "",
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.options = options
        self.collaborative = collaborative
        self.__name__ = name
        self.__doc__ = doc

    def __repr__(self) -> str:
        return f"<featgraph.{self.name}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # syntax trees that hold it are copied; it is known by identity

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        handler = _handler.get()
        if handler is None:
            raise UserFunctionError(
                f"{self.name} was called outside a running superstep",
                where=f"featgraph.{self.name}",
                fix="call it inside a function given to fg.foldmap",
            )
        return handler(self, args, kwargs)


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
        return self  # syntax trees that hold it are copied; it is known by identity

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
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


class Nothing:
    """What a gather returns for an edge that contributes nothing."""

    def __repr__(self) -> str:
        return "featgraph.nothing"


nothing = Nothing()

any_feature = Operation(
    "any_feature",
    ("condition",),
    ("group",),
    doc="Whether `condition` holds for any feature (of the group).",
)
all_features = Operation(
    "all_features",
    ("condition",),
    ("group",),
    doc="Whether `condition` holds for all features (of the group).",
)
feature_sum = Operation(
    "feature_sum", ("x",), ("group",), doc="Sum of `x` over the features."
)
feature_max = Operation(
    "feature_max", ("x",), ("group",), doc="Largest `x` over the features."
)
feature_min = Operation(
    "feature_min", ("x",), ("group",), doc="Smallest `x` over the features."
)
argmax = Operation(
    "argmax",
    ("x",),
    ("group",),
    doc=(
        "Feature of the largest `x`; the smallest feature on ties. Counted from the "
        "start of the vertex's row, also with `group`."
    ),
)
broadcast = Operation(
    "broadcast", ("x", "i"), doc="`x` of feature `i`, for every feature."
)
#: What ``matvec(..., semiring=)`` may be: how terms are combined, and what they are.
SEMIRINGS = ("plus_times", "log_plus", "max_plus")
outer = Operation(
    "outer",
    ("x", "y"),
    doc=(
        "The k x k matrix with entry [i, f] = x[i] * y[f]; index it, or give it to "
        "`matvec`."
    ),
)
matvec = Operation(
    "matvec",
    ("A", "x"),
    ("transpose", "semiring"),
    doc=(
        "Feature f of ``A @ x`` (of ``A.T @ x`` with ``transpose=True``; the "
        "condition may depend on the vertex or edge). "
        "``semiring='log_plus'``: the logarithm of the sum of ``exp(A[f, i] + x[i])``, "
        "without overflow, -inf where all terms are; ``'max_plus'``: the largest "
        "``A[f, i] + x[i]``; default ``'plus_times'``."
    ),
)
solve = Operation(
    "solve",
    ("A", "b"),
    ("diagonal", "spd"),
    doc=(
        "Feature f of the x with ``(A + diagonal * I) @ x = b``. Partial pivoting; "
        "``spd=True`` says that A is symmetric positive "
        "definite (Cholesky). A singular system gives inf or nan."
    ),
)
inverse = Operation(
    "inverse",
    ("A",),
    ("spd",),
    doc="The inverse of a k x k matrix; index it with [i, f], or give it to `matvec`.",
)
reverse = Operation(
    "reverse",
    ("e",),
    collaborative=False,
    doc="The twin of edge `e` of an undirected graph; a self-loop is its own twin.",
)


is_twin = Operation(
    "is_twin",
    ("e",),
    collaborative=False,
    doc=(
        "Whether edge `e` of an undirected graph is the twin: False for the edge as "
        "given, also where it is a self-loop."
    ),
)


class _Atomic:
    """Atomic updates of a property.

    ``fg.atomic.add(d.count, v, 1)``, ``fg.atomic.min(d.low, (v, f), x)``.

    Each takes the property as a whole, the index (or a tuple of indices) and the value,
    and returns the old value.
    """

    add = Operation("atomic.add", ("property", "index", "value"), collaborative=False)
    min = Operation("atomic.min", ("property", "index", "value"), collaborative=False)
    max = Operation("atomic.max", ("property", "index", "value"), collaborative=False)


atomic = _Atomic()


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
    # One term is exp(0). Where x is huge it is not, once the compiler has reordered
    # sums that x is made of.
    bounded = 1.0 if total < 1.0 or total == math.inf else total
    return top + math.log(bounded)


@collaborative
def log_normalize(x, group=None):  # type: ignore[no-untyped-def]
    """``x - logsumexp(x)``: logarithms of weights become those of probabilities.

    A row of -inf, no weight at all, stays -inf. Beside inf all others become -inf, and
    inf itself nan; nan makes the whole row nan.
    """
    top = feature_max(x, group=group)
    shift = top if abs(top) < math.inf else 0.0
    deviation = x - shift
    total = feature_sum(math.exp(deviation), group=group)
    is_off = total < 1.0 or (total == math.inf and top < math.inf)  # see logsumexp
    return deviation - math.log(1.0 if is_off else total)
