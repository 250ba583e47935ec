"""Runs a generated program on ranks of this process and holds it against one's answers.

``python -m tests.generated.on_ranks --count 200`` runs many; what failed is printed as
a script for one rank, with the cuts and the order that it takes.
"""

from __future__ import annotations

import argparse
import collections
import random
import warnings
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

import featgraph as fg
from featgraph.distributed import run_ranks
from tests.generated.check import (
    Differs,
    Report,
    checked,
    interpret,
    kind_of,
    load,
    make_state,
    run_actions,
    small_is_large,
)
from tests.generated.programs import Case, generate
from tests.generated.script import script, smaller_cases

__all__ = ["Division", "check_on_ranks", "draw_division"]


#: Cuts and order, as `fg.distribute` takes them.
Division: TypeAlias = dict[str, Any]


def draw_division(rng: random.Random, vertex_count: int) -> Division:
    """Draw ranges for two to four ranks; some own nothing."""
    ranks = rng.choice((2, 2, 3, 4))
    inner = sorted(rng.choices(range(vertex_count + 1), k=ranks - 1))
    if rng.random() < 0.4:
        inner = sorted(min(-(-cut // 32) * 32, vertex_count) for cut in inner)
    order = rng.choice(("given", "spread", "own"))
    chosen: Any = order
    if order == "own":
        chosen = rng.sample(range(vertex_count), vertex_count)
    return {"cuts": [0, *inner, vertex_count], "order": chosen}


def check_on_ranks(case: Case, division: Division, target: str = "cpu") -> Report:
    """Run a case on ranks under all of its options; report refusals."""
    with warnings.catch_warnings(), small_is_large(case.chunk):
        warnings.simplefilter("ignore")
        return _check(case, division, target)


def _check(case: Case, division: Division, target: str) -> Report:
    try:
        steps, whole = load(case.text)["STEPS"], case.graph.make()
        expected = list(interpret(case, steps, whole, make_state(case, whole)))
    except fg.FeatGraphError as error:
        return Report("refused", f"alone: {kind_of(error)}", str(error))
    report = Report("agreed")
    for options in case.options:

        def on_a_rank(engine: Any, options: dict[str, Any] = options) -> int:
            graph = fg.distribute(whole, **division)
            return run_actions(case, steps, graph, options, target, expected)

        try:
            with checked(options):
                report.compared += sum(run_ranks(len(division["cuts"]) - 1, on_a_rank))
        except Differs as error:
            return Report("failed", "differs", str(error), options)
        except (fg.PlanError, fg.UserFunctionError) as error:
            kind = kind_of(error)
            report.refused_options[kind] = report.refused_options.get(kind, 0) + 1
        except Exception as error:
            return Report("failed", kind_of(error), repr(error)[:2000], options)
    if not report.compared:
        kinds = " | ".join(report.refused_options)
        return Report("refused", kinds, refused_options=report.refused_options)
    return report


def minimised(case: Case, report: Report, division: Division, target: str) -> Case:
    """Return a case that fails alike, of which nothing can be left out."""
    if report.options is not None:
        case = replace(case, options=[report.options])
    progress = True
    while progress:
        progress = False
        for smaller in smaller_cases(case):
            if smaller.graph.vertex_count != case.graph.vertex_count:
                continue
            try:
                found = check_on_ranks(smaller, division, target)
            except Exception:  # noqa: S112 - the cut made no program
                continue
            if (found.status, found.kind) == (report.status, report.kind):
                case, progress = smaller, True
                break
    return case


def draw(seed: int, work: int = 300) -> tuple[Case, Division]:
    """Return the program of a seed, and a division of its graph."""
    case = generate(random.Random(seed), work=work)
    return case, draw_division(random.Random(seed + 1), case.graph.vertex_count)


def main() -> int:
    """Run the programs of some seeds; return 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.generated.on_ranks")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(options.first_seed, options.first_seed + options.count):
        case, division = draw(seed)
        report = check_on_ranks(case, division, options.target)
        counts[report.status] += 1
        counts.update({f"  {kind}": n for kind, n in report.refused_options.items()})
        if report.status == "failed":
            case = minimised(case, report, division, options.target)
            report = check_on_ranks(case, division, options.target)
            print(f"# seed {seed}, {report.kind}: {report.detail}\n# {division}")
            print(script(case, report, options.target, seed), flush=True)
    for kind, count in counts.items():
        print(f"{count:6} {kind}")
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    np.seterr(all="ignore")
    raise SystemExit(main())
