"""Plans: where kernels begin and why, options, digests, and what generated text is."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.base import store
from featgraph.cuda import dialect
from featgraph.fold.compiling import compile as compiling
from featgraph.fold.compiling.compile import check_module
from featgraph.fold.folder import assumed_signature
from featgraph.program.signature import GENERATED
from tests.bank import BANK, BY_NAME
from tests.unit.snippets import Snippet, fold, make_state


@pytest.fixture(scope="module")
def state() -> fg.State:
    return make_state()


# Boundaries

FUNCTIONS = {
    "own": ("vertex", "d.y[v, f] = d.x[v, f]\n    return True"),
    "own_again": ("vertex", "d.y[v, f] = d.y[v, f] + 1.0\n    return True"),
    "reads_y": ("gather", "return d.y[u, f]"),
    "reads_x": ("gather", "return d.x[u, f]"),
    "takes_t": ("vertex", "d.x_next[v, f] = d.t[v, f]\n    return True"),
    "reads_next": ("gather", "return d.x_next[u, f]"),
    "other_width": ("vertex", "d.wide[v, f] = 1.0\n    return True"),
    "no_width": ("vertex", "d.s[v] = 1.0\n    return True"),
    "foreign": ("vertex", "d.s[v] = d.y[d.parent[v], f]\n    return True"),
    "far": ("vertex", "d.s[v] = d.y[d.parent[v], 0]\n    return True"),
    "counts": ("reduce", "return d.y[v, f]"),
    "takes_r": ("vertex", "d.x_next[v, f] = d.r[f]\n    return True"),
    "over": ("edge", "return d.y[u, f] > 0"),
    "adds": ("edge", "fg.atomic.add(d.y, (v, f), 1.0)\n    return True"),
    "adds_again": ("edge", "fg.atomic.add(d.y, (u, f), 1.0)\n    return True"),
    "writes_x": ("vertex", "d.x_next[v, f] = 1.0\n    return True"),
}
ROLES = {"vertex": "f, v, d", "reduce": "f, v, d"}

BOUNDARIES = [
    # functions, options, kernels, part of the last reason
    (["own"], {}, 1, "it is the first"),
    (["own", "own_again"], {}, 1, "it is the first"),
    (["own", "no_width"], {}, 1, "it is the first"),
    (["reads_x", "takes_t"], {}, 1, "it is the first"),
    (["own", "other_width"], {}, 2, "other_width has another width (4 features)"),
    (["own", "reads_y"], {}, 2, "own writes y (own), which reads_y reads (neighbor)"),
    (["reads_y", "own"], {}, 2, "reads_y reads y (neighbor), which own writes (own)"),
    (
        ["writes_x", "reads_next"],
        {},
        2,
        "writes_x writes x_next (own), which reads_next",
    ),
    (["writes_x", "reads_x"], {}, 1, "it is the first"),
    (["own", "far"], {}, 2, "own writes y (own), which far reads (foreign)"),
    (["far", "own"], {}, 2, "far reads y (foreign), which own writes (own)"),
    (["own", "counts"], {}, 2, "a reduce runs over all vertices"),
    (["counts", "takes_r"], {}, 2, "a reduce runs over all vertices"),
    (["own", "over"], {}, 2, "own sweeps vertices, over edges"),
    (["over", "own"], {}, 2, "over sweeps edges, own vertices"),
    (["adds", "adds_again"], {}, 1, "it is the first"),
    (["adds", "over"], {}, 2, "adds writes y (neighbor), which over reads"),
    (["reads_x", "takes_t"], {"direction": "push"}, 2, "reads_x is pushed: its sums"),
    (["own", "own_again"], {"folding": False}, 2, "folding is off"),
    (["own", "own_again", "own"], {"folding": False}, 3, "folding is off"),
    (["reads_x", "takes_t", "counts"], {"direction": "push"}, 3, "a reduce runs"),
]


def text_of(names: list[str]) -> str:
    parts = []
    for place, name in enumerate(names):
        kind, body = FUNCTIONS[name]
        into = {"gather": '(into="t")', "reduce": '(into="r")'}.get(kind, "")
        roles = ROLES.get(kind, "f, u, v, e, d")
        called = name if names.index(name) == place else f"{name}_{'x' * place}"
        parts.append(f"@fg.{kind}{into}\ndef {called}({roles}):\n    {body}\n")
    return "\n".join(parts)


@pytest.mark.parametrize(
    ("names", "options", "count", "reason"),
    BOUNDARIES,
    ids=["-".join([*n, *o]) for n, o, _, _ in BOUNDARIES],
)
@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_boundaries(
    names: list[str],
    options: dict[str, Any],
    count: int,
    reason: str,
    on: str,
    state: fg.State,
    tmp_path: Path,
) -> None:
    kernel = fold(Snippet(tmp_path, text_of(names)), state, target=on, **options)
    phases = kernel.plan.phases
    assert [i for p in phases for i in p.functions] == list(range(len(names)))
    assert len(phases) == count, str(kernel.plan)
    assert reason in phases[-1].reason
    explained = kernel.explain()
    for phase in phases:
        assert f"begins here: {phase.reason}" in explained
    for name in names:
        assert name in explained
    main = {e.phase for e in kernel.entries if e.role == "main"}
    assert main == set(range(count))


def test_explain_shows_where_temporaries_live(state: fg.State, tmp_path: Path) -> None:
    snippet = Snippet(tmp_path, text_of(["reads_x", "takes_t"]))
    kept = fold(snippet, state).explain()
    assert "temporary t" in kept
    assert "never in global memory" in kept
    assert "A and every vertex that gathers from it" in kept
    assert re.search(r"write +x_next +own", kept)
    pushed = fold(snippet, state, direction="push").explain()
    assert "in memory" in pushed
    assert " stores: " not in str(fold(snippet, state).plan)


def test_plans_are_data(state: fg.State, tmp_path: Path) -> None:
    plan = fold(Snippet(tmp_path, text_of(["own", "reads_y"])), state).plan
    data = json.loads(json.dumps(plan.as_dict()))
    assert [p["functions"] for p in data["phases"]] == [["own"], ["reads_y"]]
    assert data["target"] == "cpu"
    with pytest.raises(AttributeError):
        plan.phases = ()


# Options

BAD_OPTIONS = {
    "name": ({"direktion": "push"}, "there is no option 'direktion'"),
    "change_driven": ({"change_driven": "no"}, "change_driven cannot be 'no'"),
    "direction": ({"direction": "sideways"}, "direction cannot be 'sideways'"),
    "direction type": ({"direction": 3}, "direction cannot be 3"),
    "direction list": ({"direction": ["push"]}, "direction cannot be ['push']"),
    "folding": ({"folding": "no"}, "folding cannot be 'no'"),
    "feature_parallel": ({"feature_parallel": None}, "feature_parallel cannot be None"),
    "deterministic": ({"deterministic": "yes"}, "deterministic cannot be 'yes'"),
    "schedule": ({"schedule": "warp"}, "schedule cannot be 'warp'"),
    "array": ({"direction": np.ones(2)}, "direction cannot be"),
    "both": (
        {"schedule": "thread", "feature_parallel": True},
        "the thread schedule gives all features",
    ),
}


@pytest.mark.parametrize(("options", "what"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_options(
    options: dict[str, Any], what: str, state: fg.State, tmp_path: Path
) -> None:
    step = Snippet(tmp_path, text_of(["own"]) + "\nstep = fg.foldmap(own)").load().step
    before = state["y"]
    for call in (step, lambda s, **o: fg.iterate(step, s, **o)):
        with pytest.raises(fg.PlanError) as caught:
            call(state, target="cpu", **options)
        assert isinstance(caught.value, ValueError)
        assert what in str(caught.value)
        assert caught.value.expected or caught.value.fix
    np.testing.assert_array_equal(state["y"], before)
    assert state.superstep == 0


@pytest.mark.parametrize("bad", ["gpu", "", "CPU", None, 3])
def test_targets(bad: Any, state: fg.State, tmp_path: Path) -> None:
    step = Snippet(tmp_path, text_of(["own"]) + "\nstep = fg.foldmap(own)").load().step
    for call in (step, step.fold, step.explain):
        with pytest.raises(fg.PlanError, match="unknown target") as caught:
            call(state, target=bad)
        assert "auto, cpu or cuda" in str(caught.value)


def test_cuda_without_a_gpu(
    state: fg.State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Snippet(tmp_path, text_of(["own"]) + "\nstep = fg.foldmap(own)").load().step
    if dialect.is_available():
        pytest.skip("there is a GPU")
    before = state["y"]
    for call in (step, lambda s, **o: fg.iterate(step, s, **o)):
        with pytest.raises(fg.DeviceError) as caught:
            call(state, target="cuda")
        assert isinstance(caught.value, RuntimeError)
        assert caught.value.fix
    np.testing.assert_array_equal(state["y"], before)
    assert "device_function" in step.fold(state, target="cuda").source
    with pytest.raises(fg.ArgumentError, match=r"config.target=.*\n.*'nowhere'"):
        fg.config.target = "nowhere"
    monkeypatch.setitem(vars(fg.config), "target", "nowhere")  # of the environment
    with pytest.raises(fg.PlanError, match="unknown target"):
        step(state)


@pytest.mark.parametrize("bad", [None, 3, "state", {}, np.ones(3)])
def test_no_state(bad: Any, tmp_path: Path) -> None:
    step = Snippet(tmp_path, text_of(["own"]) + "\nstep = fg.foldmap(own)").load().step
    for call in (step, lambda s, **o: fg.iterate(step, s, **o)):
        with pytest.raises(fg.StateError, match="runs on a State") as caught:
            call(bad, target="cpu")
        assert "fg.State(graph, ...)" in str(caught.value)


def test_deterministic(state: fg.State, tmp_path: Path) -> None:
    sums = Snippet(tmp_path, text_of(["reads_x", "takes_t"]))
    fold(sums, state, deterministic=True)
    with pytest.raises(fg.PlanError, match="pushed with atomics") as caught:
        fold(sums, state, deterministic=True, direction="push")
    assert "direction='pull'" in str(caught.value)
    atomics = Snippet(tmp_path, text_of(["adds"]))
    with pytest.raises(fg.PlanError, match=r"uses fg\.atomic"):
        fold(atomics, state, deterministic=True)
    exact = text_of(["reads_x"]).replace('"t"', '"t", combine="min"')
    fold(Snippet(tmp_path, exact), state, deterministic=True, direction="push")
    integers = text_of(["reads_x"]).replace("d.x", "d.n")
    fold(Snippet(tmp_path, integers), state, deterministic=True, direction="push")


@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_push_with_wide_keys(on: str, tmp_path: Path) -> None:
    text = text_of(["reads_x"]).replace('"t"', '"t", combine="argmin"')
    fold(Snippet(tmp_path, text), make_state(), direction="push", target=on)
    with pytest.raises(fg.PlanError, match="64 bits") as caught:
        fold(
            Snippet(tmp_path, text),
            make_state(dtype=np.float64),
            direction="push",
            target=on,
        )
    assert "direction='pull'" in str(caught.value)


def test_too_many_features(tmp_path: Path) -> None:
    step = Snippet(tmp_path, text_of(["own"]) + "\nstep = fg.foldmap(own)").load().step
    with pytest.raises(fg.PlanError, match="more features") as caught:
        step.fold(k=1025, target="cpu")
    assert "1025" in str(caught.value)


@pytest.mark.parametrize("k", [0, -1, 2.0, "3", None, True])
def test_k_is_a_count(k: Any, tmp_path: Path) -> None:
    step = Snippet(tmp_path, text_of(["own"]) + "\nstep = fg.foldmap(own)").load().step
    with pytest.raises(fg.PlanError, match="k=: the number of features is a count"):
        step.fold(k=k, target="cpu")


@pytest.mark.parametrize("dtype", ["float16", "int32", "", "x;import os", None])
def test_real_dtypes(dtype: Any, tmp_path: Path) -> None:
    step = Snippet(tmp_path, text_of(["own"]) + "\nstep = fg.foldmap(own)").load().step
    with pytest.raises(fg.PlanError, match="'float32' or 'float64'"):
        step.fold(dtype=dtype, target="cpu")


# Signatures that are assumed


def test_assumed_signature(tmp_path: Path) -> None:
    text = """
    @fg.edge
    def over(f, u, v, e, d):
        m = fg.matvec(d.psi[e], d.x[u, f]) + d.msg[fg.reverse(e), f] * d.w[e]
        d.msg_next[e, f] = m + fg.dot(d.row[u], d.row[v]) + d.bias[f]
        fg.atomic.add(d.visits, (v, f), 1.0)
        return m > d.alpha

    @fg.gather(into="t", combine="argmin")
    def filled(f, u, v, e, d):
        return d.x[d.parent[u], f] + d.x[d.root, f]

    @fg.vertex
    def use(f, v, d):
        d.x_next[v, f] = d.t[v, f] + d.superstep + d.in_degree[v]
        d.best[v, f] = d.t_source[v, f] + d.M[v, 0, f]
        return d.r[f] > 0

    @fg.reduce(into="r")
    def reduced(f, v, d):
        return d.x[v, f]

    step = fg.foldmap(over, filled, reduced, use)
    """
    step = Snippet(tmp_path, text).load().step
    signature = assumed_signature(step.program, 4, "float64")
    described = {name: type_.describe() for name, type_ in signature.items()}
    assert described == {
        "M": "vertex float64 (V, 4, 4)",
        "alpha": "scalar real",
        "best": "vertex float64 (V, 4)",
        "bias": "vector float64 (4,)",
        "msg": "edge float64 (E, 4), iterated",
        "parent": "vertex int32 (V,)",
        "psi": "edge float64 (E, 4, 4)",
        "root": "scalar int64",
        "row": "vertex float64 (V, 4)",
        "visits": "vertex float64 (V, 4)",
        "w": "edge float64 (E,)",
        "x": "vertex float64 (V, 4), iterated",
    }


@pytest.mark.parametrize("program", BANK, ids=repr)
def test_every_program_folds_without_a_state(program: Any) -> None:
    k = program.widths[0]
    for step in program.foldmaps:
        for target in ("cpu", "cuda"):
            assert step.fold(k=k, target=target).source


# Generated text

TEXTS = [
    pytest.param(step, k, {"target": on, **options}, id=f"{p.name}-{k}-{on}-{label}")
    for p in BANK
    for step in p.foldmaps[-1:]
    for k in sorted({p.widths[0], p.widths[-1]})
    for on in ("cpu", "cuda")
    for label, options in {
        "": {},
        "push": {"direction": "push"},
        "nfa": {"feature_parallel": False},
    }.items()
    if not (on == "cpu" and label == "nfa")
]


@fg.vertex
def halve(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v] = d.x[v] / 2
    return True


@fg.vertex
def take_wide(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v] = d.wide[v]
    return True


@pytest.mark.parametrize(("used", "real"), [(halve, "float32"), (take_wide, "float64")])
def test_reals_are_as_wide_as_what_is_used(used: Any, real: str) -> None:
    state = fg.State(
        fg.Graph.from_edges([0], [1]),
        x=fg.vertex_property(np.float32(0), iterated=True),
        wide=fg.vertex_property(np.float64(0)),
    )
    assert fg.foldmap(used).fold(state=state, target="cpu").plan.real == real


def folded(step: Any, k: int, options: dict[str, Any]) -> Any:
    try:
        return step.fold(k=k, **options)
    except fg.PlanError:
        return step.fold(k=k, **(options | {"direction": "pull"}))
    except fg.UserFunctionError as error:
        if "on this mapping" not in error.what:
            raise
        pytest.skip(f"not printed for this mapping: {error.what}")


@pytest.mark.parametrize(("step", "k", "options"), TEXTS)
def test_generated_text(step: Any, k: int, options: dict[str, Any]) -> None:
    kernel = folded(step, k, options)
    text = kernel.source
    root = str(Path(__file__).parents[2])
    for line in text.split("\n"):
        # Comments name the user's file, whose path is as long as it is.
        shown = line.replace(f"{root}/", "")
        limit = 160 if shown.startswith("def ") else 88
        assert len(shown) <= limit, line
        assert line == line.rstrip(), line
    if kernel.plan.real == "float32":
        # Imported on the CPU target, and used nowhere.
        body = re.sub(r"from numba import .*", "", text)
        assert "float64" not in body
    forms = ("packed", "listed") if kernel.plan.target == "cuda" else ()
    for module in (text, *(kernel.in_form(form).source for form in forms)):
        check_module(module)
        reserved_names_cover(kernel, module)


def reserved_names_cover(kernel: Any, text: str) -> None:
    """Hold GENERATED against the names that kernels use, users' functions apart."""
    analysis = kernel.plan.analysis
    own = {f.name for f in analysis.functions} | {h.name for h in analysis.helpers}
    intos = {str(f.into) for f in analysis.functions}
    used: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            used |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.FunctionDef):
            stem = re.sub(r"(_rest)?(_\d+)?$", "", node.name)
            if stem in own or node.name in own:
                continue
            used |= {a.arg for a in node.args.args}
            used |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    stems = {re.sub(r"^(held|next|shared)_.*|(_\d+)+$", "", name) for name in used}
    allowed = GENERATED | own | intos | {f"{i}_source" for i in intos}
    allowed |= {"", "total", "device_function", *(f"new_{i}" for i in intos)}
    # Loaded rows, entries, matrices at hand: their names are apart from all others.
    allowed |= {name.rpartition("_")[0] for name in analysis.entries}
    allowed |= {
        f"{name}{version}_{entity}"
        for name in analysis.signature
        for version in ("", "_next")
        for entity in ("u", "v", "e", "twin")
    }
    rest = {s for s in stems - allowed if not any(s.startswith(f"{o}_") for o in own)}
    assert not rest, (
        f"add them to featgraph.program.signature.GENERATED: {sorted(rest)}"
    )


