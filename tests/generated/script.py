"""A failing program as a script that runs by itself, made smaller first."""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.generated.check import Report, check
from tests.generated.programs import Case

__all__ = ["minimised", "script", "smaller_cases"]


def minimised(case: Case, report: Report, target: str, seconds: float = 60.0) -> Case:
    """Return a smaller case that fails in the same way.

    Options, actions, functions, statements, operands and edges are left out one by one,
    as long as time allows.
    """
    end = time.monotonic() + seconds
    if report.options is not None:
        case = replace(case, options=[report.options])
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for smaller in smaller_cases(case):
            if time.monotonic() > end:
                break
            try:
                found = check(smaller, target)
            except Exception:  # noqa: S112 - the cut made no program
                continue
            if (found.status, found.kind) == (report.status, report.kind):
                case, progress = smaller, True
                break
    return case


def smaller_cases(case: Case) -> Iterator[Case]:
    """Give cases with something left out."""
    for number in range(len(case.actions)):
        rest = case.actions[:number] + case.actions[number + 1 :]
        if rest and rest[0]["active"] != "out":
            yield replace(case, actions=rest)
    for number, action in enumerate(case.actions):
        for changed in ({"on": None}, {"active": None}, {"limit": 1}):
            name = next(iter(changed))
            if action.get(name) not in (None, 1):
                actions = copy.deepcopy(case.actions)
                actions[number].update(changed)
                yield replace(case, actions=actions)
    for name in case.options[0]:
        rest = {n: v for n, v in case.options[0].items() if n != name}
        yield replace(case, options=[rest])
    graph = case.graph
    count = len(graph.source)
    for size in (count // 2, count // 4, 1):
        for start in range(0, count if 0 < size < count else 0, max(size, 1)):
            if size == 1 and count > 12:
                break
            kept = [i for i in range(count) if not start <= i < start + size]
            yield _with_edges(case, kept)
    yield from _smaller_texts(case)


def _with_edges(case: Case, kept: list[int]) -> Case:
    graph, count = case.graph, len(case.graph.source)
    edges = replace(
        graph,
        source=tuple(graph.source[i] for i in kept),
        target=tuple(graph.target[i] for i in kept),
    )
    state = {}
    for name, (p, value) in case.state.items():
        if p.of == "edge":
            rows = kept + [count + i for i in kept] * p.per_direction
            value = value[rows]
        state[name] = (p, value)
    return replace(case, graph=edges, state=state)


def _smaller_texts(case: Case) -> Iterator[Case]:
    """Yield the program without a function, a statement, an operand."""
    tree = ast.parse(case.text)
    for cut in _cuts(tree):
        text = ast.unparse(ast.fix_missing_locations(cut)) + "\n"
        yield _without_unused(replace(case, text=text))


def _without_unused(case: Case) -> Case:
    state = {n: v for n, v in case.state.items()
             if f"d.{n}" in case.text or f"'{n}'" in case.text}  # fmt: skip
    return replace(case, state=state)


def _cuts(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield copies of a module, each with one thing less."""
    places = list(ast.walk(tree))
    # A combine stays associative, and a helper a function of what it is given.
    kept = {
        inner
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
        for inner in ast.walk(node)
    }
    for number, node in enumerate(places):
        for name in ("body", "orelse", "args"):
            inner = getattr(node, name, None)
            if not isinstance(inner, list) or isinstance(node, ast.arguments):
                continue
            if node in kept:
                continue
            is_foldmap = isinstance(node, ast.Call) and "foldmap" in ast.unparse(
                node.func
            )
            if name == "args" and not is_foldmap:
                continue
            for place in range(len(inner)):
                if isinstance(inner[place], ast.Import):
                    continue
                cut = copy.deepcopy(tree)
                changed = getattr(list(ast.walk(cut))[number], name)
                statement = changed.pop(place)
                if name == "body" and not changed:
                    changed.append(ast.Pass())
                yield cut
                if isinstance(statement, ast.If):
                    changed[place:place] = statement.body
                    yield cut
    for number, node in enumerate(places):
        for part in _parts(node) if node not in kept else ():
            cut = copy.deepcopy(tree)
            yield _Replace(list(ast.walk(cut))[number], part).visit(cut)


def _parts(node: ast.AST) -> list[ast.expr]:
    """Return the subexpressions that may replace an expression."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.BoolOp):
        return list(node.values)
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse, node.test]
    if isinstance(node, ast.Compare):
        return [ast.Constant(True), ast.Constant(False)]
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
        return list(node.args)
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("math."):
        return list(node.args)
    return []


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return copy.deepcopy(self.new) if node is self.old else self.generic_visit(node)


def script(case: Case, report: Report, target: str, seed: Any = None) -> str:
    """Return a Python script that shows the failure."""
    graph = case.graph
    head = ["# " + line for line in (report.detail or report.kind).splitlines()[:12]]
    if seed is not None:
        head.insert(0, f"# seed {seed}, target {target}")
    lines = [
        *head, case.text, "import numpy as np", "from featgraph import reference", "",
        "graph = fg.Graph.from_edges(",
        f"    {list(graph.source)}, {list(graph.target)},",
        f"    vertex_count={graph.vertex_count}, directed={graph.directed},",
        ")",
        "state = fg.State(",
        "    graph,",
    ]  # fmt: skip
    for name, (p, value) in case.state.items():
        lines.append(f"    {name}={_spelt(p, value)},")
    lines += [")", "given = reference.from_state(state)", "out = None", ""]
    options = dict(case.options[0]) if case.options else {}
    if options.pop("checked", False):
        lines.append("fg.config.checked = True")
    if "near_far" in options:
        lines.append("near_far = fg.NearFar({!r}, {!r})".format(*options["near_far"]))
    shown = {n: n if n == "near_far" else repr(v) for n, v in options.items()}
    spelt = "".join(f", {n}={v}" for n, v in shown.items())
    once = "".join(f", {n}={v!r}" for n, v in options.items() if n != "change_driven")
    where = "cpu" if target == "cpu" else "cuda"
    for action in case.actions:
        lines += _action(action, where, spelt if "iterate" in action else once)
    return "\n".join(lines) + "\n"


def _spelt(p: Any, value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    dtype = "np." + value.dtype.name.replace("bool", "bool_")
    array = f"np.array({value.tolist()}, {dtype})"
    if not value.size or (value == value.flat[0]).all():
        first = value.flat[0].item() if value.size else 0
        array = f"np.full({value.shape}, {first}, {dtype})"
    iterated = ", iterated=True" if p.role == "next" else ""
    if p.of == "vertex":
        return f"fg.vertex_property({array}{iterated})"
    if p.of == "edge":
        sides = ", per_direction=True" if p.per_direction else ""
        return f"fg.edge_property({array}{iterated}{sides})"
    return array


def _action(action: dict[str, Any], target: str, spelt: str) -> list[str]:
    active = "out" if action["active"] == "out" else repr(action["active"])
    on = "" if action["on"] is None else f".on({action['on']})"
    show = (
        "    print(name, 'is', state[name].tolist() if hasattr(state[name], 'tolist')"
    )
    show += " else state[name], 'and should be', value)"
    if "call" in action:
        step = f"STEPS[{action['call']}]"
        return [
            f"want = reference.superstep({step}.program, *given, active={active}, "
            f"on={action['on']}, superstep=state.superstep)",
            f"out = {step}{on}(state, active_in={active}, target={target!r}{spelt})",
            "print('active_out', out.vertices.tolist(), 'and should be', "
            "want.active_out.vertices.tolist())",
            "given = (graph, want.values, want.signature)",
            "for name, value in want.values.items():",
            show,
        ]
    steps = ", ".join(f"STEPS[{n}]{on}" for n in action["iterate"])
    programs = ", ".join(
        f"(STEPS[{n}].program, {'None' if action['on'] is None else 'on'})"
        for n in action["iterate"]
    )
    mask = []
    if action["on"] is not None:
        mask = [f"on = np.isin(np.arange(graph.vertex_count), {action['on']})"]
    return [
        *mask,
        f"want = reference.iterate([{programs}], *given, active={active}, "
        f"max_supersteps={action['limit']}, start=state.superstep)",
        f"run = fg.iterate([{steps}], state, active={active}, "
        f"max_supersteps={action['limit']}, target={target!r}{spelt})",
        "print(run.active_counts, 'and should be', "
        "[int(o.active_out.mask.sum()) for o in want.outcomes])",
        "given = (graph, want.values, want.signature)",
        "for name, value in want.values.items():",
        show,
    ]
