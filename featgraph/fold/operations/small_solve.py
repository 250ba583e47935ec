"""Solves small systems in registers: straight-line text over named elements.

The same methods as in `featgraph.device.linalg`, which loops over an array. A thread
cannot index registers, so each step stands for itself.
"""

from __future__ import annotations

__all__ = ["solve_lines"]


def solve_lines(work: str, factor: str, k: int, spd: bool) -> list[str]:
    """Return statements that solve ``work_i_j``, with column k on the right.

    The solution is left in column k; the rest, and `factor`, is overwritten. LDL^T of
    the lower triangle where the matrix is positive definite, else Gauss-Jordan with
    partial pivots.
    """
    return (_ldlt if spd else _gauss_jordan)(work, factor, k)


def _ldlt(work: str, factor: str, k: int) -> list[str]:
    lines = []
    for step in range(k):
        pivot = f"{work}_{step}_{step}"
        for row in range(step + 1, k):
            lines.append(f"{factor} = {work}_{row}_{step} / {pivot}")
            for column in range(step + 1, row + 1):
                lines.append(
                    f"{work}_{row}_{column} -= {factor} * {work}_{column}_{step}"
                )
            lines.append(f"{work}_{row}_{k} -= {factor} * {work}_{step}_{k}")
    for step in reversed(range(k)):
        lines.append(f"{work}_{step}_{k} /= {work}_{step}_{step}")
        for row in range(step):
            lines.append(f"{work}_{row}_{k} -= {work}_{step}_{row} * {work}_{step}_{k}")
    return lines


def _gauss_jordan(work: str, factor: str, k: int) -> list[str]:
    lines = []
    for step in range(k):
        pivot = f"{work}_{step}_{step}"
        for row in range(step + 1, k):  # the largest comes up
            lines.append(f"if abs({work}_{row}_{step}) > abs({pivot}):")
            for column in range(step, k + 1):
                upper, lower = f"{work}_{step}_{column}", f"{work}_{row}_{column}"
                lines.append(f"    {upper}, {lower} = {lower}, {upper}")
        for row in range(k):
            if row == step:
                continue
            lines.append(f"{factor} = {work}_{row}_{step} / {pivot}")
            for column in range(step + 1, k + 1):
                lines.append(
                    f"{work}_{row}_{column} -= {factor} * {work}_{step}_{column}"
                )
    for row in range(k):
        lines.append(f"{work}_{row}_{k} /= {work}_{row}_{row}")
    return lines
