"""A process that holds one program under option combinations against the interpreter.

Started by `bench.compile.agreement`, which survives it if it hangs or its CUDA context
dies. Reads a task (JSON) from its argument and prints a JSON line for each combination
when it is done with it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
MAX_EDGES = {4: 150, 10: 100, 64: 34}
VERTEX_COUNTS = (7, 31, 32, 33, 64, 65, 97)
#: Mean degrees that are drawn: kernels differ in how many edges they take at a time.
MEAN_DEGREES = (1, 2, 4, 8, 16)


def import_tests() -> tuple[Any, Any, Any]:
    """Return tests.bank, tests.strategies and the agreement test, of this checkout.

    By an explicit package: some distributions install a ``tests`` of theirs.
    """
    folder = str(ROOT / "tests")
    if folder not in getattr(sys.modules.get("tests"), "__path__", ()):
        package = types.ModuleType("tests")
        package.__path__ = [folder]
        sys.modules["tests"] = package
    names = ("tests.bank", "tests.strategies", "tests.reference.test_agreement")
    bank, strategies, agreement = (importlib.import_module(name) for name in names)
    return bank, strategies, agreement


def draw_case(program: Any, k: int, traits: int, seed: int, shapes: Any) -> Any:
    """Return (graph, active set): `traits` fixes directedness and the mean degree.

    Graphs of one program, k and `traits` share their kernels.
    """
    import featgraph as fg

    rng = np.random.default_rng([seed, traits, k])
    most = next(edges for top, edges in MAX_EDGES.items() if k <= top)
    mean = MEAN_DEGREES[traits % len(MEAN_DEGREES)]
    directed = not program.undirected and traits % 2 == 0
    fitting = [v for v in VERTEX_COUNTS if v * mean <= most] or [max(2, most // mean)]
    count = int(rng.choice(fitting))
    shape = shapes[int(rng.integers(len(shapes)))]
    source, target = shape(rng, count, count * mean)
    graph = fg.Graph.from_edges(source, target, vertex_count=count, directed=directed)
    kind = int(rng.integers(4))
    if kind == 0:
        return graph, None
    share = (0.0, 0.05, 0.3, 0.8)[kind]
    return graph, fg.ActiveSet(graph, rng.random(count) < share)


class Case:
    """One program on one graph, from one active set."""

    def __init__(
        self, program: Any, k: int, graph: Any, active: Any, seed: int
    ) -> None:
        self.program, self.k, self.graph, self.active = program, k, graph, active
        self.seed = seed

    def check(
        self, foldmap: Any, options: dict[str, Any], supersteps: int, agreement: Any
    ) -> int:
        """Return how many supersteps were compared; raises where they differ."""
        import featgraph as fg
        from featgraph import reference

        rng = np.random.default_rng(self.seed)
        state = fg.State(self.graph, **self.program.make_state(self.graph, self.k, rng))
        active, compared = self.active, 0
        for _ in range(supersteps):
            given = reference.from_state(state)
            outcome = reference.superstep(
                foldmap.program, *given, active=active, superstep=state.superstep
            )
            made = agreement._call(foldmap, state, active, options)
            try:
                agreement.check_agreement(
                    self.program, self.k, given[1], outcome, state, made
                )
                compared += 1
            except Exception as error:
                # Drawn too near to a threshold: neither right nor wrong.
                if type(error).__name__ != "UnsatisfiedAssumption":
                    raise
            active = made
        return compared


def run_combination(
    task: dict[str, Any], options: dict[str, Any], cases: list[Case], agreement: Any
) -> dict[str, Any]:
    """Hold one combination against the interpreter on all cases of the task."""
    program = cases[0].program
    began = time.perf_counter()
    result: dict[str, Any] = {
        "graphs": 0,
        "supersteps": 0,
        "failures": [],
        "fatal": False,
    }
    for case in cases:
        for number, foldmap in enumerate(program.foldmaps):
            try:
                full = {"target": task["target"], **options}
                result["supersteps"] += case.check(
                    foldmap, full, task["supersteps"], agreement
                )
            except Exception as error:
                kind = "differs" if isinstance(error, AssertionError) else "raised"
                where = f"foldmap {number}, {case.graph!r}, seed {case.seed}"
                last = "".join(traceback.format_exception(error)[-6:])
                result["failures"].append(
                    {"kind": kind, "where": where, "error": last[-1800:]}
                )
                result["fatal"] |= "CudaAPIError" in traceback.format_exc()
        result["graphs"] += 1
        if result["fatal"]:
            break
    result["seconds"] = round(time.perf_counter() - began, 3)
    return result


def main() -> None:
    """Run the task given as JSON."""
    import warnings

    task = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    bank, strategies, agreement = import_tests()
    program, k = bank.BY_NAME[task["program"]], task["k"]
    cases = []
    for seed in task["seeds"]:
        graph, active = draw_case(program, k, task["traits"], seed, strategies._SHAPES)
        cases.append(Case(program, k, graph, active, seed))
    for name, options in task["combinations"].items():
        print(json.dumps({"begun": name}), flush=True)
        found = run_combination(task, options, cases, agreement)
        print(json.dumps({"combination": name, **found}), flush=True)
        if found["fatal"]:  # the context is dead: another process does the rest
            return


if __name__ == "__main__":
    main()
