"""Every program in every kind of plan, printed without compiling.

A `Case` is a foldmap at one width, a `Variant` what else a plan depends on: target,
options, traits of the graph, form. `texts` prints the modules of a case.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

import featgraph as fg
import featgraph.algorithms
from featgraph.base.errors import PlanError, UserFunctionError
from featgraph.fold.analysis.changes import Changes
from featgraph.fold.folder import assumed_signature
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from tests.bank import BANK
from tests.programs import triangles
from tests.programs.monotone import MONOTONE
from tests.programs.queued import QUEUED
from tests.texts.paths import normalised

__all__ = ["VARIANTS", "Case", "Variant", "cases_by_name", "drawn", "texts"]

WIDTHS = (1, 3, 8, 33)
#: Of so many variants in a row, one is drawn.
DRAWN = 20


@dataclass(frozen=True)
class Variant:
    """Inputs of a plan beside the program and its width.

    Attributes
    ----------
    name : str
        Its parts, as in "cuda-nfa-push-hubs-packed".
    options : Options
    traits : GraphTraits
    form : str
        "plain", "packed" or "listed".
    """

    name: str
    options: Options
    traits: GraphTraits
    form: str = "plain"


@dataclass(frozen=True)
class Case:
    """A foldmap at one width.

    Attributes
    ----------
    name : str
        Where the foldmap stands, and the width, as in "bfs.0-k8".
    foldmap : FoldMap
    signature : Signature
    needs_twins : bool
        Whether it runs on undirected graphs only.
    """

    name: str
    foldmap: Any
    signature: Any
    needs_twins: bool


MAPPINGS = {
    "cpu": {"target": "cpu"},
    "cuda-fa": {"target": "cuda", "feature_parallel": True},
    "cuda-nfa": {"target": "cuda", "feature_parallel": False},
}
#: In graphs of all kinds.
CHOICES: dict[str, dict[str, Any]] = {
    "pull": {"direction": "pull"},
    "push": {"direction": "push"},
    "kept": {"direction": "pull", "incremental": Changes()},
    "asynchronous": {"asynchronous": True},
}
#: In plain ones only.
RARE: dict[str, dict[str, Any]] = {
    "auto": {},
    "checked": {"checked": True},
    "checked-push": {"direction": "push", "checked": True},
    "unfolded": {"folding": False},
    "block": {"schedule": "block"},
    "mark": {"schedule": "mark"},
    "merge": {"schedule": "merge"},
    "search": {"schedule": "search"},
    "virtual": {"schedule": "virtual_warp", "of_schedule": (("lanes_per_vertex", 4),)},
    "segments": {"schedule": "warp_segmentation"},
    "shares": {"schedule": "balanced_push", "direction": "push"},
}
TRAITS = {
    "plain": GraphTraits(),
    "hubs": GraphTraits(has_hubs=True),
    "long": GraphTraits(has_hubs=True, long_rows=True, has_giant=True),
    "wide": GraphTraits(wide_offsets=True, wide_both=True),
    "few": GraphTraits(typical_degree=4),
    "fewest": GraphTraits(typical_degree=2, has_hubs=True),
    "undirected": GraphTraits(undirected=True),
}
#: Kernels that sweep the vertices of a set depend on hubs at most.
FORMS = [
    (choice, traits, form)
    for choice in ("pull", "push", "kept")
    for traits in ("plain", "hubs")
    for form in ("packed", "listed")
]


def _variants() -> Iterator[Variant]:
    for mapping, common in MAPPINGS.items():
        plans = [*itertools.product(CHOICES, TRAITS), *((c, "plain") for c in RARE)]
        swept = [(choice, traits, "plain") for choice, traits in plans]
        for choice, traits, form in swept + FORMS * (mapping != "cpu"):
            if mapping == "cpu" and traits in {"hubs", "few", "fewest"}:
                continue  # one mapping takes all of them
            options = Options(**common, **(CHOICES | RARE)[choice])
            parts = [mapping, choice, traits, form]
            name = "-".join(part for part in parts if part != "plain")
            yield Variant(name, options, TRAITS[traits], form)


VARIANTS = tuple(_variants())


def drawn(case: Case) -> list[Variant]:
    """Return one of each `DRAWN` variants, always the same."""
    found = []
    for first in range(0, len(VARIANTS), DRAWN):
        some = VARIANTS[first : first + DRAWN]
        number = zlib.crc32(f"{case.name} {first}".encode()) % len(some)
        found.append(some[number])
    return found


def texts(
    case: Case, variants: Iterable[Variant], phase: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the name of each variant and the text of its module.

    Parameters
    ----------
    case : Case
    variants : iterable of Variant
    phase : str, optional
        Only plans with a phase of this kind, and those that are refused.

    Notes
    -----
    Of a plan that is refused, the text is the kind of error: its words may change.
    """
    for variant in variants:
        try:
            plan = _plan(case, variant)
            if phase is not None and phase not in {p.kind.name for p in plan.phases}:
                continue
            text = normalised(emit(plan).text)
        except (PlanError, UserFunctionError) as error:
            text = f'"""Refused: {type(error).__name__}."""\n'
        yield variant.name, text


