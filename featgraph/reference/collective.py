"""What collaborative operations compute, from the operands of all features at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.errors import UserFunctionError
from featgraph.program.operations import SEMIRINGS, Operation
from featgraph.reference.numbers import as_number

__all__ = ["compute"]

Operands = list[dict[str, Any]]


def compute(operation: Operation, operands: Operands) -> list[Any]:
    """Return each feature's answer.

    Parameters
    ----------
    operation : Operation
        A collaborative one.
    operands : list of dict
        For each feature, parameter or option name -> value. Options are alike.

    Raises
    ------
    UserFunctionError
        If an option differs between features, or an operand does not fit K.
    """
    for option in operation.options:
        given = [operand.get(option) for operand in operands]
        if any(value != given[0] for value in given):
            raise UserFunctionError(
                f"{option}= differs between the features",
                got=given,
                expected="one value",
            )
    return _TABLE[operation.name](operands)


def _column(operands: Operands, name: str) -> list[Any]:
    values = [operand[name] for operand in operands]
    if any(isinstance(value, np.ndarray) for value in values):
        raise UserFunctionError(
            "a matrix where one value a feature is needed", got=f"operand {name}"
        )
    return [as_number(value) for value in values]


def _matrix(operands: Operands) -> npt.NDArray[Any]:
    """Return A, which all features give alike."""
    matrix = operands[0]["A"]
    k = len(operands)
    if not isinstance(matrix, np.ndarray) or matrix.shape != (k, k):
        raise UserFunctionError(
            "not a matrix of the width of the function",
            got=getattr(matrix, "shape", type(matrix).__name__),
            expected=f"({k}, {k}): a property given as a whole, outer or inverse",
        )
    return matrix.astype(np.float64)


def _grouped(
    operands: Operands, operand: str, combine: Callable[[int, Any], Any]
) -> Any:
    """Apply ``combine(start, values)`` to each group of features."""
    values = _column(operands, operand)
    group = operands[0].get("group") or len(values)
    if len(values) % group:
        raise UserFunctionError(
            "the groups do not divide the features",
            got=f"group={group}",
            expected=f"a divisor of K = {len(values)}",
        )
    answers: list[Any] = []
    for start in range(0, len(values), group):
        answer = combine(start, values[start : start + group])
        answers += [as_number(answer)] * group
    return answers


def _numbers(values: list[Any]) -> list[Any]:
    """Truth values count as 0 and 1."""
    return [as_number(int(v)) if isinstance(v, bool) else v for v in values]


def _any(operands: Operands) -> Any:
    return _grouped(operands, "condition", lambda _, values: any(values))


def _all(operands: Operands) -> Any:
    return _grouped(operands, "condition", lambda _, values: all(values))


def _sum(operands: Operands) -> Any:
    return _grouped(operands, "x", lambda _, values: np.sum(_numbers(values)))


def _max(operands: Operands) -> Any:
    return _grouped(operands, "x", lambda _, values: np.max(_numbers(values)))


def _min(operands: Operands) -> Any:
    return _grouped(operands, "x", lambda _, values: np.min(_numbers(values)))


def _argmax(operands: Operands) -> Any:
    return _grouped(
        operands, "x", lambda start, values: start + int(np.argmax(_numbers(values)))
    )


def _broadcast(operands: Operands) -> Any:
    values = _column(operands, "x")
    chosen = [int(operand["i"]) for operand in operands]
    for feature in chosen:
        if not 0 <= feature < len(values):
            raise UserFunctionError(
                "broadcast of a feature that does not exist",
                got=feature,
                expected=f"0 <= i < K = {len(values)}",
            )
    return [values[feature] for feature in chosen]


def _outer(operands: Operands) -> Any:
    product = np.outer(_column(operands, "x"), _column(operands, "y"))
    return [product.astype(np.float64)] * len(operands)


def _matvec(operands: Operands) -> Any:
    matrix = _matrix(operands)
    if operands[0].get("transpose"):
        matrix = matrix.T
    x = np.array(_column(operands, "x"), np.float64)
    semiring = operands[0].get("semiring") or "plus_times"
    if semiring not in SEMIRINGS:
        raise UserFunctionError(
            "semiring= must be the name of a semiring",
            got=repr(semiring),
            expected=", ".join(map(repr, SEMIRINGS)),
        )
    if semiring == "plus_times":
        return list(matrix @ x)
    terms = matrix + x
    return list(
        terms.max(axis=1)
        if semiring == "max_plus"
        else np.logaddexp.reduce(terms, axis=1)
    )


def _solve(operands: Operands) -> Any:
    k = len(operands)
    diagonal = float(operands[0].get("diagonal") or 0.0)
    matrix = _matrix(operands) + diagonal * np.eye(k)
    try:
        solution = np.linalg.solve(matrix, np.array(_column(operands, "b"), np.float64))
    except np.linalg.LinAlgError:  # inf or nan, never an exception
        solution = np.full(k, np.nan)
    return list(solution)


def _inverse(operands: Operands) -> Any:
    matrix = _matrix(operands)
    try:
        inverted = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        inverted = np.full(matrix.shape, np.nan)
    return [inverted] * len(operands)


_TABLE: dict[str, Callable[[Operands], list[Any]]] = {
    "any_feature": _any,
    "all_features": _all,
    "feature_sum": _sum,
    "feature_max": _max,
    "feature_min": _min,
    "argmax": _argmax,
    "broadcast": _broadcast,
    "outer": _outer,
    "matvec": _matvec,
    "solve": _solve,
    "inverse": _inverse,
}
