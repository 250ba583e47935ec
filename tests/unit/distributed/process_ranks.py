"""Runs cases of `test_processes` on processes, and prints what each rank saw.

``python -m tests.unit.distributed.process_ranks ENGINE NAME...`` imports what an engine
needs once and forks the ranks of each case from there: PyTorch alone takes seconds.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from featgraph.distributed import Engine
from featgraph.ranks.engines import messages, shared_memory, torch_engine
from featgraph.ranks.engines.messages import led
from featgraph.ranks.engines.protocol import GpuMessages
from featgraph.ranks.engines.shared_memory import SharedEngine
from featgraph.ranks.launching import start

SIZE = 3
#: Seconds after which a rank counts as hung.
PATIENCE = 40


def every_call(engine: Engine) -> Any:
    """Make all calls, with messages of all sizes; return what they gave, and bytes."""
    rng = np.random.default_rng(engine.rank)
    digest = hashlib.sha256()
    for rows in (0, 1, 10, 5_000, 200_000):
        whole = np.arange(rows * 2.0, dtype=np.float32).reshape(rows, 2)
        counts = (np.arange(engine.size) * 7 + engine.rank) * rows // 10
        results = [
            engine.all_reduce(rng.standard_normal(rows), "sum"),
            engine.all_reduce(rng.integers(0, 9, (rows, 2)), "max"),
            *engine.all_gather(whole[: rows // (engine.rank + 1)]),
            *engine.all_to_allv(
                [rng.integers(0, 9, (n, 3), np.uint32) for n in counts]
            ),
            engine.broadcast(whole + engine.rank, 1),
        ]
        engine.barrier(about=f"rows {rows}")
        for array in results:
            digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    traffic = engine.traffic
    return digest.hexdigest(), traffic.sent.tolist(), traffic.received.tolist()


def another_call(engine: Engine) -> None:
    """Go different ways, behind an exchange."""
    engine.barrier()
    if engine.rank == 2:
        engine.all_gather(np.zeros(3), about="degrees")
    else:
        engine.all_reduce(np.ones(3), "sum", about="superstep 4")


def other_sizes(engine: Engine) -> None:
    """Reduce arrays of different sizes, as would end a process of Gloo."""
    engine.all_reduce(np.zeros(1000 + engine.rank), "sum")


def long_purposes(engine: Engine) -> None:
    """Differ only behind what fits in a record."""
    engine.barrier(about="x" * 1000 + str(engine.rank))


def early_end(engine: Engine) -> None:
    """End while others go on."""
    engine.barrier()
    if engine.rank != 1:
        engine.barrier(about="the second one")


def an_exception(engine: Engine) -> None:
    """Raise on one rank."""
    engine.barrier()
    if engine.rank == 1:
        raise ValueError("row 7 is bad")
    engine.barrier()


def killed(engine: Engine) -> None:
    """End without a word."""
    engine.barrier()
    if engine.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    engine.barrier()


def killed_in_a_transfer(engine: Engine) -> None:
    """End when only one of the others has been handed its message."""
    engine.barrier()
    if engine.rank == 2 and isinstance(engine, SharedEngine):
        peers, publish = engine._peers, engine._peers.publish
        peers.publish = lambda *p: (publish(*p), os.kill(os.getpid(), 9))  # type: ignore
    elif engine.rank == 2:
        links = engine._links  # type: ignore[attr-defined]
        whole = links.transfer

        def die(*parts: Any, tag: int) -> Any:
            return whole(*parts, tag=tag) if tag == 0 else os.kill(os.getpid(), 9)

        links.transfer = die
    counts = {(0, 1): 9, (1, 0): 9, (2, 1): 100_000, (1, 2): 100_000}
    engine.all_to_allv(
        [np.zeros(counts.get((engine.rank, to), 0)) for to in range(engine.size)]
    )
    engine.barrier()


def stopped(engine: Engine) -> None:
    """Stop, as under a debugger."""
    engine.barrier()
    if engine.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    engine.barrier()


def used_twice(engine: Engine) -> Any:
    """Call init again, and in a forked child; use the engine there, too."""
    texts = []
    for call in (fg.distributed.init, fg.distributed.init, engine.barrier):
        if not texts:
            texts.append(_error_of(call))
            continue
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, _error_of(call).encode())
            os._exit(0)
        texts.append(os.read(read, 10_000).decode())
        os.wait()
    engine.barrier()
    return texts, fg.distributed.current_engine() is engine


def killed_with_a_child(engine: Engine) -> None:
    """End while a child lives that was forked from the rank."""
    engine.barrier()
    if engine.rank == 1:
        if os.fork() == 0:
            os.closerange(0, 3)  # what the test reads to its end
            signal.alarm(PATIENCE // 2)
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    engine.barrier()


def interrupted(engine: Engine) -> None:
    """Interrupt a waiting rank; the others are notified at once."""
    engine.barrier()
    if engine.rank == 1:
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    if engine.rank == 2:  # which comes when that has happened
        peers, later = engine._peers, engine._number + 9  # type: ignore[attr-defined]
        until = time.monotonic() + PATIENCE
        while not peers._look(1, later) and time.monotonic() < until:
            time.sleep(0.001)
    with suppress(KeyboardInterrupt):
        engine.barrier()
    engine.barrier()


def interrupted_within_gloo(engine: Engine) -> None:
    """Be interrupted while it waits; the others come when it has ended."""
    (process,) = engine.broadcast(np.array([os.getpid()]), 1)
    if engine.rank == 1:
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with suppress(KeyboardInterrupt):
            engine.barrier()
    while engine.rank != 1 and Path(f"/proc/{process}").exists():
        time.sleep(0.001)
    engine.barrier()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def grown(engine: Engine) -> Any:
    """Hand over messages that grow and shrink, in place; return how they were read."""
    wrong = 0
    for step in range(40):
        counts = [(step * 7919 * (r + 1) + engine.rank) % 300_000 for r in range(SIZE)]
        read: list[int] = []

        def write(rank: int, out: Any, step: int = step) -> None:
            out[:] = (step + engine.rank * 3 + rank) % 251

        def take(rank: int, message: Any, step: int = step, read: Any = read) -> None:
            nonlocal wrong
            count = (step * 7919 * (engine.rank + 1) + rank) % 300_000
            expected = (step + rank * 3 + engine.rank) % 251
            wrong += message.size != count or bool((message != expected).any())
            wrong += message.size > 0 and message.ctypes.data % 16 != 0
            read.append(rank)

        about = f"step {step}"
        sent = step * 7919 * (engine.rank + 1)
        # Messages without bytes are not read.
        expected_of = [rank for rank in range(SIZE) if (sent + rank) % 300_000]
        if step % 3 == 0:
            engine.hand_bytes(counts, write, take, about=about)
        else:
            begun = engine.begin_bytes(counts, write, take, about=about)
            wrong += bool(read)
            if step % 3 == 1:
                engine.barrier()  # which finishes it first
                wrong += read != expected_of
            begun.finish()
        wrong += read != expected_of
        wrong += _handed_to_all(engine, step)
    return wrong


def _handed_to_all(engine: Engine, step: int) -> int:
    """Hand all others one message; return how many things were wrong with theirs."""
    read: list[int] = []
    wrong = 0

    def write(out: Any) -> None:
        nonlocal wrong
        wrong += out.size > 0 and out.ctypes.data % 16 != 0
        out[:] = (step + engine.rank * 5) % 251

    def take(rank: int, message: Any) -> None:
        nonlocal wrong
        wrong += message.size != step * 7919 * (rank + 1) % 300_000
        wrong += bool((message != (step + rank * 5) % 251).any())
        read.append(rank)

    engine.hand_to_all(step * 7919 * (engine.rank + 1) % 300_000, write, take)
    others = [r for r in range(SIZE) if r != engine.rank]
    return wrong + (read != [r for r in others if step * 7919 * (r + 1) % 300_000])


def followed(engine: Engine) -> Any:
    """Follow rank 0, to an end before which it has sent nothing."""
    messages.MOST_RESULTS = 7
    leading = led(engine)
    found, begun = [], engine.exchanges
    for number in range(50):
        own = np.array([number, engine.rank], np.int32)
        found.append(leading.all_reduce(own, "sum", about="a count").tolist())
        if number == 25:
            found.append(engine.all_reduce(own, "sum").tolist())
    found.append(leading.all_reduce(np.full((2, 2), 0.5), "max").tolist())
    return found, engine.exchanges - begun


def _nothing(rank: int, message: Any) -> None:
    pass


def killed_meanwhile(engine: Engine) -> None:
    """End without a word while messages are under way."""
    engine.barrier()
    begun = engine.begin_bytes([100_000] * SIZE, _nothing, _nothing, about="rows")
    if engine.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun.finish()
    engine.barrier()


def an_exception_meanwhile(engine: Engine) -> None:
    """Raise on one rank while messages are under way: they come all the same."""
    engine.barrier()
    begun = engine.begin_bytes([100_000] * SIZE, _nothing, _nothing, about="rows")
    if engine.rank == 1:
        raise ValueError("row 7 is bad")
    begun.finish()
    engine.barrier()


def another_call_meanwhile(engine: Engine) -> None:
    """Go different ways with messages that are sent while a rank computes."""
    engine.barrier()
    if engine.rank == 1:
        engine.hand_bytes([400] * SIZE, _nothing, _nothing, about="rows")
    else:
        engine.begin_bytes([400] * SIZE, _nothing, _nothing, about="rows").finish()


def torch_is_there(engine: Engine) -> bool:
    """Return whether PyTorch was imported."""
    return "torch" in sys.modules


def caught(engine: Engine) -> int:
    """Go on behind an error: an engine that failed stays so."""
    count = 0
    for number in range(3):
        try:
            engine.barrier(about=str(engine.rank if number == 0 else 0))
        except fg.RankMismatchError:
            count += 1
    return count


def beside_the_programs_own(engine: Engine) -> Any:
    """Exchange while the program has a group of its own."""
    import torch.distributed as dist

    total = engine.all_reduce(np.array([1]), "sum")
    dist.barrier()
    return total.tolist(), dist.get_world_size()


def arrays_of_gpus(engine: Any) -> Any:
    """Hand over arrays as GPUs do, in a group beside, with memory of the host."""
    engine._links.__class__.has_gpus = True
    join = engine._links.join_gpus
    engine._links.join_gpus = lambda: join("gloo")

    def makes(size: int) -> Any:
        return np.empty(size, np.uint8)

    shared = engine.reach_gpus("one for all", makes)
    engine._reaches = None
    reaches = engine.reach_gpus(f"number {engine.rank}", makes)
    given = [
        np.full((engine.rank * 2 + r) % 4, 10 * engine.rank + r)
        for r in range(engine.size)
    ]
    arrays = [array if array.size else None for array in given]
    # Rank r hands (2 r + to) % 4 numbers to each.
    sizes = [8 * ((2 * r + engine.rank) % 4) for r in range(engine.size)]
    before = engine.traffic.copy()
    came = engine.hand_over(GpuMessages(arrays, sizes, "rows"))
    traffic = engine.traffic - before
    engine.barrier()
    received = [None if c is None else c.view(np.int64).tolist() for c in came]
    return [shared, reaches, received, traffic.sent.tolist(), traffic.received.tolist()]


def versions(engine: Engine) -> None:
    """Never begin: a rank has another version."""


CASES: dict[str, Callable[[Engine], Any]] = {
    case.__name__: case
    for case in (
        every_call,
        another_call,
        another_call_meanwhile,
        other_sizes,
        long_purposes,
        early_end,
        an_exception,
        an_exception_meanwhile,
        killed,
        killed_meanwhile,
        killed_in_a_transfer,
        stopped,
        used_twice,
        grown,
        followed,
        torch_is_there,
        caught,
        versions,
    )
}
#: Of one engine alone.
OWN_CASES: dict[str, dict[str, Callable[[Engine], Any]]] = {
    "gloo": {
        "arrays_of_gpus": arrays_of_gpus,
        "interrupted_within_gloo": interrupted_within_gloo,
        "beside_the_programs_own": beside_the_programs_own,
    },
    "shared": {
        "killed_with_a_child": killed_with_a_child,
        "interrupted": interrupted,
    },
}


def _error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except fg.DistributedError as error:
        return str(error)
    return "no error"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _run_rank(kind: str, name: str, rank: int, port: int, output: Path) -> None:
    """Run a rank in this forked child, as a script of the user's would."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_PORT": str(port)}
    report: dict[str, Any] = {}
    code = 0
    begun = time.monotonic()
    try:
        if name == "versions" and rank == 2:
            start.VERSION = "0.0.9"
        if name == "beside_the_programs_own":
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            torch_engine.import_whole("torch.distributed").init_process_group("gloo")
        timeout = 3 if name == "stopped" else 20
        engine = fg.distributed.init(timeout=timeout, engine=kind)
        report["result"] = (CASES | OWN_CASES[kind])[name](engine)
    except fg.FeatGraphError as error:
        report |= {"error": type(error).__name__, "text": str(error)}
        report["rank"] = getattr(error, "rank", None)
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    except ValueError:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    report["seconds"] = time.monotonic() - begun
    output.write_text(json.dumps(report))
    atexit._run_exitfuncs()
    os._exit(code)


