"""Label propagation at many widths K on the GPU, against cuSPARSE's product alone.

A superstep over all vertices at each K, with rows padded to multiples of each of some
numbers of features (0: as the package has it; 1: not at all), and the product of
PyTorch, which is cuSPARSE's. Kernels are compiled by several processes before.
Labels are drawn on the GPU; each superstep is checked there against the product.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import make_graph
from bench.programs import ALPHA, labels_of_neighbors, relax
from bench.record import ROOT, Recorder, child_environment
from bench.timing import Budget, time_batches
from featgraph.base import padding

TABLE = [
    *range(1, 10), 12, *range(15, 18), 24, *range(31, 34), 48, *range(63, 66), 96, 100,
    *range(127, 130), 200, 255, 256,
]  # fmt: skip
DEFAULTS = {
    "graph": ["kron21"], "k": TABLE, "repeat": 5, "budget": 50.0, "processes": 12,
    "multiples": [0], "hub_blocks": None,
}  # fmt: skip
#: A batch of launches between two events takes about so long.
BATCH_MS = 25.0
#: Norm of the difference over the norm, both in float32.
LIMIT = 1e-5
#: Entries that are compared, at most, and vertices of highest degree among them.
COMPARED, LONGEST = 2**29, 1024
_OWN = padding.MULTIPLES


@fg.gather(into="aggr", combine="sum")
def labels_by_rows(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Class f of the source, weighted by the edge for that class."""
    return d.weight[e, f] * d.label[u, f]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, help="that compile before")
    parser.add_argument(
        "--multiples", type=int, nargs="+", help="that rows are padded to"
    )
    parser.add_argument(
        "--hub-blocks", type=int, help="of hubs that must fit; 0: any, default: chosen"
    )
    parser.add_argument("--no-peers", action="store_true", help="no products")
    parser.add_argument(
        "--edge-rows", action="store_true", help="a weight for each feature of an edge"
    )


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time each width in each form, and the product."""
    budget = Budget(arguments.budget)
    recorder.require_gpu()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("FEATGRAPH_CACHE_DIR", folder)
        for name in arguments.graph:
            named = make_graph(name)
            budget.print(f"made {name}")
            _compile_ahead(arguments, named.graph)
            budget.print("compiled")
            problem = _Problem(named.graph, arguments.edge_rows)
            for k in arguments.k:
                if budget.allows(f"{name}, k={k}"):
                    about = {"k": k, "graph": named.describe()}
                    _time_width(problem, about, arguments, recorder)
            budget.print(f"done with {name}")


class _Problem:
    """A graph with weights on the GPU."""

    def __init__(self, graph: fg.Graph, has_rows: bool) -> None:
        import torch

        self._torch, self.graph, self._has_rows = torch, graph, has_rows
        ins, count = graph.in_edges, graph.vertex_count
        rng = torch.Generator("cuda")
        rng.manual_seed(1)
        self.given = torch.rand(graph.given_edge_count, generator=rng, device="cuda")
        self.given += 0.5
        self._rng = rng
        order = torch.from_numpy(np.array(graph.given_index)).to("cuda")
        wide = ins.row_offsets.dtype == np.int64
        index = torch.int64 if wide else torch.int32
        self._matrix = torch.sparse_csr_tensor(
            torch.from_numpy(np.array(ins.row_offsets)).to("cuda", index),
            torch.from_numpy(np.array(ins.column_indices)).to("cuda", index),
            self.given[order.long() % graph.given_edge_count],
            size=(count, count),
        )

    def labels(self, k: int) -> Any:
        """Return random distributions."""
        shape = self.graph.vertex_count, k
        made = self._torch.rand(shape, generator=self._rng, device="cuda").add_(0.01)
        return made.div_(made.sum(1, keepdim=True))

    def multiply(self, labels: Any) -> Any:
        """Return the product."""
        return self._matrix @ labels

    def product(self, labels: Any) -> tuple[Any, Any]:
        """Return rows, and their labels behind a superstep.

        These are all rows; of large matrices the longest, and some drawn.
        """
        torch, rows = self._torch, slice(None)
        if labels.numel() > COMPARED:
            count, rest = len(labels), COMPARED // labels.shape[1] - LONGEST
            drawn = torch.randint(count, (rest,), generator=self._rng, device="cuda")
            degree = torch.from_numpy(np.array(self.graph.in_degree))
            longest = degree.topk(LONGEST).indices
            rows = torch.cat([longest.to("cuda"), drawn])
        found = _normalize(self.multiply(labels)[rows]).mul_(ALPHA)
        return rows, _normalize(found.add_(labels[rows], alpha=1 - ALPHA))

    def free_cache(self) -> None:
        """Give the memory that PyTorch keeps back to the device."""
        self._torch.cuda.empty_cache()

    def state(self, labels: Any) -> fg.State:
        """Return a State in which each superstep commits all vertices."""
        weights = self.given
        if self._has_rows:
            weights = weights[:, None].expand(-1, labels.shape[1])
        return _state(self.graph, labels, weights)

    def difference(self, state: fg.State, rows: Any, wanted: Any) -> float:
        """Return the norm of the difference to the wanted rows, over their norm."""
        found = self._torch.as_tensor(state.view("label"), device="cuda")[rows]
        difference = self._torch.linalg.norm(found - wanted)
        return float(difference / self._torch.linalg.norm(wanted))


def _state(graph: fg.Graph, labels: Any, weights: Any, **shape: Any) -> fg.State:
    """Return a State; `shape` is that of entries which are all the same."""
    return fg.State(
        graph,
        label=fg.vertex_property(labels, iterated=True, **shape),
        clamped=fg.vertex_property(False),
        weight=fg.edge_property(weights),
        alpha=ALPHA,
        epsilon=-1.0,
    )


def _normalize(rows: Any) -> Any:
    total = rows.sum(1, keepdim=True)
    total[total == 0] = 1
    return rows.div_(total)


def _time_width(
    problem: _Problem,
    about: dict[str, Any],
    arguments: argparse.Namespace,
    recorder: Recorder,
) -> None:
    """Time the product, and a superstep with rows in each form."""
    labels = problem.labels(about["k"])
    wanted = problem.product(labels)
    if not arguments.no_peers:
        taken = _trials(lambda: problem.multiply(labels), arguments)
        recorder.add("torch product", taken, work="product alone", **about)
    for multiple in arguments.multiples:
        fields = {"multiple": multiple, **about}
        if arguments.hub_blocks is not None:
            fields["hub_blocks"] = arguments.hub_blocks

        def attempt(multiple: int = multiple, fields: Any = fields) -> None:
            _pad(multiple)
            taken, more = _time_superstep(problem, labels, wanted, arguments)
            recorder.add("superstep", taken, work="superstep", **more, **fields)

        recorder.attempt("superstep", attempt, **fields)


def _time_superstep(
    problem: _Problem,
    labels: Any,
    wanted: tuple[Any, Any],
    arguments: argparse.Namespace,
) -> tuple[list[float], dict[str, Any]]:
    """Check and time a superstep; return ms of each trial, and more fields."""
    problem.free_cache()
    state = problem.state(labels)
    superstep = _prepared(state, arguments.hub_blocks)
    superstep.run()
    difference = problem.difference(state, *wanted)
    [phase] = superstep.plan.phases
    return _trials(superstep.run, arguments), {
        "stride": superstep.plan.strides["label"],
        "mapping": phase.describe_mapping(),
        "checks": {"difference": difference, "ok": difference < LIMIT},
    }


def _prepared(state: fg.State, hub_blocks: int | None) -> Any:
    """Return a superstep; folded anew, since rows may be padded otherwise now."""
    from featgraph.runtime.devices.choose import choose_device

    has_rows = bool(state.signature["weight"].item_shape)
    step = fg.foldmap(labels_by_rows if has_rows else labels_of_neighbors, relax)
    options: dict[str, Any] = {"direction": "pull"}
    if hub_blocks is not None:
        options["_mapping"] = {"hub_resident": hub_blocks}
    return step.prepare(state, choose_device("cuda"), options)


def _trials(call: Any, arguments: argparse.Namespace) -> list[float]:
    call()
    return time_batches(call, arguments.repeat, BATCH_MS)[0]


def _pad(multiple: int) -> None:
    padding.MULTIPLES = (multiple, 4) if multiple > 4 else (multiple,)
    if not multiple:
        padding.MULTIPLES = _OWN


def _compile_ahead(arguments: argparse.Namespace, graph: fg.Graph) -> None:
    """Have several processes compile the kernels of all widths."""
    from featgraph.fold.plan.traits import graph_traits

    rows = int(arguments.edge_rows)
    own = json.dumps(arguments.hub_blocks)
    cases = [f"{k}:{m}:{rows}:{own}" for k in arguments.k for m in arguments.multiples]
    traits = json.dumps(asdict(graph_traits(graph)))
    running = []
    for number in range(arguments.processes):
        share = cases[number :: arguments.processes]
        line = [sys.executable, "-m", "bench.schedules.widths_gpu", traits, *share]
        environment = child_environment() | {"NUMBA_NUM_THREADS": "1"}
        running.append(subprocess.Popen(line, cwd=ROOT, env=environment))
    for process in running:
        process.wait(arguments.budget)


def main() -> None:
    """Compile kernels.

    Arguments are traits of a graph, then K, multiple, if edges have rows, and how many
    blocks of hubs must fit.
    """
    from bench.schedules.compile_ahead import small_graph
    from featgraph.fold.plan.traits import GraphTraits

    graph = small_graph(GraphTraits(**json.loads(sys.argv[1])))
    for case in sys.argv[2:]:
        k, multiple, has_rows, hub_blocks = map(json.loads, case.split(":"))
        _pad(multiple)
        weights = np.ones((graph.given_edge_count, k)[: 1 + has_rows], np.float32)
        state = _state(graph, 0.5, weights, shape=(k,))
        _prepared(state, hub_blocks).run()


if __name__ == "__main__":
    main()
