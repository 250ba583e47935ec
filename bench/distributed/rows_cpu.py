"""How fast rows are packed for a link, and stored where they arrive, on the CPU.

A send list has a million of 1.3 million vertices; a share of them changed. Times are
those of one message: "send" lists changed rows, chooses the form and packs them;
"receive" reads them and stores them among ghosts. NumPy does the same with `nonzero`,
`take`, `packbits` and indexed assignments, as a bitmap and rows (the form "vr").
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from bench.record import Recorder
from bench.timing import Contender, interleave
from featgraph.ranks.exchange.row_messages import (
    SendList,
    choose,
    decode,
    encode,
    packing_of,
    store,
)

DEFAULTS = {"graph": [], "k": [1, 8, 32], "repeat": 11, "densities": "1,.3,.03,.001"}
OWN, LISTED, FIRST = 1_300_000, 1_000_000, 1_300_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--densities", help="shares that changed, by commas")


class Message:
    """One message of rows of k features, its source and its destination."""

    def __init__(self, k: int, density: float) -> None:
        rng = np.random.default_rng(1)
        numbers = np.sort(rng.choice(OWN, LISTED, replace=False)).astype(np.int32)
        self.link = SendList(numbers, OWN)
        self.flags = np.zeros(-(-OWN // 32) * 32, bool)
        self.flags[:OWN] = rng.random(OWN) < density
        self.changed = np.packbits(self.flags, bitorder="little").view(np.uint32)
        self.sent = [rng.random((OWN, k), np.float32)]
        self.packing = packing_of(self.sent)
        self.held = [np.zeros((FIRST + LISTED, k), np.float32)]
        self.count = int(self.flags[numbers].sum())
        self.form = ""
        self.bytes: Any = None
        self.parts: Any = None

    def send(self) -> None:
        """Choose a form, and pack."""
        positions = self.link.changed(self.changed)
        chosen = choose(self.link, positions, self.packing.row)
        self.form = f"{chosen.form} {chosen.gap_bits or ''}".strip()
        self.bytes = encode(self.link, chosen, self.packing, self.sent)

    def receive(self) -> None:
        """Read the message, and store its rows."""
        store(decode(self.link, self.bytes, self.packing), self.held, FIRST)

    def send_numpy(self) -> None:
        """Pack a bitmap and rows."""
        flags = np.unpackbits(self.changed.view(np.uint8), bitorder="little")
        listed = np.take(flags, self.link.numbers)
        taken = self.link.numbers[np.flatnonzero(listed)]
        self.parts = np.packbits(listed), np.take(self.sent[0], taken, axis=0)

    def receive_numpy(self) -> None:
        """Read them, and store the rows."""
        bitmap, rows = self.parts
        positions = np.flatnonzero(np.unpackbits(bitmap, count=LISTED))
        self.held[0][FIRST + positions] = rows

    def check(self) -> dict[str, Any]:
        """Compare stored rows with those sent."""
        changed = self.flags[self.link.numbers]
        expected = np.where(changed[:, None], self.sent[0][self.link.numbers], 0)
        return {"ok": bool(np.array_equal(self.held[0][FIRST:], expected))}


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time one message at each width and density."""
    for k in arguments.k:
        for density in map(float, arguments.densities.split(",")):
            message = Message(k, density)
            message.send()
            message.send_numpy()
            checks = {}
            for name, call in (
                ("featgraph", message.receive),
                ("NumPy", message.receive_numpy),
            ):
                message.held[0][:] = 0
                call()
                checks[name] = message.check()
            trials = interleave(
                [
                    Contender("featgraph send", message.send),
                    Contender("featgraph receive", message.receive),
                    Contender("NumPy send", message.send_numpy),
                    Contender("NumPy receive", message.receive_numpy),
                ],
                arguments.repeat,
            )
            rows = message.count * 4 * k
            sizes = {
                "featgraph": message.bytes.size,
                "NumPy": sum(part.nbytes for part in message.parts),
            }
            for (name, _), taken in trials.items():
                recorder.add(
                    name,
                    taken,
                    k=k,
                    density=density,
                    form=message.form if "featgraph" in name else "vr",
                    message_bytes=int(sizes[name.split()[0]]),
                    rows_gb_per_s=round(rows / 1e6 / float(np.median(taken)), 3),
                    checks=checks[name.split()[0]],
                )