def test_check_module_finds_unbound_names() -> None:
    check_module("import math\ndef f(a):\n    b = a\n    return math.sqrt(b)\n")
    with pytest.raises(fg.FeatGraphError, match="uses 'nowhere'"):
        check_module("def f(a):\n    return nowhere(a)\n")
    with pytest.raises(fg.FeatGraphError, match="does not parse"):
        check_module("def f(a:\n")


BASE = """
from other_module import imported

SCALE = 2.5

def helper(x):
    return x * SCALE

@fg.collaborative
def shared(x):
    return x - fg.feature_max(x)

@fg.gather(into="t", combine="sum")
def total(f, u, v, e, d):
    return d.x[u, f] + imported(d.s[u])

@fg.vertex
def finish(f, v, d):
    d.x_next[v, f] = helper(d.t[v, f]) + shared(d.y[v, f])
    return True

step = fg.foldmap(total, finish)
"""
OTHER = "def imported(x):\n    return x + 1.5\n"


def digest(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str = BASE,
    other: str = OTHER,
    state: fg.State | None = None,
    **options: Any,
) -> str:
    """Return the file name in the store of a program in two files."""
    (folder / "other_module.py").write_text(other, encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.delitem(__import__("sys").modules, "other_module", raising=False)
        step = Snippet(folder, text).load().step
        patch.delitem(__import__("sys").modules, "other_module", raising=False)
    kernel = step.fold(state or make_state(), **({"target": "cpu"} | options))
    return compiling.module_path(kernel.source, "digest").name


def test_digests_are_stable_and_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fg.config, "cache_dir", tmp_path / "cache")
    made = {"": digest(tmp_path, monkeypatch)}
    assert digest(tmp_path, monkeypatch) == made[""], "one input, one digest"

    def edited(name: str, old: str, new: str) -> None:
        assert old in BASE
        made[name] = digest(tmp_path, monkeypatch, BASE.replace(old, new))

    edited("user function", "True", "d.t[v, f] > 0")
    edited("global", "SCALE = 2.5", "SCALE = 2.25")
    edited("helper", "x * SCALE", "x / SCALE")
    edited("own operation", "x - fg", "x + fg")
    edited("combine", '"sum"', '"max"')
    edited("name", "total", "totals")
    made["other file"] = digest(
        tmp_path, monkeypatch, other=OTHER.replace("1.5", "1.75")
    )
    made["dtype"] = digest(tmp_path, monkeypatch, state=make_state(dtype=np.float64))
    made["direction"] = digest(tmp_path, monkeypatch, direction="push")
    made["folding"] = digest(tmp_path, monkeypatch, folding=False)
    made["target"] = digest(tmp_path, monkeypatch, target="cuda")
    made["NFA"] = digest(tmp_path, monkeypatch, target="cuda", feature_parallel=False)
    with monkeypatch.context() as patch:
        patch.setattr(fg.config, "checked", True)
        made["checked"] = digest(tmp_path, monkeypatch)
    versions = store._versions()
    assert {v.split()[0] for v in versions if " " in v} >= {
        "python",
        "numba",
        "llvmlite",
    }
    for place in range(len(versions)):
        with monkeypatch.context() as patch:
            changed = (*versions[:place], "other", *versions[place + 1 :])
            patch.setattr(store, "_versions", lambda changed=changed: changed)
            made[f"version {place}"] = digest(tmp_path, monkeypatch)
    assert digest(tmp_path, monkeypatch) == made[""]
    assert len(made) >= 13
    assert len(set(made.values())) == len(made), made


