"""Arrays come to the host in pieces, through page-locked memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.cuda import arrays as memory
from featgraph.cuda import download
from tests.simt.gpu import Gpu, PieceDriver, StridedArray, emulated_gpu

PIECE, PIECES = 256, 4


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    """A GPU whose arrays come in pieces from 512 bytes on."""
    with emulated_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "LEAST", 512)
        patch.setattr(download, "FEW", 64)
        patch.setattr(download, "PIECE", PIECE)
        patch.setattr(download, "PIECES", PIECES)
        yield gpu


@given(data=st.data())
def test_what_lands_is_what_was_there(gpu: Gpu, data: st.DataObject) -> None:
    """Of any type and size, and rows that are apart without what is between them."""
    dtype = data.draw(st.sampled_from(["int8", "float32", "float64", "bool"]))
    count, width = data.draw(st.integers(0, 300)), data.draw(st.integers(1, 12))
    apart = data.draw(st.integers(0, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = rng.integers(0, 2**60, (count, width + apart)).astype(dtype)
    values = values[:, 0] if data.draw(st.booleans()) else values
    owner = memory.upload(values)
    array, meant = owner, values
    if values.ndim == 2 and apart:
        meant = values[:, :width]
        array = StridedArray(owner.view()[:, :width])
    before = len(gpu.downloads)
    is_by_width = meant is not values and data.draw(st.booleans())
    found = download.read(owner, width) if is_by_width else download.read(array)
    assert (found.dtype, found.shape) == (meant.dtype, meant.shape)
    assert found.flags.c_contiguous
    assert found.flags.writeable
    np.testing.assert_array_equal(found, meant)
    if array.is_c_contiguous() and meant.nbytes >= 512:
        assert len(gpu.downloads) - before == -(-meant.nbytes // PIECE)


def test_several_threads_read_at_once(gpu: Gpu) -> None:
    """One has the pieces at a time."""
    arrays = [np.arange(2000) + 10_000 * n for n in range(6)]
    held = [memory.upload(array) for array in arrays]
    with ThreadPoolExecutor(6) as threads:
        for found, meant in zip(threads.map(download.read, held), arrays, strict=True):
            np.testing.assert_array_equal(found, meant)


def test_a_piece_is_not_written_before_it_has_been_taken(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes."""
    may_go, take = threading.Event(), download._take
    read, reads = PieceDriver.start_read, []

    def slow(*arguments: Any) -> None:
        assert may_go.wait(60)
        take(*arguments)

    def noted(*arguments: Any) -> None:
        reads.append(arguments)
        if len(reads) == PIECES:
            may_go.set()  # all pieces are used: what comes next waits for the first
        read(*arguments)

    monkeypatch.setattr(download, "_take", slow)
    monkeypatch.setattr(PieceDriver, "start_read", noted)
    values = np.arange(1000)
    np.testing.assert_array_equal(download.read(memory.upload(values)), values)
    assert len(reads) > 2 * PIECES


def test_pieces_are_free_again_behind_an_error(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind an interrupt, too."""
    values = np.arange(1000)
    array = memory.upload(values)
    for error in (fg.DeviceError("the driver is not well"), KeyboardInterrupt()):

        def failing(_: Any, event: Any, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(PieceDriver, "wait_for", failing)
            with pytest.raises(type(error)):
                download.read(array)
        np.testing.assert_array_equal(download.read(array), values)


@pytest.mark.parametrize("width", [1, 5, 8])
def test_properties_and_views_of_any_width_land(gpu: Gpu, width: int) -> None:
    values = np.random.default_rng(1).random((300, width)).astype(np.float32)
    graph = fg.Graph.from_edges([0], [1], vertex_count=300)
    state = fg.State(graph, x=fg.vertex_property(values))
    fg.foldmap(_double)(state, target="cuda")
    np.testing.assert_array_equal(np.asarray(state.view("x")), 2 * values)
    np.testing.assert_array_equal(state["x"], 2 * values)
    np.testing.assert_array_equal(state.copy()["x"], 2 * values)


@fg.vertex
def _double(f, v, d):  # type: ignore[no-untyped-def]
    d.x[v, f] = 2 * d.x[v, f]
    return True
