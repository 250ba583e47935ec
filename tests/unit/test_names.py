"""Any word may name what users declare, also one that generated code uses."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.fold.plan.plan import WORKLIST
from featgraph.fold.syntax.names import forms_of, name_temporaries
from featgraph.program.signature import (
    GENERATED,
    LOOPS,
    METHODS,
    RESERVED,
    TRIANGLES,
    name_problem,
)
from tests.unit.snippets import Snippet

#: Words of users, some of which generated code has, too.
WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    account active age amount balance base best bit box chunk city color cost count
    d depth distance done due edge end energy far flow found friend gain group half
    heat height high hit hub index influence inside is_due kept key kind label lane
    length level low mass mean member moved near new neighbor now number other own
    owner part partials path place position price pull push queue range rank rate
    result risk row score self share sign size source speed start state step stop
    sum target taken thread time token top total trust turn value vertex vote walk
    warp weight whole width word
""",
    )
)

#: Every kind of name: `NAME` is that of the temporary.
PROGRAM = """
@fg.reduce(into="{reduced}", combine="sum")
def {function}(f, v, d):
    return d.{prop}[v, f] * d.{scalar}

@fg.gather(into="{into}", combine="{combine}")
def gathers(f, u, v, e, d):
    {local} = d.{prop}[u, f] + d.{scalar}
    return {local}

@fg.vertex
def ends(f, v, d):
    {local} = d.{into}[v, f] + d.{reduced}[f]
    for {other} in range(2):
        {local} += d.{into}{source}[v, 0] * {other}
    d.{prop}_next[v, f] = {local}
    return {local} % 2 == 0

step = fg.foldmap({function}, gathers, ends)
"""

SEARCH = """
@fg.gather(into="{into}", combine="min", sources="active")
def lowest(f, u, v, e, d):
    return d.x[u, f] + 1

@fg.vertex
def ends(f, v, d):
    if d.{into}[v, f] < d.x[v, f]:
        d.x_next[v, f] = d.{into}[v, f]
        return True
    return False

step = fg.foldmap(lowest, ends)
"""

MATRIX = """
@fg.gather(into="{into}", combine="sum", matrix=True)
def products(i, f, u, v, e, d):
    return d.x[u, i] * d.x[u, f]

@fg.vertex
def ends(f, v, d):
    d.x_next[v, f] = fg.solve(d.{into}[v], d.x[v], spd=True)
    return True

step = fg.foldmap(products, ends)
"""

#: In what forms a program is folded.
OPTIONS: tuple[dict[str, Any], ...] = (
    {"target": "cpu"},
    {"target": "cpu", "direction": "push"},
    {"target": "cuda"},
    {"target": "cuda", "direction": "push"},
    {"target": "cuda", "feature_parallel": False},
    {"target": "cuda", "checked": True, "k": 20},
    {"target": "cpu", "k": 20},
)
#: A word that nothing else contains.
NEUTRAL = "zqx"


def scopes(text: str) -> list[frozenset[str]]:
    """Return the names in each function of a module, in which none may hide another."""
    found = []
    for function in ast.parse(text).body:
        if isinstance(function, ast.FunctionDef):
            nodes = list(ast.walk(function))
            names = {n.id for n in nodes if isinstance(n, ast.Name)}
            names |= {n.arg for n in nodes if isinstance(n, ast.arg)}
            found.append(frozenset(names))
    return found


#: Names of the user's things in PROGRAM, by default.
USUAL = {
    "reduced": "allq", "function": "sums", "prop": "xq", "scalar": "cq",
    "local": "lq", "other": "oq", "combine": "sum", "source": "",
}  # fmt: skip


def program(**names: str) -> str:
    return PROGRAM.format(**(USUAL | names))


def scopes_with(into: str, folder: Path) -> list[frozenset[str]]:
    """Return the names in each function of many modules with a temporary so called."""
    found: list[frozenset[str]] = []
    for text in (
        program(into=into),
        program(into=into, combine="argmin", source="_source"),
        program(into="gq", reduced=into),
        MATRIX.format(into=into),
        SEARCH.format(into=into),
    ):
        step = Snippet(folder, text).load().step
        for options in OPTIONS:
            try:
                kernel = step.fold(**{"k": 3, "dtype": "float32"} | options)
            except fg.PlanError:  # what atomics cannot combine, or a solve in a push
                continue
            found += scopes(kernel.source)
            if "active" in text and options == {"target": "cuda"}:
                found += scopes(kernel.in_form(WORKLIST).source)
    return found


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> list[frozenset[str]]:
    return scopes_with(NEUTRAL, tmp_path_factory.mktemp("names"))


def test_no_name_of_a_temporary_is_that_of_anything_else(
    generated: list[frozenset[str]], tmp_path: Path
) -> None:
    """Of words, and of all names in generated modules."""
    words = set().union(*generated, WORDS, GENERATED, LOOPS, TRIANGLES, dir(builtins))
    assert {"hit", "is_due", "low", "block_sums_0", "limit", "products_column"} <= words
    own = [frozenset(n for n in names if NEUTRAL in n) for names in generated]
    split = {(o, names - o) for o, names in zip(own, generated, strict=True) if o}
    giving_way = set()
    for word in (w for w in words if not name_problem(w) and NEUTRAL not in w):
        [name] = name_temporaries([word], GENERATED, ()).values()
        for own, others in split:
            if not others.isdisjoint(n.replace(NEUTRAL, name) for n in own):
                giving_way.add(word)
    # Functions and locals of users, and rows, are named when temporaries have names.
    own_names = re.compile(r"lq|oq|sums|gathers|ends|products|lowest|solution|xq?_")
    assert [word for word in giving_way if not own_names.match(word)] == []
    for word in ("gathers", "products_column", "solution", "xq_v"):
        assert word in giving_way
        sizes = [len(names) for names in scopes_with(word, tmp_path)]
        assert sizes == [len(names) for names in generated], word