def test_k_is_in_the_digest() -> None:
    step = BY_NAME["label_propagation"].foldmaps[0]
    assert step.fold(k=3, target="cpu").source != step.fold(k=4, target="cpu").source
    assert step.fold(k=3, target="cpu") is step.fold(k=3, target="cpu")


def test_what_is_dropped_and_what_reads_it_elsewhere_are_kernels_apart() -> None:
    """Whichever of them comes first."""
    plan = BY_NAME["dropped"].foldmaps[2].fold(k=2, target="cpu").plan
    reasons = [phase.reason for phase in plan.phases]
    for reading in ("look_around", "look_again"):
        assert f"stay may drop x_next, which {reading} reads (neighbor)" in reasons


@fg.vertex
def mark(f, v, d):
    fg.atomic.max(d.seen, d.pick[v], v + 1)
    return False


def marked_state(dtype: str) -> fg.State:
    return fg.State(
        fg.Graph.from_edges([0, 1], [1, 2]),
        seen=fg.vertex_property(np.zeros(3, dtype)),
        pick=fg.vertex_property(np.array([1, 1, 0])),
    )


@pytest.mark.parametrize(
    ("dtype", "where"),
    [("uint8", "cuda"), ("int16", "cuda"), ("bool", "cuda"), ("bool", "cpu")],
)
def test_atomics_on_types_without_any_are_refused(dtype: str, where: str) -> None:
    with pytest.raises(fg.PlanError, match=rf"d\.seen.*no atomic(.|\n)*{dtype}"):
        fg.foldmap(mark).fold(marked_state(dtype), target=where)


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_atomics_on_narrow_integers_run_on_a_cpu(dtype: str) -> None:
    state = marked_state(dtype)
    fg.foldmap(mark)(state, target="cpu")
    assert state["seen"].tolist() == [3, 2, 0]
