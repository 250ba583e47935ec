"""The cases of the tools: programs in all variants of kernels, and batches of edges."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.record import ROOT

#: Where programs of a case come from, or what it runs otherwise.
KINDS = ("bank", "triangles", "monotone", "loops", "batches")
#: Options of `fg.iterate`. "graph", "on", "packed" and "checked" are for the child.
VARIANTS: dict[str, dict[str, Any]] = {
    "pull": {"direction": "pull"},
    "push": {"direction": "push"},
    "unfolded": {"folding": False},
    "hubs": {"graph": "hubs"},
    "push hubs": {"direction": "push", "graph": "hubs", "checked": True},
    "patched": {"change_driven": True},
    "swept": {"change_driven": False},
    "packed": {"packed": True},
    "listed": {"on": True},
    "pull NFA": {"direction": "pull", "feature_parallel": False},
    "push NFA": {"direction": "push", "feature_parallel": False},
    "patched NFA": {"change_driven": True, "feature_parallel": False},
    "packed NFA": {"packed": True, "feature_parallel": False},
    "listed NFA": {"on": True, "feature_parallel": False},
}
#: Where programs take any K: some of each form that kernels have.
NARROW, WIDE = (1, 3, 8, 10), (17, 33, 64)
#: Mean degrees: they decide how many edges a warp takes at a time.
DEGREES = (2, 8)


@dataclass(frozen=True)
class Batches:
    """Batches of a dynamic graph.

    Attributes
    ----------
    vertices, sizes : int, tuple of int
        Of the graph, and of batches that are drawn.
    few : int
        Most entries that one block plans.
    blocks : int
        Number of blocks that plan more. All of them pass each barrier, however few the
        entries, which is most of the time under racecheck.
    long_rows : tuple of int
        Sizes of batches that insert edges into two rows, delete some, and do both.
    """

    vertices: int
    sizes: tuple[int, ...]
    few: int
    blocks: int = 3
    long_rows: tuple[int, ...] = ()


#: Variants of batches. The lanes of a warp add up 32 blocks at a time. Several warps
#: copy a row of 2,048 edges (`dynamic.kernels_cuda.LONG`), and it is a hub: four fifths
#: of the edges in long rows are in one of them.
BATCHES = {
    "one block": Batches(12, (1, 5, 33, 70), 4096),
    "many blocks": Batches(12, (1, 5, 33, 70), 0, blocks=34),
    "hubs, one block": Batches(500, (300, 2600), 4096, long_rows=(5400, 400, 600)),
    "hubs, many blocks": Batches(500, (300, 2600), 0, long_rows=(5400, 400, 600)),
}


def import_tests() -> Any:
    """Import the tests of this checkout; return ``tests.bank``.

    By an explicit package: some distributions install a ``tests`` of theirs.
    """
    folder = str(ROOT / "tests")
    if folder not in getattr(sys.modules.get("tests"), "__path__", ()):
        package = types.ModuleType("tests")
        package.__path__ = [folder]
        sys.modules["tests"] = package
    return importlib.import_module("tests.bank")


def make_cases(seed: int = 0) -> list[dict[str, Any]]:
    """Return every program of the bank in every variant, each at a width in turn."""
    bank = import_tests()
    from tests.programs import monotone, triangles

    found = [*_of_bank(bank.BANK)]
    for name in triangles.PROGRAMS:
        for graph in ("plain", "hubs"):
            for schedule in ("auto", "search"):
                options = {"graph": graph, "schedule": schedule}
                found.append(_case("triangles", name, schedule, options, 1))
    for program in monotone.MONOTONE:
        options = {"asynchronous": True}
        found.append(_case("monotone", program.name, "any order", options, program.k))
        options |= {"feature_parallel": False, "graph": "hubs"}
        found.append(_case("monotone", program.name, "any order", options, program.k))
        if program.waits:
            options = {"near_far": program.key}
            found.append(
                _case("monotone", program.name, "near far", options, program.k)
            )
    found.append(_case("loops", "sets and rows", "", {}, 3))
    for variant in BATCHES:
        found += [_case("batches", f"drawn {n}", variant, {}, 1) for n in range(4)]
    for place, case in enumerate(found):
        case["seed"] = seed + place
        case["degree"] = DEGREES[place % len(DEGREES)]
    return found


def _of_bank(programs: Any) -> Iterator[dict[str, Any]]:
    for place, program in enumerate(programs):
        widths = [k for k in NARROW if k in program.widths]
        if 33 in program.widths:
            widths = [w for pair in zip(NARROW, (*WIDE, 17), strict=True) for w in pair]
        widths = widths or list(program.widths)
        for turn, (variant, options) in enumerate(VARIANTS.items()):
            k = widths[(place + turn) % len(widths)]
            yield _case("bank", program.name, variant, options, k)


def _case(
    kind: str, program: str, variant: str, options: dict[str, Any], k: int
) -> dict[str, Any]:
    options = dict(options)
    return {
        "kind": kind,
        "program": program,
        "variant": variant,
        "k": k,
        "graph": options.pop("graph", "plain"),
        "on": options.pop("on", False),
        "packed": options.pop("packed", False),
        "checked": options.pop("checked", False),
        "near_far": options.pop("near_far", None),
        "options": options,
    }
