"""The model of time: constants and counts to seconds, by hand and by its laws."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.graph.generators import uniform
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.cost.forecast import Work, count_traffic, superstep_times
from featgraph.ranks.cost.machine import H200, Curve, Machine
from featgraph.ranks.engines.links import LINKS, Link, named_link
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.streaming.needs import MOVING, buffers_in

SLOW = Link.of("slow", 1e-3, 1e6)
PLAIN = Machine(
    "plain",
    pull=Curve.flat({1: 1e-6, 9: 9e-6}),
    push=Curve.flat({1: 3e-6, 9: 3e-6}),
    vertex=Curve.flat({1: 1e-5}),
    row=Curve.flat({1: 4e-6}),
    fixed_s=1e-3,
)


def work(**changed: list[int]) -> Work:
    names = ("edges", "vertices", "sent", "received", "combined", "reads")
    none = {name: [0, 0] for name in names}
    return Work(**{n: np.array(v, np.int64) for n, v in (none | changed).items()})


def test_a_superstep_is_the_sum_of_its_parts_on_the_slowest_rank() -> None:
    done = work(edges=[1000, 400], vertices=[10, 500], sent=[100, 7], received=[7, 100])
    times = superstep_times(done, PLAIN, SLOW, k=1)
    assert times.load == pytest.approx([14e-6, 200e-6])
    assert times.compute == pytest.approx([1.1e-3, 5.4e-3])
    assert times.update == pytest.approx([200e-6, 14e-6])
    assert times.transfer == pytest.approx([400e-6, 400e-6])
    assert times.latency == pytest.approx(2e-3)
    slowest = 1e-3 + 5.4e-3 + 214e-6
    assert times.seconds == pytest.approx(slowest + 400e-6 + 2e-3)
    halved = superstep_times(done, replace(PLAIN, overlap=0.5), SLOW, k=1)
    assert halved.seconds == pytest.approx(times.seconds - 0.5 * 2.4e-3)


def test_pushes_and_partial_aggregates_have_their_own_times() -> None:
    done = work(edges=[1000, 0], combined=[0, 20], received=[0, 20], sent=[20, 0])
    pulled = superstep_times(done, PLAIN, SLOW)
    pushed = superstep_times(done, PLAIN, SLOW, direction="push")
    assert pushed.compute[0] == pytest.approx(3 * pulled.compute[0])
    assert pulled.latency == pytest.approx(3e-3), "they are one more exchange"
    assert pulled.update[1] == pytest.approx(40e-6)
    with pytest.raises(fg.FeatGraphError, match="two directions"):
        superstep_times(done, PLAIN, SLOW, direction="both")


def test_one_rank_has_no_wire() -> None:
    alone = Work(*(np.array([n]) for n in (10, 10, 0, 0, 0, 10)))
    times = superstep_times(alone, PLAIN, SLOW)
    assert times.latency == times.transfer[0] == 0


def test_links_interpolate_and_go_on() -> None:
    link = Link("bent", ((0, 1.0), (10, 2.0), (30, 3.0)), peer_s=0.5)
    found = [link.seconds(n, 2) for n in (0, 5, 10, 20, 30, 70)]
    assert found == pytest.approx([1, 1.5, 2, 2.5, 3, 5])
    assert link.seconds(0, 4) == 2
    assert link.seconds(100, 1) == 0
    assert link.bytes_a_second == 20
    assert named_link("bent", [link]) is link
    assert named_link("gloo") is LINKS["gloo"]
    with pytest.raises(fg.FeatGraphError, match="nvlink"):
        named_link("string")
    for points in (((0, 1.0),), ((1, 1.0), (2, 2.0)), ((0, 1.0), (0, 2.0)),
                   ((0, float("nan")), (1, 2.0))):  # fmt: skip
        with pytest.raises(fg.FeatGraphError, match="invalid times"):
            Link("bad", points)


def test_curves_interpolate_by_width_and_by_what_is_read() -> None:
    curve = Curve((1, 3), (1.0, 2.0), (3.0, 6.0), near_bytes=100, far_bytes=10_000)
    assert curve.at(1, 10) == curve.at(0.5, 100) == 1
    assert curve.at(2, 50) == 1.5
    assert curve.at(1, 1000) == pytest.approx(2)
    assert curve.at(6, 1e9) == 12, "behind the widest, in proportion"


@pytest.mark.parametrize("machine", [H200, replace(PLAIN, links=(SLOW,))])
def test_machines_are_kept_as_text(machine: Machine) -> None:
    again = Machine.from_json(machine.to_json())
    assert again.links == machine.links
    for width in (1, 8, 40):
        assert again.pull.at(width) == machine.pull.at(width)
    for text in ("", "[]", "{}", machine.to_json()[:-1], '{"pull": 1}'):
        with pytest.raises(fg.FileFormatError, match="constants"):
            Machine.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"fixed_s": "soon"},
        {"fixed_s": float("nan")},
        {"overlap": 2},
        {"exchanges": None},
        {"pull": {"widths": [], "near": [], "far": []}},
        {"pull": {"widths": [1, 1], "near": [1, 1], "far": [1, 1]}},
        {"pull": {"widths": [1], "near": ["x"], "far": [1]}},
        {"pull": {"widths": [1], "near": [1], "far": [1, 2]}},
        {"row": {"widths": [1], "near": [-1], "far": [1]}},
        {"row": {"widths": [1], "near": [1], "far": [1], "near_bytes": 9}},
    ],
)
def test_text_with_other_values_is_no_machine(change: dict[str, Any]) -> None:
    text = json.dumps(json.loads(PLAIN.to_json()) | change)
    with pytest.raises(fg.FileFormatError, match="constants"):
        Machine.from_json(text)


numbers = st.lists(st.integers(0, 10**6), min_size=2, max_size=2)


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("edges", "vertices", "sent", "received", "combined"), numbers)
    ),
    st.sampled_from(["edges", "vertices", "sent", "received", "combined"]),
    st.sampled_from(list(LINKS.values())),
    st.integers(1, 200),
)
def test_more_work_takes_no_less(
    given_work: dict[str, list[int]], more: str, link: Link, k: int
) -> None:
    raised = given_work | {more: [n + 100 for n in given_work[more]]}
    one, other = (
        superstep_times(work(**w), H200, link, k=k) for w in (given_work, raised)
    )
    assert other.seconds >= one.seconds > 0


def test_edges_that_do_not_fit_come_over_the_link() -> None:
    quick = Link.of("quick", 1e-6, 1e13)
    edges, vertices = 100_000_000, 1 << 20
    alone = Work(*(np.array([n]) for n in (edges, vertices, 0, 0, 0, vertices)))
    whole = superstep_times(alone, H200, quick)
    limit = 200 << 20
    found = superstep_times(alone, H200.under(limit), quick)
    size, count = buffers_in(limit - 16 * vertices)
    copied = 4 * edges - (count - MOVING) * size
    swept = vertices * H200.vertex.at(1)
    assert found.compute[0] == pytest.approx(copied / 54e9 + swept)
    fits = superstep_times(alone, H200.under(4 * edges + 16 * vertices), quick)
    assert fits.compute[0] == whole.compute[0]


@settings(max_examples=15, deadline=None)
@given(data=st.data(), k=st.sampled_from([1, 3, 8]), seed=st.integers(0, 9))
def test_forecast_rows_and_bytes_are_what_ranks_send(
    data: st.DataObject, k: int, seed: int
) -> None:
    graph = uniform(150, 700, seed=seed)
    inner = data.draw(st.lists(st.integers(0, 150), max_size=3).map(sorted))
    cuts = [0, *inner, 150]
    partition = Partition(cuts)
    counts = count_traffic(graph, partition)
    done = Work.whole(counts)

    def on_a_rank(engine: Any) -> tuple[list[int], list[int]]:
        ranks = fg.distribute(graph, cuts=cuts, along="in")
        values = np.ones((150, k), np.float32)
        if engine.size == 1:
            return [0], [0]
        transport = ranks.exchange(choose_device("cpu")).transport  # type: ignore[attr-defined]
        rows = ranks.local_rows(values)
        everyone = ranks.exchange(choose_device("cpu")).own(None)  # type: ignore[attr-defined]
        before = engine.traffic.copy()
        transport.share([rows], everyone)
        moved = engine.traffic - before
        return moved.sent.tolist(), moved.received.tolist()

    found = fg.distributed.run_ranks(partition.parts, on_a_rank)
    for rank, (sent, received) in enumerate(found):
        # Each message that is not empty ends with its form.
        sent_rows = [(n - (n > 0)) // (4 * k) for n in sent]
        received_rows = [(n - (n > 0)) // (4 * k) for n in received]
        assert sum(sent_rows) == done.sent[rank] == counts.sent[rank]
        assert sum(received_rows) == done.received[rank]
