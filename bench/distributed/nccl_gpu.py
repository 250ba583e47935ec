"""Calls of NCCL through PyTorch, in a group beside that of Gloo, and within graphs.

A rank's engine makes its group of GPUs on a thread beside (`reach_gpus`). *handed over*
is its exchange of rows: a ragged one, called by the host. The others try
to record calls in a CUDA graph: an ``all_reduce``, transfers to and from the other
rank (``isend, irecv``), and a ragged ``all_to_all_single``, whose sizes are those that
were recorded. `asked` has them called by the host, for comparison; `recorded`, captured
once and replayed with other contents each time. A row has the number of right replays
or the error (`said`), and if the group still works behind it (`group`): a call that
cannot be recorded may leave ranks that wait for each other for ever.

Two processes, a GPU each, try one thing after the other. Where that takes over 45 s
they are killed; the row of that call has the error, and two others go on behind it.
``--target cpu`` rehearses it over Gloo, where nothing is recorded.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.distributed.streaming import Sender, run_rank, stream_from_ranks
from bench.record import Recorder

DEFAULTS = {"repeat": 20, "target": "cuda"}
MODULE = "bench.distributed.nccl_gpu"
TRIALS = ("handed over", "all_reduce", "isend, irecv", "all_to_all_single")
#: Bytes for the other rank; of a ragged exchange, a third of that the other way.
SIZES = (1 << 10, 1 << 20, 1 << 25)
#: Seconds for two processes; importing PyTorch and making groups takes ten of them.
LIMIT_S = 45.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", help="some of them, by semicolons")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Have two processes try each, and record the rows of the first one."""
    recorder.use(arguments.target)
    left = (arguments.trials or ";".join(TRIALS)).split(";")
    while left:
        for cell in _cells(arguments, left):
            if "begins" in cell:
                begun = left.pop(0)
                assert begun == cell["begins"]
                continue
            print(f"    {cell}", flush=True)
            recorder.add(cell.pop("contender"), cell.pop("trials_ms"), **cell)


