"""Loop nests: what verification refuses, how rows are walked, what passes make."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from featgraph.fold.passes.nests.features import Unrolled
from featgraph.fold.printing.explain import changed_lines, print_nest
from featgraph.fold.schedules.base import FeatureAxis, Scope, in_blocks
from featgraph.fold.syntax.arithmetic import unsigned_indices
from featgraph.fold.tree.layout import Csr, Pairs, Walk
from featgraph.fold.tree.nodes import (
    AllFound,
    AnyFeature,
    Contribute,
    Features,
    ForEdges,
    FromRow,
    Incremental,
    Meet,
    Only,
    RowLoad,
    Start,
    Sweep,
    ToRow,
)
from featgraph.fold.tree.passes import Stage, TreeError, verify
from featgraph.fold.tree.statements import (
    Body,
    agreed,
    code,
    copied,
    expression,
    when,
)

COMPANIES = {"edge": "", "vertex": "warp"}
CSR = Csr("offsets", "ends", "", "int32", "uint32")


def text_of(body: Body) -> list[str]:
    module = ast.fix_missing_locations(ast.Module(body, []))
    return ast.unparse(module).splitlines()


# -- verification


def test_a_name_that_nothing_binds_is_refused() -> None:
    body = code("if test:\n    x = 1\nelse:\n    x = 2\ny = x + start")
    verify(body, Stage(given={"test", "start"}))
    with pytest.raises(TreeError, match="nothing binds start"):
        verify(body, Stage(given={"test"}))


def test_a_name_is_bound_on_the_way_to_it() -> None:
    with pytest.raises(TreeError, match="nothing binds later"):
        verify(code("x = later\nlater = 1"), Stage(given=()))
    verify(code("for f in range(3):\n    a, b[f] = f, f"), Stage(given={"range", "b"}))


@pytest.mark.parametrize(
    "text",
    [
        "if test:\n    x = 1\nelse:\n    x = 2\ny = x",
        "if test:\n    x = 1\nelse:\n    return\ny = x",
        "if test:\n    x = 1\nif not test:\n    x = 2\ny = x",
        "for i in range(3):\n    x = i\ny = x",
        "while True:\n    x = 1\n    break\ny = x",
    ],
)
def test_a_name_is_bound_on_every_way_to_it(text: str) -> None:
    verify(code(text), Stage(given={"range", "test"}))


@pytest.mark.parametrize(
    "text",
    [
        "if test:\n    x = 1\ny = x",
        "if test:\n    x = 1\nelse:\n    z = 2\ny = x",
        "if test:\n    z = 1\nif not test:\n    x = 2\ny = x",
        "for i in range(n):\n    x = i\ny = x",
        "while test:\n    x = 1\ny = x",
    ],
)
def test_a_name_that_one_way_leaves_unbound_is_refused(text: str) -> None:
    with pytest.raises(TreeError, match="nothing binds x"):
        verify(code(text), Stage(given={"range", "test", "n"}))


def test_a_node_that_stands_twice_is_refused() -> None:
    [shared] = code("x = 1")
    verify([shared, *code("x = 1")], Stage())
    with pytest.raises(TreeError, match="stands twice in the tree: x = 1"):
        verify([shared, *when(["test"], [shared])], Stage())


def test_a_node_of_an_earlier_pass_is_refused() -> None:
    only = Only(expression("test"), code("x = 1"))
    verify([only], Stage())
    with pytest.raises(TreeError, match="Only is rewritten"):
        verify(when(["other"], [only]), Stage(gone=(Only,)))


def test_lanes_meet_only_where_all_of_them_come() -> None:
    meet = Meet("sync", "vertex")
    verify(agreed(when(["due"], [meet]), "warp"), Stage(companies=COMPANIES))
    with pytest.raises(TreeError, match="some may not enter if due:"):
        verify(when(["due"], [meet]), Stage(companies=COMPANIES))
    loop = code("while position < stop:\n    BODY", BODY=[copied(meet)])
    with pytest.raises(TreeError, match="sync the vertex"):
        verify(agreed(when(["due"], loop), "warp"), Stage(companies=COMPANIES))


def test_a_lane_that_is_alone_meets_anywhere() -> None:
    verify(when(["due"], [Meet("sync", "edge")]), Stage(companies=COMPANIES))


def test_a_warp_need_not_come_where_a_block_must() -> None:
    meet = Meet("sync", "vertex")
    block = Stage(companies={"vertex": "block"})
    verify(agreed(when(["due"], [meet]), "block"), block)
    with pytest.raises(TreeError):
        verify(agreed(when(["due"], [meet]), "warp"), block)


def test_all_warps_of_a_block_reduce_together() -> None:
    partial = Stage(companies={"partial": "block"})
    combine = Meet("combine", "partial", ("total",))
    verify([Start("total"), *when(["due"], [Contribute("f")]), combine], partial)
    with pytest.raises(TreeError, match="combine the partial"):
        verify(when(["due"], [copied(combine)]), partial)
    loop = code("for v in range(count):\n    BODY", BODY=[copied(combine)])
    with pytest.raises(TreeError, match="some may not enter for v in range"):
        verify(agreed(loop, "warp"), partial)


# -- sums in blocks


def words(first: str, last: str) -> Body:
    return code(f"for word in range({first}, {last}):\n    take(word)")


def test_vertices_are_swept_in_blocks_where_sums_are() -> None:
    bounds, end = ("first", "last"), "block_start + min({}, 8)"
    whole = Sweep("v", "due", "is_due", code("take(v)"))
    assert text_of(in_blocks(whole, bounds, end, words)) == [
        "for word in range(first, last):",
        "    take(word)",
    ]
    whole.behind = code("settle()")
    assert text_of(in_blocks(whole, bounds, end, words)) == [
        "for word in range(first, last):",
        "    take(word)",
        "settle()",
    ]
    whole.between = code("put_by()")
    assert text_of(in_blocks(whole, bounds, end, words)) == [
        "block_start, block_last, block_count = (first, last, 0)",
        "while True:",
        "    block_end = block_start + min(block_last - block_start, 8)",
        "    for word in range(block_start, block_end):",
        "        take(word)",
        "    settle()",
        "    block_start = block_end",
        "    if block_start == block_last:",
        "        break",
        "    put_by()",
    ]


def test_a_lane_numbers_its_own_features() -> None:
    leaf = Features("wide", code("x[f] += sums[j]"))
    one_of_two = FeatureAxis(4, lanes=2, per_lane=2, are_values=True)
    assert unrolled(one_of_two, copied(leaf)) == ["x_0 += sums[0]", "x_1 += sums[1]"]
    looped = FeatureAxis(2, per_lane=2, is_looped=True)
    assert unrolled(looped, leaf) == ["for f in range(2):", "    x[f] += sums[f]"]


# -- the layout


def test_an_edge_gets_its_number_behind_the_test_that_few_pass() -> None:
    body = code("met = marks[u]\nif met == 0:\n    meet(u)\nif met > 0:\n    take(e)")
    late = Walk("range", numbers_late=True)
    assert text_of(Csr("offsets", "ends", "numbers").edges("v", late, "", body)) == [
        "for position in range(start, stop):",
        "    u = ends[position]",
        "    met = marks[u]",
        "    if met == 0:",
        "        meet(u)",
        "    if met > 0:",
        "        e = numbers[position]",
        "        take(e)",
    ]


def test_a_row_is_walked_by_every_nth_place() -> None:
    walk = Walk("while", lanes=4, own="edge_lane")
    assert text_of(CSR.edges("v", walk, "", code("take(u, e)"))) == [
        "position = int32(start + edge_lane)",
        "while position < stop:",
        "    u = ends[uint32(position)]",
        "    e = uint32(position)",
        "    take(u, e)",
        "    position = int32(position + 4)",
    ]


def test_edges_on_the_way_together_leave_the_rest_to_a_second_loop() -> None:
    walk = Walk("while", at_a_time=2)
    written = text_of(CSR.edges("v", walk, "", code("take(u)")))
    assert written[:3] == [
        "position = start",
        "whole = int32(stop - 1)",
        "while position < whole:",
    ]
    assert written.count("    take(u)") == 3
    looped = text_of(CSR.edges("v", replace(walk, is_looped=True), "", code("take(u)")))
    assert "        u = ends[uint32(position + step)]" in looped
    assert "    position = int32(position + 2)" in looped


def test_one_edge_of_a_pair_is_ahead_of_what_follows_on_the_other() -> None:
    pairs = Pairs("all_sources", code("x = load(e)"), code("take(u, e, x)"), ("x",))
    body = CSR.edges("v", Walk("while", pairs=pairs), "", code("take(u, e, load(e))"))
    verify(body, Stage())
    assert text_of(body) == [
        "position = start",
        "whole = int32(stop - 1) if all_sources else position",
        "while position < whole:",
        "    u = ends[uint32(position)]",
        "    e = uint32(position)",
        "    x = load(e)",
        "    first_edge = (u, e, x)",
        "    u = ends[uint32(position + 1)]",
        "    e = uint32(position + 1)",
        "    x = load(e)",
        "    second_edge = (u, e, x)",
        "    u, e, x = first_edge",
        "    take(u, e, x)",
        "    u, e, x = second_edge",
        "    take(u, e, x)",
        "    position = int32(position + 2)",
        "while position < stop:",
        "    u = ends[uint32(position)]",
        "    e = uint32(position)",
        "    take(u, e, load(e))",
        "    position = int32(position + 1)",
    ]


def test_walks_share_no_node() -> None:
    body = CSR.edges("v", Walk("while", at_a_time=4), "", code("take(u)"))
    verify(body, Stage())


def test_a_seldom_test_stands_in_front_of_the_number_of_an_edge() -> None:
    layout = Csr("offsets", "ends", "numbers")
    walk = Walk("range", numbers_late=True)
    body = when(["changed(u)"], code("take(e)"))
    assert text_of(layout.edges("v", walk, "part", body)) == [
        "for position in range(start, part_stop):",
        "    u = ends[position]",
        "    if changed(u):",
        "        e = numbers[position]",
        "        take(e)",
    ]


@pytest.mark.parametrize("company", ["warp", "block"])
def test_rounds_keep_their_company_together(company: str) -> None:
    walk = Walk("rounds", 8, "edge_lane", company)
    body = CSR.edges("u", walk, "", [Meet("any", "edge", ("moved", "alive"))])
    verify(body, Stage(companies={"edge": company}))


# -- features


def unrolled(axis: FeatureAxis, *nodes: ast.stmt) -> list[str]:
    return text_of(Unrolled(axis).over(nodes))


def test_features_are_copies_or_a_loop() -> None:
    leaf = Features("wide", code("x[f] = take(f, d.y[v, f])"))
    copies = FeatureAxis(2, per_lane=2)
    assert unrolled(copies, copied(leaf)) == [
        "x_0 = take(0, d.y[v, 0])",
        "x_1 = take(1, d.y[v, 1])",
    ]
    looped = FeatureAxis(2, per_lane=2, is_looped=True)
    assert unrolled(looped, leaf) == [
        "for f in range(2):",
        "    x[f] = take(f, d.y[v, f])",
    ]


def test_lanes_without_a_feature_are_kept_out() -> None:
    leaf = Features("wide", code("d.y[v, f] = x[f]"), guarded=True)
    axis = FeatureAxis(3, lanes=4, are_values=True)
    assert unrolled(axis, leaf) == ["if inside:", "    d.y[v, f] = x"]


def test_rows_are_loaded_in_front_of_the_features_that_take_them() -> None:
    row = RowLoad("y_u", "d.y", "u")
    leaf = Features("wide", code("x[f] += y_u[f]"), (row,))
    axis = FeatureAxis(4, per_lane=4, vector_width=2, stride=4)
    written = unrolled(axis, leaf)
    assert written[0] == "y_u_0 = warp.load_row(d.y, u, 0, 4, 2)"
    assert written[1:4] == [
        "x_0 += y_u_0[0]",
        "x_1 += y_u_0[1]",
        "y_u_2 = warp.load_row(d.y, u, 2, 4, 2)",
    ]


def test_what_a_lane_has_of_a_row_is_moved_in_pieces() -> None:
    axis = FeatureAxis(
        6, lanes=2, per_lane=4, vector_width=2, stride=6, are_values=True
    )
    assert unrolled(axis, FromRow("x", "d.x", "e", 2)) == [
        "x_0, x_1 = warp.load_row(d.x, e, f_0, 6, 2)",
        "x_2, x_3 = warp.load_row(d.x, e, f_2, 6, 2)",
    ]
    assert unrolled(axis, ToRow("x", "d.x", "e", 2)) == [
        "if inside_0:",
        "    warp.store_row(d.x, e, f_0, 6, 2, (x_0, x_1))",
        "if inside_2:",
        "    warp.store_row(d.x, e, f_2, 6, 2, (x_2, x_3))",
    ]
    # Nothing behind a row is used: its last feature is.
    axis = FeatureAxis(
        3, lanes=2, per_lane=2, vector_width=2, stride=4, are_values=True
    )
    assert unrolled(axis, FromRow("x", "d.x", "e", 2)) == [
        "x_0, x_1 = warp.load_row(d.x, e, f_0, 4, 2)",
        "x_1 = warp.select(inside_1, x_1, x_0)",
    ]
    alone = FeatureAxis(3, per_lane=3, vector_width=2, stride=4)
    assert unrolled(alone, FromRow("x", "d.x", "e", 2)) == [
        "x_0, x_1 = warp.load_row(d.x, e, 0, 4, 2)",
        "x_2 = warp.load_row(d.x, e, 2, 4, 2)[0]",
    ]
    assert unrolled(alone, ToRow("x", "d.x", "e", 2))[1] == (
        "warp.store_row(d.x, e, 2, 4, 2, (x_2, x_2))"
    )
    one = FeatureAxis(2, lanes=2, are_values=True)
    assert unrolled(one, FromRow("x", "d.x", "e")) == ["x = d.x[e, f]"]
    assert unrolled(one, ToRow("x", "d.x", "e")) == ["d.x[e, f] = x"]


def test_all_features_are_handed_over() -> None:
    body = code("*new, = weigh(u, *x)")
    assert unrolled(FeatureAxis(2, per_lane=2), *body) == [
        "new_0, new_1 = weigh(u, x_0, x_1)"
    ]
    assert unrolled(FeatureAxis(1), *code("*new, = weigh(u, *x)")) == [
        "new = weigh(u, x)"
    ]


def test_a_verdict_is_that_of_any_feature() -> None:
    node = AnyFeature("moved", expression("relax(f, v, x[f])"), "writer")
    assert unrolled(FeatureAxis(2, per_lane=2), copied(node)) == [
        "moved = False",
        "if writer:",
        "    moved = relax(0, v, x_0)",
        "    moved |= relax(1, v, x_1)",
    ]
    padded = FeatureAxis(3, lanes=4, are_values=True)
    assert unrolled(padded, node) == [
        "moved = False",
        "if writer and inside:",
        "    moved = relax(f, v, x)",
    ]


def test_all_features_are_found_before_a_lane_stops() -> None:
    node = AllFound([expression("x[f]"), expression("y != 0")])
    assert unrolled(FeatureAxis(2, per_lane=2), node) == [
        "all_found = x_0 and x_1 and (y != 0)"
    ]


def test_blocks_walk_a_part_of_the_row_each() -> None:
    each = CSR.edges("v", Walk("while"), "block", code("take(u)"))
    body = CSR.blocks("", 64, each, code("put_by()"))
    verify(body, Stage())
    written = text_of(body)
    assert written[0] == "block_start, block_last, block_count = (start, stop, 0)"
    assert "    block_end = int32(block_start + min(block_last - block_start, 64))" in (
        written
    )
    assert written[-1] == "    put_by()"


# -- text


def test_indices_are_unsigned_once() -> None:
    body = code("d.x[v, 0] = y[e] + ends[uint64(p)]\nwarp.atomic_add(d.x, (v, f), 1)")
    assert text_of(unsigned_indices(body)) == [
        "d.x[uint32(v), 0] = y[e] + ends[uint64(p)]",
        "warp.atomic_add(d.x, (uint32(v), uint32(f)), 1)",
    ]


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("x[n + 1]", "uint32(n + 1)"),
        ("n = uint32(p)\nx[n]", "n"),
        ("n = uint32(p)\nn = p\nx[n]", "uint32(n)"),
        ("n = uint32(p)\nm = n if odd else e\nx[m]", "m"),
        ("n, m = uint32(p), p\nx[m]", "uint32(m)"),
        ("for n in range(8):\n    x[n, 8 + n]", "n, 8 + n"),
        ("for n in range(8):\n    x[v, n]", "uint32(v), uint32(n)"),
        ("for n in range(8):\n    x[n - 1]", "uint32(n - 1)"),
        ("for n in range(8):\n    for n in range(p, q):\n        x[n]", "uint32(n)"),
        ("for n in range(last):\n    x[n]", "uint32(n)"),
        ("(a, b)[best]", "uint32(best)"),
        ("x[guarded(e, 8)]", "guarded(e, 8)"),
        ("x[guarded(n, 8)]", "uint32(guarded(n, 8))"),
    ],
)
def test_an_index_is_cast_where_it_may_be_negative(text: str, index: str) -> None:
    *_, last = text_of(unsigned_indices(code(text)))
    assert last.strip().partition("[")[2] == f"{index}]"


def test_one_lane_meets_without_a_word() -> None:
    assert Scope(1).sync() == []
    assert text_of(Scope(8).any("moved", "alive")) == [
        "alive = warp.group_any(moved, 8)"
    ]


def test_a_tree_is_printed_with_its_parts_and_what_it_contains() -> None:
    patch = ForEdges("v", [Only(expression("seen[u]"), [Contribute("add")], True)])
    rows = (RowLoad("x_u", "d.x", "u"), RowLoad("y"))
    loop = Features("wide", code("aggr[f] += add(x_u[f], *y)"), rows)
    tree: Body = [Incremental(("add",), (), patch, [loop]), Meet("sync", "vertex")]
    inside = agreed(code("if any_due:\n    BODY\nelse:\n    return", BODY=tree), "warp")
    assert print_nest(inside).splitlines() == [
        "if any_due:  # warp agrees",
        "    Incremental([add]):",
        "      patch:",
        "        ForEdges(v):",
        "            Only(seen[u], seldom=True):",
        "                Contribute(add)",
        "      anew:",
        "        Features(wide, rows=[d.x[u], y]):",
        "            aggr[f] += add(x_u[f], *y)",
        "    Meet(sync, vertex)",
        "else:",
        "    return",
    ]


def test_lines_that_stand_further_in_have_not_changed() -> None:
    old = "Sweep(v):\n    first()\n    second()"
    new = "for v in range(8):\n    if due(v):\n        first()\n        second()"
    assert changed_lines(old, new).splitlines() == [
        "- Sweep(v):",
        "+ for v in range(8):",
        "+     if due(v):",
        "          first()",
        "          second()",
    ]
    assert changed_lines(new, new) == ""
