"""A rank that is killed while rows of a piece are on their way: prints what others see.

``python -m tests.ranks.process_pieces FILE``, on each rank, over Gloo. Rank 1 writes to
the file when it ends: in a piece that rank 0 has begun, and it has not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from featgraph.ranks.exchange import vertex_sets
from featgraph.ranks.exchange.host_rows import HostRows
from tests.ranks.test_overlap import lowest, near

V = 640


def end_in_a_piece(rank: int, time_file: Path, number: int, count: int) -> None:
    """Have rank 1 end when rank 0 has begun so many pieces of some number."""
    begin, begun, there = HostRows.begin, [0], time_file.with_suffix(".begun")

    def begins(self: HostRows, *given: Any) -> Any:
        begun[0] += given[-1].number == number
        is_last = given[-1].number == number and begun[0] == count
        if is_last and rank == 1:
            while not there.exists():
                time.sleep(0.001)
            time_file.write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        exchange = begin(self, *given)
        if is_last:
            there.touch()
        return exchange

    HostRows.begin = begins  # type: ignore[method-assign]


def main(time_file: Path) -> None:
    """Run a program in pieces, and print what ends it."""
    warnings.simplefilter("ignore")
    engine = fg.distributed.init(timeout=20, engine="gloo")
    vertex_sets.PIECE_BYTES["cpu"] = 256
    ends = np.random.default_rng(1).integers(0, V, (2, 4 * V))
    graph = fg.distribute(fg.Graph.from_edges(*ends, vertex_count=V))
    labels = fg.vertex_property(np.arange(V)[::-1].copy(), iterated=True)
    state = fg.State(graph, label=labels)
    end_in_a_piece(engine.rank, time_file, number=2, count=2)
    try:
        fg.iterate(fg.foldmap(lowest, near), state, overlap=True, target="cpu")
    except fg.WorkerLostError as error:
        took = time.time() - float(time_file.read_text())
        report = {"rank": error.rank, "seconds": took, "text": str(error)}
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
