"""What operations are: markers in user functions, and what they mean.

The folder recognises them by identity. Called outside a folded function they ask the
interpreter that is running (`reference/`), and are an error where none is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Self

from featgraph.base.errors import UserFunctionError
from featgraph.program.source import FunctionSource, parse_function

__all__ = [
    "Collaborative",
    "Gives",
    "Operation",
    "collaborative",
    "interpreting",
    "operation",
]

Handler = Callable[["Operation", tuple[Any, ...], dict[str, Any]], Any]
_handler: ContextVar[Handler | None] = ContextVar("featgraph_handler", default=None)

#: The type of a result: one of its own, that of the first operand ("operand"), or that
#: with integers of 64 bits, which truth values become, too ("number").
Gives = Literal["bool", "int64", "real", "edge", "operand", "number"]


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
        Keyword parameters, the same for all features.
    gives : str
        Type of the result.
    matrix : str
        The parameter that is a k x k matrix; "" if none is.
    meaning : callable or None
        What the lanes of a vertex or edge compute together: takes the value of each
        feature for each parameter, or the matrix, and the options that were given.
        Returns each feature's answer. None where lanes do not take part together.
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


def operation(
    gives: Gives, matrix: str = ""
) -> Callable[[Callable[..., list[Any]]], Operation]:
    """Declare a collaborative operation by its meaning.

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