def _plan(case: Case, variant: Variant) -> FoldPlan:
    traits = variant.traits
    if case.needs_twins:
        traits = replace(traits, undirected=True, wide_both=False)
    plan = make_plan(case.foldmap.program, case.signature, variant.options, traits)
    return replace(plan, frontier_form=variant.form)


@cache
def cases_by_name() -> dict[str, Case]:
    """Return all cases, but of foldmaps without features those of one width."""
    return {case.name: case for case in _cases()}


def _cases() -> Iterator[Case]:
    for name, foldmap, signature_of, needs_twins in _foldmaps():
        seen: list[Any] = []
        for k in WIDTHS:
            signature = signature_of(k)
            if signature not in seen:
                seen.append(signature)
                yield Case(f"{name}-k{k}", foldmap, signature, needs_twins)


def _foldmaps() -> Iterator[tuple[str, Any, Callable[[int], Any], bool]]:
    """Yield name, foldmap, signature of each width, and whether it needs twins."""
    for program in BANK:
        given = _of_state(program.make_state, directed=not program.undirected)
        for number, foldmap in enumerate(program.foldmaps):
            yield f"{program.name}.{number}", foldmap, given, program.undirected
    for monotone in MONOTONE:
        given = _of_state(monotone.make_state)
        for number, foldmap in enumerate(monotone.foldmaps):
            yield f"monotone.{monotone.name}.{number}", foldmap, given, False
    for name, (foldmap, make_state, _, _) in QUEUED.items():
        yield f"queued.{name}", foldmap, _of_state(make_state), False
    for name, foldmap in triangles.PROGRAMS.items():
        yield f"triangles.{name}", foldmap, _of_state(_with_triangles, False), True
    for name, foldmap in _of_algorithms():
        yield name, foldmap, partial(_assumed, foldmap), False


def _of_state(make_state: Any, directed: bool = True) -> Callable[[int], Any]:
    graph = fg.Graph.from_edges(range(8), range(1, 9), directed=directed)

    def signature_of(k: int) -> Any:
        values = make_state(graph, k, np.random.default_rng(0))
        return fg.State(graph, **values).signature

    return signature_of


def _with_triangles(graph: Any, k: int, rng: Any) -> dict[str, Any]:
    return triangles.make_state(graph, rng)


def _assumed(foldmap: Any, k: int) -> Any:
    return assumed_signature(foldmap.program, k, "float32")


def _of_algorithms() -> Iterator[tuple[str, Any]]:
    """Yield the foldmaps that modules of algorithms hold, each by its first name."""
    seen: list[Any] = []
    for module in pkgutil.iter_modules(featgraph.algorithms.__path__):
        held = importlib.import_module(f"featgraph.algorithms.{module.name}")
        for name, value in vars(held).items():
            for found, foldmap in _found_in(value, f"{module.name}.{name}"):
                if foldmap not in seen:
                    seen.append(foldmap)
                    yield found, foldmap


def _found_in(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, fg.FoldMap):
        yield name, value
    elif isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            parts = key if isinstance(key, tuple) else (key,)
            yield from _found_in(inner, ".".join([name, *map(str, parts)]))