def _cells(
    arguments: argparse.Namespace, trials: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ranks; a trial that has ended them has a row, too."""
    given = {
        "trials": list(trials),
        "repeat": arguments.repeat,
        "target": arguments.target,
    }
    environment = {"FEATGRAPH_GPU_LINKS": "engine", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    trial = "a group of GPUs"
    try:
        for cell in stream_from_ranks(MODULE, 2, given, environment, LIMIT_S):
            trial = cell.get("begins", trial)
            yield cell
    except RuntimeError as error:
        if trial == "a group of GPUs":  # none has begun
            yield {"begins": trials[0]}
        yield {"contender": trial, "said": str(error), "trials_ms": []}


class Rank:
    """One of the two processes."""

    def __init__(self, repeat: int, target: str, send: Sender) -> None:
        import torch

        import featgraph as fg

        self.torch, self.repeat = torch, repeat
        self.engine: Any = fg.distributed.init(timeout=LIMIT_S / 3, engine="gloo")
        self.peer = 1 - self.engine.rank
        self.where = torch.device(target)
        self._send = send
        links: Any = self.engine._links
        if target == "cpu":
            links.__class__.has_gpus = True
            join = links.join_gpus
            links.join_gpus = lambda: join("gloo")
        begun = time.perf_counter()
        uuid = f"GPU {self.engine.rank}"
        self.reaches = self.engine.reach_gpus(uuid, self.make)
        self.joined_s = time.perf_counter() - begun
        self.group = links._gpus

    def make(self, size: int) -> Any:
        """Return memory to receive into."""
        return _Lent(self.torch.zeros(size, dtype=self.torch.uint8, device=self.where))

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.where.type == "cuda":
            self.torch.cuda.synchronize()

    def time(self, call: Callable[[], Any]) -> list[float]:
        """Time a call that both ranks make at once, in ms, warm."""
        trials = []
        for number in range(self.repeat + 3):
            self.wait()
            self.engine.barrier()
            begun = time.perf_counter()
            call()
            self.wait()
            if number >= 3:
                trials.append(1000 * (time.perf_counter() - begun))
        return trials

    def send(self, **told: Any) -> None:
        """Write a row, once for both."""
        if self.engine.rank == 0:
            self._send(**told)


class _Lent:
    """A tensor as arrays of the dialect are lent to an engine."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.size, self.dtype = tensor.numel(), _Bytes

    def view(self, _: Any) -> Any:
        return self.tensor


class _Bytes:
    itemsize = 1


def hand_over(rank: Rank) -> None:
    """Have the engine hand over arrays of other sizes each way."""
    engine = rank.engine
    joined = f"reaches GPUs: {rank.reaches}, joined in {rank.joined_s:.2f} s"
    for size in SIZES:
        own = size if engine.rank == 0 else size // 3
        other = size // 3 if engine.rank == 0 else size
        array = rank.make(own)
        array.tensor.fill_(7 + engine.rank)
        arrays = [array if r == rank.peer else None for r in range(2)]
        sizes = [other if r == rank.peer else 0 for r in range(2)]

        def call(arrays: Any = arrays, sizes: Any = sizes) -> Any:
            return engine.hand_over(arrays, sizes, about="an array")[rank.peer]

        came = call().tensor
        rank.wait()
        ok = bool((came == 7 + rank.peer).all()) and came.numel() == other
        trials = rank.time(call)
        told = {"nbytes": size, "checks": {"ok": ok}, "said": joined}
        rank.send(contender="handed over, asked", trials_ms=trials, **told)


def operation_of(
    rank: Rank, name: str, size: int
) -> tuple[Any, Any, Callable[[], None]]:
    """Return the array sent, that received, and the call, which never waits."""
    import torch.distributed as dist

    torch, me, group = rank.torch, rank.engine.rank, rank.group
    own, other = (size, size // 3) if me == 0 else (size // 3, size)
    if name == "all_reduce":
        own = other = size
    sent = torch.zeros(own // 4, dtype=torch.float32, device=rank.where)
    came = torch.zeros(other // 4, dtype=torch.float32, device=rank.where)
    if name == "all_reduce":

        def call() -> None:
            came.copy_(sent)
            dist.all_reduce(came, group=group)

    elif name == "isend, irecv":

        def call() -> None:
            asked = [
                dist.P2POp(dist.irecv, came, rank.peer, group),
                dist.P2POp(dist.isend, sent, rank.peer, group),
            ]
            for work in dist.batch_isend_irecv(asked):
                work.wait()

    else:
        counts_sent = [0 if r == me else sent.numel() for r in range(2)]
        counts_came = [0 if r == me else came.numel() for r in range(2)]

        def call() -> None:
            dist.all_to_all_single(came, sent, counts_came, counts_sent, group=group)

    return sent, came, call


def record_operation(rank: Rank, name: str) -> None:
    """Call an operation, and have a graph replay it with other contents."""
    for size in SIZES:
        sent, came, call = operation_of(rank, name, size)

        def is_right(turn: int, name: str = name, came: Any = came) -> bool:
            rank.wait()
            ours, theirs = turn + rank.engine.rank, turn + rank.peer
            meant = ours + theirs if name == "all_reduce" else theirs
            return bool((came == meant).all())

        sent.fill_(3 + rank.engine.rank)
        call()
        told: dict[str, Any] = {"nbytes": size, "checks": {"ok": is_right(3)}}
        rank.send(contender=f"{name}, asked", trials_ms=rank.time(call), **told)
        if rank.where.type == "cpu":
            continue
        told, trials = {"nbytes": size}, []
        try:
            graph = _recorded(rank, call)
            right = 0
            for turn in range(rank.repeat):
                sent.fill_(turn + rank.engine.rank)
                came.zero_()
                graph.replay()
                right += is_right(turn)
            trials = rank.time(graph.replay)
            told["said"] = f"{right} of {rank.repeat} replays right"
        except RuntimeError as error:
            told["said"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        sent.fill_(5 + rank.engine.rank)
        call()  # by the host again, behind replays
        told["group"] = "works" if is_right(5) else "is wrong"
        rank.send(contender=f"{name}, recorded", trials_ms=trials, **told)


def _recorded(rank: Rank, call: Callable[[], None]) -> Any:
    """Return a graph of a call, captured as ours are: on a stream of its own."""
    cuda = rank.torch.cuda
    graph, stream = cuda.CUDAGraph(), cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        for _ in range(3):
            call()
    rank.wait()
    with cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        call()
    return graph


def be_a_rank(given: dict[str, Any], send: Sender) -> None:
    """Try all calls on this rank."""
    rank = Rank(given["repeat"], given["target"], send)
    for trial in given["trials"]:
        rank.send(begins=trial)
        if trial == "handed over":
            hand_over(rank)
        else:
            record_operation(rank, trial)


if __name__ == "__main__":
    run_rank(be_a_rank)
