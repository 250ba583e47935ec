"""Passes over user functions: what each makes of one, and what it leaves alone."""

from __future__ import annotations

import ast

import pytest

import featgraph as fg
from featgraph.algorithms.belief_propagation import step as belief_propagation
from featgraph.algorithms.label_propagation import step as label_propagation
from featgraph.fold.passes.passes import BODY_PASSES
from featgraph.fold.syntax.names import FreshNames
from featgraph.fold.tree.statements import Access, code, copied, expression, is_same


@fg.vertex
def spread_out(f, v, d):  # type: ignore[no-untyped-def]
    total = fg.feature_sum(d.x[v, f])
    if d.x[v, f] > total:
        return False
    d.x_next[v, f] = total
    return True


@fg.vertex
def grow(f, v, d):  # type: ignore[no-untyped-def]
    moved = fg.any_feature(d.x[v, f] < d.least)
    d.x_next[v, f] = d.x[v, f] + d.y[v, f]
    return moved


def behind(kernel: fg.Kernel, function: str, name: str) -> str:
    """Return the tree of a function behind a pass."""
    [text] = [
        one.text for one in kernel.trees() if (one.kernel, one.name) == (function, name)
    ]
    return text


def test_a_function_begins_as_it_was_analysed_and_ends_in_the_module() -> None:
    kernel = label_propagation.fold(k=8, target="cuda")
    assert "vote = fg.any_feature(" in behind(kernel, "relax", BODY_PASSES[0].name)
    last = behind(kernel, "relax", BODY_PASSES[-1].name)
    body = ast.parse(last.partition("\n")[2].replace("\n    ", "\n").strip()).body
    whole = ast.parse(kernel.source).body
    [printed] = [n for n in whole if getattr(n, "name", "") == "relax"]
    assert isinstance(printed, ast.FunctionDef)
    assert is_same(printed.body, body)


@pytest.mark.parametrize(
    ("plan", "name", "takes_out", "puts_in"),
    [
        ({"k": 8}, "row_pieces", "d.label[v, f]", "LoadRows"),
        ({"k": 8}, "predication", "return False", "live = False"),
        ({"k": 5}, "predication", "return False", "Masked([live, inside])"),
        ({"k": 8}, "unrolled", "Collective", "p_3 = "),
        ({"k": 8}, "names", "taken_ø", "taken_a"),
        ({"k": 8}, "indices", "d.clamped[v]", "d.clamped[uint32(v)]"),
        ({"k": 33, "feature_parallel": False}, "looped", "    p = ", "for f in range"),
    ],
)
def test_what_a_pass_takes_out_of_a_function_and_puts_in(
    plan: dict[str, object], name: str, takes_out: str, puts_in: str
) -> None:
    kernel = label_propagation.fold(target="cuda", **plan)
    names = [one.name for one in BODY_PASSES]
    old = behind(kernel, "relax", names[names.index(name) - 1])
    new = behind(kernel, "relax", name)
    assert takes_out in old
    assert takes_out not in new
    assert puts_in not in old
    assert puts_in in new


def test_the_rest_that_features_leave_apart_is_a_function() -> None:
    kernel = fg.foldmap(spread_out).fold(k=4, target="cpu")
    tree = behind(kernel, "spread_out", "early_returns")
    assert tree.startswith("def spread_out_rest(f, v, d, total):  # rest\n")
    assert "GoOn(spread_out_rest(f, v, d, total))" in tree


def test_entries_that_a_function_returns_are_all_features() -> None:
    kernel = belief_propagation.fold(k=4, target="cuda", feature_parallel=False)
    [name] = [f.name for f in kernel.plan.analysis.functions if f.kind.writes_edges]
    assert "return (vote, *next_msg)" in behind(kernel, name, "returned_entries")


@pytest.mark.parametrize("checked", [False, True])
def test_stores_are_sunk_but_in_checked_mode(
    checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fg.config, "checked", checked)
    kernel = fg.foldmap(grow).fold(k=4, target="cuda")
    tree = behind(kernel, "grow", "store_sinking")
    assert ("if moved_:" in tree) is not checked


def test_checked_indices_have_a_number_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fg.config, "checked", True)
    kernel = fg.foldmap(grow).fold(k=4, target="cpu")
    tree = behind(kernel, "grow", "memory")
    for number, (*_, name, _axis) in enumerate(kernel.kernel_source.sites):
        assert tree.count(f", {number}, v, -1, d.fault)") == 1, name


def test_names_get_letters_in_the_order_of_the_text() -> None:
    fresh = FreshNames()
    fresh.begin()
    later = fresh("top")
    fresh.begin()
    first, unused, second = fresh("register"), fresh("register"), fresh("work")
    body = code(f"{first} = 1\n{second}_0 = {first}\n{later} = {second}_0")
    fresh.settle(body, {"register_a"})
    assert unused != first
    # The name in between has letters, too, though it is gone.
    lines = [ast.unparse(node) for node in body]
    assert lines == ["register_b = 1", "work_d_0 = register_b", "top_e = work_d_0"]


def test_trees_are_the_same_if_their_texts_are() -> None:
    indices = [ast.Name("v"), ast.Constant(0)]
    one = Access("x", "now", indices)
    assert is_same(one, copied(one))
    assert not is_same(one, Access("x", "next", indices))
    assert is_same(expression("a + b(c)"), expression("(a) + b( c )"))
    assert not is_same(expression("a + b"), expression("a - b"))
    assert not is_same(expression("a * 1"), expression("a * True"))


def test_an_expression_can_fill_a_template_in_several_places() -> None:
    [loop] = code("while X < 1:\n    BODY", X=expression("a + b"), BODY=code("a = 2"))
    assert ast.unparse(loop) == "while a + b < 1:\n    a = 2"
    square = expression("X * X", X=expression("a + b"))
    assert ast.unparse(square) == "(a + b) * (a + b)"
    assert isinstance(square, ast.BinOp)
    assert square.left is not square.right
