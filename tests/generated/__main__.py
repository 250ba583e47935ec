"""Run generated programs in many processes.

``python -m tests.generated --count 3000 --target cpu --processes 16 --out FILE`` runs
the programs of so many seeds and writes a JSON summary; what failed is printed as a
script. Exit status 1 where something failed.

A worker that dies or takes too long is reported with its seed, and replaced.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import selectors
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

#: A worker's kernels stay in its memory: it is replaced after so many programs.
PROGRAMS_A_WORKER = 150


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.generated")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--target", choices=["cpu", "cuda", "emulator"], default="cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--timeout", type=float, default=90.0, help="of one program")
    parser.add_argument("--gpus", type=int, default=0, help="to go round among")
    parser.add_argument("--minimise", type=float, default=30.0, help="seconds, or 0")
    parser.add_argument(
        "--somewhere", action="store_true",
        help="runs from restricted active sets: in any order, and around reduces",
    )  # fmt: skip
    parser.add_argument("--without", default="", help="grammar to leave out: a,b")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def work_of(target: str) -> int:
    """Return how large graphs are: lanes of the emulator take their time."""
    return 400 if target == "emulator" else 1500


# -- a worker: seeds come in, lines of JSON go out


def _work(options: argparse.Namespace) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what kernels or compilers print is no answer
    from tests.generated.check import check
    from tests.generated.programs import generate
    from tests.generated.script import minimised, script
    from tests.generated.somewhere import generate_somewhere

    context: Any = nullcontext()
    target = "cpu" if options.target == "cpu" else "cuda"
    if options.target == "emulator":
        from tests.simt import lanes
        from tests.simt.gpu import emulated_gpu

        context = emulated_gpu()
    without = frozenset(filter(None, options.without.split(",")))
    with context:
        for line in sys.stdin:
            seed, start = int(line), time.monotonic()
            if options.target == "emulator":
                lanes.ORDER = seed
            work, source = work_of(options.target), random.Random(seed)
            if options.somewhere:
                case = generate_somewhere(source, work=work)
            else:
                case = generate(source, work=work, without=without)
            report = check(case, target)
            answer = {
                "seed": seed,
                "status": report.status,
                "kind": report.kind,
                "detail": report.detail,
                "options": report.options,
                "refused_options": report.refused_options,
                "compared": report.compared,
                "features": sorted(case.features),
                "seconds": round(time.monotonic() - start, 2),
            }
            if report.status == "failed":
                if options.minimise:
                    seconds = min(options.minimise, options.timeout / 3)
                    case = minimised(case, report, target, seconds)
                    report = check(case, target)
                answer["script"] = script(case, report, target, seed)
            answers.write(json.dumps(answer) + "\n")


# -- the parent


class _Pool:
    """Hands seeds to workers; each thread looks after one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        first = options.first_seed
        self.seeds = iter(range(first, first + options.count))
        self.lock = threading.Lock()
        self.answers: list[dict[str, Any]] = []
        self.start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def run(self) -> list[dict[str, Any]]:
        threads = [
            threading.Thread(target=self._look_after, args=(number,))
            for number in range(self.options.processes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(self.answers, key=lambda answer: answer["seed"])

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "FEATGRAPH_CACHE": "0",
            "NUMBA_NUM_THREADS": "2",
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONWARNINGS": "ignore",
        }
        if self.options.gpus > 1:
            environment["CUDA_VISIBLE_DEVICES"] = str(number % self.options.gpus)
        command = [sys.executable, "-m", "tests.generated", *sys.argv[1:], "--worker"]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def _look_after(self, number: int) -> None:
        worker, done = None, 0
        while True:
            with self.lock:
                seed = next(self.seeds, None)
            if seed is None:
                break
            if worker is None or done >= PROGRAMS_A_WORKER:
                self._end(worker)
                worker, done = self._start(number), 0
            answer = self._run_seed(worker, seed)
            done += 1
            if answer["status"] == "lost":
                self._end(worker)
                worker = None
            with self.lock:
                self.answers.append(answer)
                self._print(answer)
                if self.options.out and len(self.answers) % 50 == 0:
                    summary = _summary(self.options, self.answers, self.seconds)
                    self.options.out.write_text(json.dumps(summary, indent=1) + "\n")
        self._end(worker)

    def _run_seed(self, worker: subprocess.Popen[bytes], seed: int) -> dict[str, Any]:
        assert worker.stdin is not None and worker.stdout is not None  # noqa: PT018
        why = "died"
        try:
            worker.stdin.write(f"{seed}\n".encode())
            worker.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(worker.stdout, selectors.EVENT_READ)
                if selector.select(self.options.timeout):
                    line = worker.stdout.readline()
                    if line:
                        return json.loads(line)  # type: ignore[no-any-return]
                else:
                    why = f"took more than {self.options.timeout:.0f} s"
        except BrokenPipeError:
            pass
        worker.kill()
        kind = f"the worker {why}"
        detail = f"exit status {worker.wait()}"
        return {"seed": seed, "status": "lost", "kind": kind, "detail": detail}

    def _end(self, worker: subprocess.Popen[bytes] | None) -> None:
        if worker is not None:
            if worker.stdin is not None:
                worker.stdin.close()
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()

    def _print(self, answer: dict[str, Any]) -> None:
        count = len(self.answers)
        if answer["status"] in {"failed", "lost"}:
            print(f"seed {answer['seed']}: {answer['status']}: {answer['kind']}")
            print(f"  {answer['detail'][:200]}", flush=True)
        elif count % 100 == 0:
            print(f"{count} of {self.options.count}", flush=True)


def _summary(options: argparse.Namespace, answers: Any, seconds: float) -> Any:
    status = collections.Counter(answer["status"] for answer in answers)
    features: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    of_options: collections.Counter[str] = collections.Counter()
    for answer in answers:
        if answer["status"] == "agreed":
            features.update(answer["features"])
        if answer["status"] == "refused":
            refused[answer["kind"]] += 1
        of_options.update(answer.get("refused_options") or {})
    failed = [a for a in answers if a["status"] in {"failed", "lost"}]
    kinds = collections.Counter(f"{a['status']}: {a['kind']}" for a in failed)
    for answer in failed:
        answer.pop("features", None)
    return {
        "command": " ".join(["python -m tests.generated", *sys.argv[1:]]),
        "target": options.target,
        "first_seed": options.first_seed,
        "programs": len(answers),
        "status": dict(status),
        "compared": sum(answer.get("compared", 0) for answer in answers),
        "seconds": round(seconds, 1),
        "program_seconds": round(sum(a.get("seconds", 0.0) for a in answers), 1),
        "failed_by_kind": dict(kinds.most_common()),
        "refused_by_kind": dict(refused.most_common()),
        "refused_options": dict(of_options.most_common()),
        "features_of_agreed": dict(sorted(features.items())),
        "failed": failed,
    }


def main() -> int:
    """Run; return the exit status."""
    options = _arguments()
    if options.worker:
        _work(options)
        return 0
    pool = _Pool(options)
    answers = pool.run()
    summary = _summary(options, answers, pool.seconds)
    text = json.dumps(summary, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    for answer in summary["failed"][:5]:
        print(answer.get("script", ""))
    print(json.dumps({n: summary[n] for n in list(summary)[:9]}, indent=1))
    return int(bool(summary["failed"]))


if __name__ == "__main__":
    sys.exit(main())