def _wait_for(children: list[int]) -> list[Any]:
    """Return how each child ended; "hung" if it did not. Stopped ones are killed."""
    ended: dict[int, Any] = {}
    until = time.monotonic() + PATIENCE
    while len(ended) < len(children):
        for child in set(children) - set(ended):
            done, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            if not done:
                continue
            if os.WIFSTOPPED(status):
                ended[child] = "stopped"
            else:
                ended[child] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            ended |= dict.fromkeys(set(children) - set(ended), "hung")
        time.sleep(0.01)
    for child in children:
        if ended[child] in ("stopped", "hung"):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return [ended[child] for child in children]


def run_case(kind: str, name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the report and the exit code of each rank of a case."""
    port = _free_port()
    children = []
    for rank in range(SIZE):
        child = os.fork()
        if child == 0:
            _run_rank(kind, name, rank, port, folder / f"{name}-{rank}.json")
        children.append(child)
    ended = _wait_for(children)
    reports = []
    for rank, code in enumerate(ended):
        output = folder / f"{name}-{rank}.json"
        report = json.loads(output.read_text()) if output.exists() else {}
        reports.append(report | {"ended": code})
    return reports


def main(kind: str, names: list[str]) -> None:
    """Print the reports of cases as JSON."""
    if kind == "gloo":
        torch_engine.import_whole("torch.distributed")
    else:
        torch_engine.import_whole(shared_memory.FLAGS)
    # No TemporaryDirectory: ranks would remove it when they end.
    folder = Path(tempfile.mkdtemp())
    cases = names or [*CASES, *OWN_CASES[kind]]
    reports = {name: run_case(kind, name, folder) for name in cases}
    shutil.rmtree(folder)
    print(json.dumps(reports))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
