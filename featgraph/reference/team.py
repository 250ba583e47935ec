"""Runs of all features of one vertex or edge, synchronized at collaborative calls.

A function runs for each feature until it makes a collaborative call whose result is
not known yet. When all features have stopped at the same call, its results are
computed, and the function runs again from the start with them. Writes become visible
when all features have ended, except atomics, which are performed once.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field
from featgraph.base.errors import UserFunctionError
from featgraph.program.functions import UserFunction
from featgraph.program.operations import Operation, interpreting
from featgraph.reference.numbers import Integer, as_number

__all__ = ["Lane", "Team", "compute"]

Operands = list[dict[str, Any]]


def compute(operation: Operation, operands: Operands) -> list[Any]:
    """Return the result of a collaborative operation for each feature.

    Parameters
    ----------
    operation : Operation
    operands : list of dict
        For each feature, parameter or option name -> value. Options must be equal.

    Raises
    ------
    UserFunctionError
        If an option differs between features, or an operand does not fit K.
    """
    if operation.meaning is None:
        raise TypeError(f"{operation.name} is not a collaborative operation")
    options = {}
    for option in operation.options:
        given = [operand.get(option) for operand in operands]
        if any(value != given[0] for value in given):
            raise UserFunctionError(
                f"{option}= differs between the features",
                got=given,
                expected="one value",
            )
        if given[0] is not None:
            options[option] = given[0]
    values = {
        name: (_matrix if name == operation.matrix else _column)(operands, name)
        for name in operation.parameters
    }
    answers = operation.meaning(**values, **options)
    return [a if isinstance(a, np.ndarray) else as_number(a) for a in answers]


def _column(operands: Operands, name: str) -> list[Any]:
    values = [operand[name] for operand in operands]
    if any(isinstance(value, np.ndarray) for value in values):
        raise UserFunctionError(
            "a matrix where one value per feature is needed", got=f"operand {name}"
        )
    return [as_number(value) for value in values]


def _matrix(operands: Operands, name: str) -> npt.NDArray[Any]:
    """Return a matrix, which is the same for all features."""
    matrix = operands[0][name]
    k = len(operands)
    if not isinstance(matrix, np.ndarray) or matrix.shape != (k, k):
        raise UserFunctionError(
            "not a matrix of the width of the function",
            got=getattr(matrix, "shape", type(matrix).__name__),
            expected=f"({k}, {k}): a whole property, outer or inverse",
        )
    return matrix.astype(np.float64)


#: Place of one entry: (buffer, indices). The buffer of ``d.x_next`` is ``"x_next"``.
Place = tuple[str, tuple[int, ...]]


@dataclass
class Request:
    """A collaborative call that waits for its result."""

    operation: Operation
    operands: dict[str, Any]
    site: tuple[Any, ...]


class _Waits(BaseException):
    """Ends the run of one feature at a collaborative call; not an error."""


@dataclass
class Lane:
    """One feature's run of the function.

    Attributes
    ----------
    feature : int
        f.
    answers, old_values : list
        Results of the collaborative calls and the atomics of earlier runs, in order.
    writes : dict
        Writes of this run, visible to its own reads.
    reads : set
        Places that this run has read, of entries that functions can write.
    calls_made, updated : int
        Number of collaborative calls and of atomics in this run.
    request : Request or None
        The call at which the run has stopped.
    result : object
        The value that the function returned.
    """

    feature: int
    answers: list[Any] = field(default_factory=list)
    old_values: list[Any] = field(default_factory=list)
    writes: dict[Place, Any] = field(default_factory=dict)
    reads: set[Place] = field(default_factory=set)
    calls_made: int = 0
    updated: int = 0
    request: Request | None = None
    result: Any = None

    def begin(self) -> None:
        """Forget the last run, except its results."""
        self.writes.clear()
        self.reads.clear()
        self.calls_made = self.updated = 0
        self.request = None


@cache
def _position(code: CodeType, instruction: int) -> tuple[int | None, ...]:
    """Return the lines and columns of an instruction.

    Python copies the end of a function after each branch that leads there: one call of
    the source may occur as several instructions.
    """
    return next(itertools.islice(code.co_positions(), instruction // 2, None))


class Team:
    """The lanes of one vertex or edge.

    Parameters
    ----------
    function : UserFunction
        Named in errors.
    width : int
        K.
    do : callable
        ``do(operation, args)`` performs atomics, ``reverse`` and ``is_twin``.
    """

    def __init__(
        self,
        function: UserFunction,
        width: int,
        do: Callable[[Operation, tuple[Any, ...]], Any],
    ) -> None:
        self.function = function
        self.width = width
        self.do = do
        self.lanes: list[Lane] = []
        self.lane = Lane(0)

    def run(self, call: Callable[[Any], Any]) -> list[Any]:
        """Return the results of ``call(f)`` for every feature."""
        self.lanes = [Lane(feature) for feature in range(self.width)]
        with interpreting(self._handle):
            while True:
                for lane in self.lanes:
                    self._advance(lane, call)
                if all(lane.request is None for lane in self.lanes):
                    return [lane.result for lane in self.lanes]
                self._answer()

    def _advance(self, lane: Lane, call: Callable[[Any], Any]) -> None:
        self.lane = lane
        lane.begin()
        try:
            lane.result = call(Integer(lane.feature))
        except _Waits:
            return
        if lane.result is None:
            raise self.function.source.error(
                "the function ended without return",
                got="None",
                expected="a value on every path",
                fix="add a return at the end",
            )

    def _handle(
        self, operation: Operation, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Return the result of an operation called by the running lane."""
        lane = self.lane
        if operation.name in {"reverse", "is_twin"}:
            return self.do(operation, args)
        if not operation.collaborative:  # performed once, in the first run
            lane.updated += 1
            if lane.updated > len(lane.old_values):
                lane.old_values.append(self.do(operation, args))
            return lane.old_values[lane.updated - 1]
        lane.calls_made += 1
        if lane.calls_made <= len(lane.answers):
            return lane.answers[lane.calls_made - 1]
        operands = self._bind(operation, args, options)
        lane.request = Request(operation, operands, self._site())
        raise _Waits

    def _bind(
        self, operation: Operation, args: tuple[Any, ...], options: dict[str, Any]
    ) -> dict[str, Any]:
        names = operation.parameters + operation.options
        bound = dict(zip(names, args, strict=False)) | options
        required = set(operation.parameters)
        if len(args) > len(names) or not required <= set(bound) <= set(names):
            raise self.function.source.error(
                f"wrong arguments for {operation.name}",
                got=", ".join(bound),
                expected=", ".join(names),
            )
        return {
            name: value.whole() if hasattr(value, "whole") else value
            for name, value in bound.items()
        }

    def _site(self) -> tuple[Any, ...]:
        """Return the site of a call: its frames up to the user's function."""
        site: list[Any] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not Team._advance.__code__:
            site.append((frame.f_code, _position(frame.f_code, frame.f_lasti)))
            frame = frame.f_back
        return tuple(site)

    def _answer(self) -> None:
        """Compute the results of the call at which all lanes have stopped."""
        requests = [lane.request for lane in self.lanes]
        first = requests[0]
        together: list[Request] = []
        for request in requests:
            if request is None or first is None or request.site != first.site:
                raise self._apart(requests)
            together.append(request)
        operation = together[0].operation
        try:
            answers = compute(operation, [request.operands for request in together])
        except UserFunctionError as error:
            raise self.function.source.error(
                error.what, got=error.got, expected=error.expected, fix=error.fix
            ) from error
        for lane, answer in zip(self.lanes, answers, strict=True):
            lane.answers.append(answer)

    def _apart(self, requests: list[Request | None]) -> UserFunctionError:
        calls = {r.operation.name for r in requests if r is not None}
        return self.function.source.error(
            "a collaborative call that not all features of a vertex make",
            got=f"{', '.join(sorted(calls))} under a condition that varies with f",
            expected="every feature makes the same calls in the same order",
            fix="make the call before the condition",
        )