def test_names_of_temporaries_differ_from_each_other() -> None:
    intos = ["low", "new_low", "low_0", "low_source", "hit", "hit_", "own", "x"]
    names = name_temporaries(intos, GENERATED, {"x__", "own_"})
    assert list(names) == intos
    assert names["low"] == "low"  # text that is there stays
    forms = [form for name in names.values() for form in forms_of(name)]
    assert len(forms) == len(set(forms))
    assert not GENERATED & set(forms)
    assert not {"own_"} & set(names.values())


def try_into(name: str) -> None:
    @fg.gather(into=name)
    def gathers(f, u, v, e, d):
        return d.x[u, f]


def try_reduce(name: str) -> None:
    @fg.reduce(into=name)
    def reduces(f, v, d):
        return d.x[v, f]


GRAPH = fg.Graph.from_edges([0, 1, 2, 3, 0], [1, 2, 3, 4, 2])


@pytest.mark.parametrize(
    "declare",
    [
        try_into,
        try_reduce,
        lambda name: fg.State(GRAPH, **{name: 1.0}),
        lambda name: fg.State(GRAPH, **{name: fg.vertex_property(np.zeros(5))}),
    ],
    ids=["gather", "reduce", "scalar", "property"],
)
def test_refused_is_what_the_docs_list(declare: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", page.split("Reserved are")[1].split(".\n")[0]))
    assert listed == RESERVED | METHODS
    refused = set()
    for name in {*WORDS, *GENERATED, *LOOPS, *TRIANGLES, *listed, *dir(builtins)}:
        if keyword.iskeyword(name) or name.startswith("_"):
            continue
        try:
            declare(name)
        except fg.FeatGraphError as error:
            refused |= {name} if "is reserved" in error.what else set()
    assert refused == listed


def many(words: list[str], combines: list[str]) -> str:
    """Return a program with names of all kinds, none of them twice but a local's."""
    take = iter(words)
    prop, scalar, reduced = (next(take) for _ in range(3))
    text = program(
        prop=prop, scalar=scalar, reduced=reduced, function=next(take),
        into=next(take), local=reduced, other=prop,
    )  # fmt: skip
    text = text[: text.index("@fg.vertex")]
    functions = [*re.findall(r"def (\w+)\(", text)]
    intos = []
    for combine in combines:
        function, into, local = (next(take) for _ in range(3))
        functions.append(function)
        source = "_source" if combine.startswith("arg") else ""
        intos += [f"d.{into}[v, f]", f"d.{into}{source}[v, 0]"]
        text += f'''
@fg.gather(into="{into}", combine="{combine}")
def {function}(f, u, v, e, d):
    {into} = d.{prop}[u, f] * 2
    {local} = d.{prop}[v, f] - {into}
    return {local}
'''
    functions.append(next(take))
    return (
        text
        + f"""
@fg.vertex
def {functions[-1]}(f, v, d):
    {into} = {" + ".join(intos)} + d.{reduced}[f]
    d.{prop}_next[v, f] = {into}
    return {into} % 2 == 0

step = fg.foldmap({", ".join(functions)})
"""
    )


def drawn(seed: int, generated: list[frozenset[str]]) -> tuple[str, str, str]:
    """Return a program with names that were drawn, its property and its scalar."""
    rng = np.random.default_rng(seed)
    names = set().union(*generated, WORDS, GENERATED, LOOPS)
    usable = [
        name
        for name in sorted(names)
        if NEUTRAL not in name and name_problem(name) is None
        if name not in {"f", "u", "v", "e", "d", "fg", "range"}
    ]
    words = [str(word) for word in rng.choice(usable, 40, replace=False)]
    return many(words, ["sum", "argmin", "max", "argmax"]), words[0], words[1]


@pytest.mark.drawn(20)
@pytest.mark.parametrize("seed", range(40))
def test_names_change_no_result(
    seed: int, generated: list[frozenset[str]], tmp_path: Path
) -> None:
    text, prop, scalar = drawn(seed, generated)
    values = np.random.default_rng(seed).integers(-9, 9, (5, 2), dtype=np.int32)
    rows = fg.vertex_property(values, iterated=True)
    state = fg.State(GRAPH, **{prop: rows, scalar: 3})
    step = Snippet(tmp_path, text).load().step
    outcome = reference.superstep(step.program, *reference.from_state(state))
    step(state, target="cpu")
    for name in (prop,):
        np.testing.assert_array_equal(state[name], outcome.values[name], err_msg=text)


#: A vertex function with more calls, and a foldmap of more functions, than letters.
MANY = """
@fg.vertex
def adds(f, v, d):
    {calls}
    d.x_next[v, f] = {names}
    return True

def made():
    @fg.vertex
    def step(f, v, d):
        d.x_next[v, f] = d.x_next[v, f] + 1.0
        return True
    return step

many = fg.foldmap(adds, *(made() for _ in range(30)))
"""


def test_there_are_more_names_than_letters(tmp_path: Path) -> None:
    names = [f"s{n}" for n in range(30)]
    calls = [f"{name} = 1.0 + fg.feature_sum(d.x[v, f])" for name in names]
    text = MANY.format(calls="\n    ".join(calls), names=" + ".join(names))
    values = np.arange(10, dtype=np.float64).reshape(5, 2)
    state = fg.State(GRAPH, x=fg.vertex_property(values, iterated=True))
    Snippet(tmp_path, text).load().many(state, target="cpu")
    sums = values.sum(axis=1, keepdims=True).repeat(2, axis=1)
    np.testing.assert_array_equal(state["x"], 30 * (1 + sums) + 30)
