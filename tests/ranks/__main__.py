"""Run the programs of the bank on ranks that have a GPU each.

``python -m tests.ranks --gpus 2 --links windows,engine,host --groups 4 --budget 120``
begins so many groups of ranks for each way over which rows go; a group has its share of
the programs, and runs each as it is asked for by the host, and from recordings. All is
compared with the same programs on the GPU alone. Programs with reduces run likewise
with ``deterministic=True``, cut within a word or in another order: there each bit is
compared. A line of JSON is printed for each program; the exit status is 1 where
something was wrong, or a rank did not end.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import warnings
import zlib
from collections import Counter
from typing import Any

#: Supersteps of a run: enough for a cycle to be recorded, and to go round.
SUPERSTEPS = 10


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.ranks")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--links", default="windows,engine,host", help="by commas")
    parser.add_argument("--groups", type=int, default=4, help="of ranks, for each")
    parser.add_argument("--budget", type=float, default=120.0, help="in seconds")
    parser.add_argument("--programs", default="", help="names, by commas")
    parser.add_argument("--target", default="cuda", help="cpu: without GPUs")
    parser.add_argument("--share", type=int, default=-1, help=argparse.SUPPRESS)
    return parser.parse_args()


def _names(options: argparse.Namespace) -> list[str]:
    from tests.bank import BANK

    names = [p.name for p in BANK if not p.thresholds or _reduces(p)]
    names += _TREES
    chosen = set(filter(None, options.programs.split(",")))
    return [n for n in names if not chosen or n in chosen]


def _reduces(program: Any) -> bool:
    functions = (f for step in program.foldmaps for f in step.program.functions)
    return any(f.kind.reduces for f in functions)


# -- a rank

#: Reduces of each shape, over more words of vertices than a node has branches.
_TREES = ("in_a_tree_float32", "in_a_tree_float64")
#: How ranks have parts of a graph where all bits have to be the same.
_WAYS = ("words", "cut", "spread")


def _run_share(options: argparse.Namespace) -> None:
    import featgraph as fg
    from tests.bank import BY_NAME

    warnings.simplefilter("ignore")
    ends = time.monotonic() + options.budget
    engine = fg.distributed.init(timeout=60)
    for name in _names(options)[options.share :: options.groups]:
        left = engine.all_reduce([ends - time.monotonic()], "min", about="time")
        if float(left[0]) < 0:
            break
        report = {"program": name, "links": fg.config.gpu_links, "rank": engine.rank}
        begun = time.monotonic()
        program = BY_NAME.get(name)
        for replay in (False, True):
            fg.config.replay = replay
            given = options.target, engine
            if program is not None and not program.thresholds:
                report[f"replayed {replay}"] = _compared(program, *given)
            for how in _WAYS if program is None or _reduces(program) else ():
                key = f"{how}, replayed {replay}"
                if program is None:
                    dtype = name.rpartition("_")[2]
                    report[key] = _compared_digests(dtype, *given, how)
                else:
                    report[key] = _compared(program, *given, how)
        report["seconds"] = round(time.monotonic() - begun, 2)
        print(json.dumps(report), flush=True)


def _parts(whole: Any, engine: Any, how: str, word: int = 32) -> Any:
    """Return a graph on ranks: of whole words each, cut within them, or in an order."""
    import featgraph as fg

    if how == "spread":
        return fg.distribute(whole, order=how)
    count = whole.vertex_count
    inner = [word * (r + 1) - 9 * (how == "cut") for r in range(engine.size - 1)]
    return fg.distribute(whole, cuts=[0, *(min(i, count) for i in inner), count])


def _compared_digests(dtype: str, target: str, engine: Any, how: str) -> str:
    """Return "same", or what differs of a program of reduces in a tree."""
    from tests.ranks.test_in_a_tree import WHOLE, digest_of_runs

    alone = digest_of_runs(WHOLE, 0, dtype, target=target)
    found = digest_of_runs(_parts(WHOLE, engine, how, 512), 0, dtype, target=target)
    return "same" if found == alone else f"a digest of {dtype}"


def _compared(program: Any, target: str, engine: Any, how: str = "") -> str:
    """Return "same", "refused", or what differs between ranks and the GPU alone."""
    import numpy as np

    from tests.ranks.test_bank import make_graph, run

    seed = zlib.crc32(program.name.encode()) % 1000
    whole = make_graph(seed, directed=seed % 2 == 0 and not program.undirected)
    graph = _parts(whole, engine, how)
    given: Any = {"deterministic": True} if how else {}
    found = run(program, graph, seed, target, SUPERSTEPS, **given)
    alone = run(program, whole, seed, target, SUPERSTEPS, **given)
    if found is None or alone is None:
        return "refused" if found is None else "refused alone"
    for key, value in alone.items():
        meant, given = np.asarray(value), np.asarray(found[key])
        same = np.array_equal(given, meant, equal_nan=meant.dtype.kind == "f")
        if not (program.exact or how or same):
            same = np.allclose(given, meant, rtol=1e-4, atol=1e-5, equal_nan=True)
        if not same:
            return f"{key!r}: {given.tolist()} for {meant.tolist()}"[:300]
    return "same"


# -- the parent


def _begin(options: argparse.Namespace) -> list[subprocess.Popen[str]]:
    begun, seen = [], os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = seen.split(",") if seen else [*map(str, range(options.gpus))]
    for link in options.links.split(","):
        for share in range(options.groups):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            common = os.environ | {
                "WORLD_SIZE": str(options.gpus), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "FEATGRAPH_GPU_LINKS": link,
                "NUMBA_NUM_THREADS": "2",
            }  # fmt: skip
            command = [sys.executable, "-m", "tests.ranks", *sys.argv[1:]]
            for rank in range(options.gpus):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                if options.target == "cuda":
                    own["CUDA_VISIBLE_DEVICES"] = gpus[rank]
                begun.append(
                    subprocess.Popen(
                        [*command, "--share", str(share)],
                        env=common | own,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
    return begun


def main() -> int:
    """Run all shares; return 1 where something was wrong."""
    options = _arguments()
    if options.share >= 0:
        _run_share(options)
        return 0
    ends = time.monotonic() + options.budget + 60
    counts, failed = Counter[str](), 0
    for process in _begin(options):
        try:
            out, _ = process.communicate(timeout=max(ends - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        failed += process.returncode != 0
        for line in out.splitlines():
            report = json.loads(line)
            kinds = [v for k, v in report.items() if "replayed" in k]
            for kind in kinds:
                is_known = kind in ("same", "refused")
                counts[f"{report['links']}: {kind if is_known else 'WRONG'}"] += 1
                failed += not is_known
            if len({*kinds, "same"}) > 1:
                print(line)
    print(json.dumps({"counts": counts, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
