"""Run one bench on two versions of featgraph in turn, and print ratios of their times.

``python -m bench.compare BEFORE [options] -- NAME ...`` takes ``BEFORE``, a commit or a
folder with ``featgraph`` and ``algorithms`` in it, and this checkout. Both run the
benches of this checkout, or a folder its own where it has ``bench``, each in processes
of its own: where Numba puts code and arrays changes from process to process, by more
than many a change of the code is worth. Each of ``--rounds`` starts a process of either
version at the same time, on cores of its own, ``--pairs`` such pairs at a time; cores
are swapped from round to round. A row has the least median of a cell over the processes
of a version, and the median ratio of the processes that ran at the same time.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

from bench.record import ROOT, child_environment

VERSIONS = ("before", "after")


def main() -> int:
    """Run the processes and print the table; 1 if a process failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__
    )
    parser.add_argument("before", help="commit, or folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=1, help="at the same time")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--keep", type=Path, help="folder for rows of all processes")
    parser.add_argument("bench", nargs="+", help="NAME and its options, behind --")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _link(folder / "after", ROOT)
        _link(folder / "before", _tree(arguments.before, folder))
        try:
            failed = _run(arguments, folder)
        finally:  # also where a limit of time ends it
            _print(folder)
        if arguments.keep:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            for version in VERSIONS:
                rows = "".join(
                    map(Path.read_text, sorted(folder.glob(f"{version}*.jsonl")))
                )
                (arguments.keep / f"{version}.jsonl").write_text(rows)
    return int(failed)


def _tree(before: str, folder: Path) -> Path:
    if Path(before).is_dir():
        return Path(before).resolve()
    packed = subprocess.run(
        ["git", "archive", before, "featgraph", "algorithms"],  # noqa: S607
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    tree = folder / "commit"
    tree.mkdir()
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return tree


def _link(folder: Path, tree: Path) -> None:
    folder.mkdir()
    for name in ("featgraph", "algorithms"):
        (folder / name).symlink_to(tree / name)
    own = tree / "bench"
    (folder / "bench").symlink_to(own if own.is_dir() else ROOT / "bench")
    (folder / "pyproject.toml").touch()  # of a checkout: algorithms/ lies beside it


def _run(arguments: argparse.Namespace, folder: Path) -> bool:
    cores = sorted(os.sched_getaffinity(0))
    wanted = arguments.threads
    places = [cores[i : i + wanted] for i in range(0, len(cores) - wanted + 1, wanted)]
    if len(places) < 2 * arguments.pairs:  # fewer cores than threads: they take turns
        places = [cores] * (2 * arguments.pairs)
    failed = False
    for first in range(0, arguments.rounds, arguments.pairs):
        running = []
        for pair in range(min(arguments.pairs, arguments.rounds - first)):
            for side, version in enumerate(VERSIONS):
                swapped = side ^ ((first // arguments.pairs) & 1)
                started = _start(
                    version, first + pair, places[2 * pair + swapped], arguments, folder
                )
                running.append(started)
                if places[0] is cores:
                    _wait(started)
        for process in running:
            failed |= _wait(process) != 0
    if failed:
        for log in sorted(folder.glob("*.log")):
            print(f"{log.name}: {log.read_text()[-2000:]}")
    return failed


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    finally:
        process.kill()  # where this process ends before it


def _start(
    version: str,
    number: int,
    cores: list[int],
    arguments: argparse.Namespace,
    folder: Path,
) -> subprocess.Popen[bytes]:
    output = folder / f"{version}-{number}.jsonl"
    kept = Path(os.environ.get("FEATGRAPH_CACHE_DIR", folder / "kernels"))
    environment = child_environment(folder / version, arguments.threads) | {
        "FEATGRAPH_CACHE_DIR": str(kept / version), "FEATGRAPH_COMMIT": version,
    }  # fmt: skip
    command = [sys.executable, "-m", "bench.run", *arguments.bench]
    with output.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--output", str(output)], cwd=folder / version, env=environment,
            stdout=log, stderr=log,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip


def _print(folder: Path) -> None:
    medians: dict[str, dict[str, dict[int, float]]] = defaultdict(dict)
    for version in VERSIONS:
        for file in sorted(folder.glob(f"{version}-*.jsonl")):
            number = int(file.stem.rpartition("-")[2])
            for line in map(json.loads, file.read_text().splitlines()):
                given = line.get("graph", {}).get("name"), line["contender"]
                parts = [line["cell"]] if "cell" in line else given
                cell = " | ".join(str(part) for part in (*parts, line.get("k")) if part)
                if "median_ms" in line:
                    medians[cell].setdefault(version, {})[number] = line["median_ms"]
    print(f"{'before ms':>10} {'after ms':>10} {'ratio':>6} {'of least':>8}  cell")
    for cell, found in medians.items():
        if len(found) < len(VERSIONS):
            print(f"{'only ' + next(iter(found)):>37}  {cell}")
            continue
        before, after = (found[version] for version in VERSIONS)
        ratio = statistics.median(after[n] / before[n] for n in before.keys() & after)
        least = min(before.values()), min(after.values())
        times = f"{least[0]:10.4g} {least[1]:10.4g}"
        print(f"{times} {ratio:6.3f} {least[1] / least[0]:8.3f}  {cell}")


if __name__ == "__main__":
    sys.exit(main())
