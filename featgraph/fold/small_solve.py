"""Solves small systems in registers: straight-line text over named elements.

The same methods as in `featgraph.device.linalg`, which loops over an array. A thread
cannot index registers, so each step stands for itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from featgraph.fold.nodes import Access, Operate, Whole

__all__ = ["is_only_solved", "solve_lines"]


def is_only_solved(name: str, bodies: Iterable[ast.stmt], spd: bool = False) -> bool:
    """Return whether a matrix goes nowhere but into `fg.solve`.

    Parameters
    ----------
    bodies : iterable of ast.stmt
        Statements of all functions that may read it.
    spd : bool
        Whether only solutions count that take it as positive definite.
    """
    nodes = [n for s in bodies for n in ast.walk(s)]
    solved = {
        id(inner)
        for n in nodes
        if isinstance(n, Operate) and n.name == "solve"
        if n.constant("spd") or not spd
        for inner in ast.walk(n.args[0])
    }
    reads = [n for n in nodes if isinstance(n, Access | Whole) and n.name == name]
    return bool(reads) and all(id(n) in solved for n in reads)


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
