"""The table of operations: complete, and each entry in some program of the bank."""

from __future__ import annotations

import ast

import pytest

from featgraph.fold.operations.table import OPERATIONS
from featgraph.program import operations
from featgraph.program.operations import Collaborative, Operation
from tests.bank import BANK

DECLARED = {
    value.name: value
    for value in vars(operations).values()
    if isinstance(value, Operation)
}
WRITTEN_IN_THEM = {
    value.name: value
    for value in vars(operations).values()
    if isinstance(value, Collaborative)
}
COLLABORATIVE = sorted(n for n, o in DECLARED.items() if o.collaborative)


def test_every_operation_has_one_entry() -> None:
    assert {name: entry.operation for name, entry in OPERATIONS.items()} == DECLARED


@pytest.mark.parametrize("name", COLLABORATIVE)
def test_an_operation_of_lanes_prints_and_names_its_result(name: str) -> None:
    entry = OPERATIONS[name]
    assert entry.edge_array == ""
    if entry.is_pattern:
        return
    assert entry.stem.isidentifier()
    for method in ("unroll", "loop"):
        assert method in vars(type(entry)), f"{name} has no {method}"


def names_called(tree: ast.AST) -> set[str]:
    """Return the last names of all calls, those in operations that are called too."""
    called = {
        ast.unparse(node.func).split(".")[-1]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    for name in called & WRITTEN_IN_THEM.keys():
        called = called | names_called(WRITTEN_IN_THEM[name].source.tree)
    return called


def test_the_bank_calls_every_operation_of_lanes() -> None:
    called: set[str] = set()
    for program in BANK:
        for foldmap in program.foldmaps:
            for function in foldmap.program.functions:
                called |= names_called(function.source.tree)
    assert called >= set(COLLABORATIVE)
