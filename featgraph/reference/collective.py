"""Calls of collaborative operations, from the operands of all features at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import UserFunctionError
from featgraph.program.operation import Operation
from featgraph.reference.numbers import as_number

__all__ = ["compute"]

Operands = list[dict[str, Any]]


def compute(operation: Operation, operands: Operands) -> list[Any]:
    """Return each feature's answer.

    Parameters
    ----------
    operation : Operation
        A collaborative operation.
    operands : list of dict
        For each feature, parameter or option name -> value. Options must be equal.

    Raises
    ------
    UserFunctionError
        If an option differs between features, or an operand does not fit K.
    """
    if operation.meaning is None:
        raise TypeError(f"{operation.name} is of one lane")
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
            "a matrix where one value a feature is needed", got=f"operand {name}"
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
            expected=f"({k}, {k}): a property given as a whole, outer or inverse",
        )
    return matrix.astype(np.float64)
