"""Arrays of CuPy, PyTorch and Numba as properties, and views for them, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.base.errors import StateError
from featgraph.runtime.memory import buffers

pytestmark = pytest.mark.gpu

ROWS = 1000


class OnlyDlpack:
    """An array that has nothing but the DLPack protocol."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def given_by(library: str, values: np.ndarray) -> Any:
    """Return the values as an array of a library, on the GPU."""
    if library == "cupy":
        return pytest.importorskip("cupy").asarray(values)
    if library == "numba":
        from featgraph.cuda.dialect import cuda

        return cuda.to_device(values)
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(values.copy()).cuda()
    return OnlyDlpack(tensor) if library == "dlpack" else tensor


@pytest.fixture(scope="module")
def graph() -> fg.Graph:
    rng = np.random.default_rng(3)
    return fg.Graph.from_edges(*rng.integers(0, ROWS, (2, 8000)), vertex_count=ROWS)


@fg.vertex
def double(f, v, d):  # type: ignore[no-untyped-def]
    """Write in place."""
    d.x[v, f] = 2 * d.x[v, f]
    return True


doubled = fg.foldmap(double)
LIBRARIES = ["cupy", "torch", "numba", "dlpack"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "bool"])
def test_arrays_of_other_libraries(
    graph: fg.Graph, library: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As few values as these would be copied to where those of other States were."""
    monkeypatch.setattr(buffers, "_MOST_MOVED", 0)
    values = np.random.default_rng(0).integers(0, 2, (ROWS, 5)).astype(dtype)
    given = given_by(library, values)
    state = fg.State(graph, x=fg.vertex_property(given))
    assert state.signature["x"].dtype == dtype
    np.testing.assert_array_equal(state["x"], values)
    if dtype != "bool":
        array = state._columns["x"].values.array
        doubled(state, target="cuda")
        assert state.residency.array("x").array is array
        np.testing.assert_array_equal(state["x"], values + values)


@pytest.mark.parametrize("library", LIBRARIES[:3])
def test_edges_strides_and_types(graph: fg.Graph, library: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.random((graph.given_edge_count, 6)) * 100
    given = given_by(library, values)[::-1, ::2] if library == "cupy" else None
    given = given_by(library, values)[:, ::2] if given is None else given
    meant = values[::-1, ::2] if library == "cupy" else values[:, ::2]
    for dtype in ("float32", "float64"):
        here = fg.State(graph, w=fg.edge_property(meant, dtype=dtype))
        there = fg.State(graph, w=fg.edge_property(given, dtype=dtype))
        np.testing.assert_array_equal(here.stored("w"), there.stored("w"))
        there["w"] = given_by(library, meant + 1)
        np.testing.assert_array_equal(there["w"], (meant + 1).astype(dtype))
    with pytest.raises(StateError, match="does not fit int8") as error:
        fg.State(graph, w=fg.edge_property(given, dtype="int8"))
    with pytest.raises(StateError) as meant_error:
        fg.State(graph, w=fg.edge_property(meant, dtype="int8"))
    assert str(error.value) == str(meant_error.value)


def test_an_array_is_copied_when_the_state_is_made(graph: fg.Graph) -> None:
    """Work of another stream is waited for, and the array is the caller's again."""
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Stream(non_blocking=True):
        big = cupy.ones((ROWS, 4096), cupy.float32)
        for _ in range(50):
            big = big * 1.0 + 1.0
        state = fg.State(graph, x=fg.vertex_property(big[:, :3]))
        big[...] = -1
    cupy.cuda.Device().synchronize()
    assert (state["x"] == 51).all()


def test_errors_of_a_tensor_with_gradient_name_a_fix(graph: fg.Graph) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(ROWS, device="cuda", requires_grad=True)
    with pytest.raises(StateError, match="detach"):
        fg.State(graph, x=fg.vertex_property(tensor))


def test_views_share_the_memory(graph: fg.Graph) -> None:
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    values = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
    state = fg.State(graph, x=fg.vertex_property(values))
    doubled(state, target="cuda")
    view = state.view("x")
    address = view.__cuda_array_interface__["data"][0]
    taken = [
        cupy.asarray(view),
        cupy.from_dlpack(view),
        torch.as_tensor(view, device="cuda"),
        torch.from_dlpack(view),
    ]
    for array in taken:
        at = array.data.ptr if hasattr(array.data, "ptr") else array.data_ptr()
        assert at == address
        assert array.shape == view.shape
    np.testing.assert_array_equal(np.asarray(view), 2 * values)
    taken[0][...] = cupy.asarray(values)
    cupy.cuda.Device().synchronize()
    state.touch("x")
    doubled(state, target="cuda")
    np.testing.assert_array_equal(state["x"], 2 * values)
    with pytest.raises(StateError, match="has ended"):
        cupy.asarray(view)
    del state, view
    assert taken[2].shape == (ROWS, 3)  # it keeps the memory


def test_filled_values_take_no_memory_of_the_host(graph: fg.Graph) -> None:
    for value, dtype in [(0.0, "float32"), (7, "int16"), (True, "bool"), (3, "int64")]:
        x = fg.vertex_property(value, dtype=dtype, shape=(5,))
        state = fg.State(graph, x=x, y=fg.vertex_property(1.0, shape=(5,)))
        assert state._columns["x"].values.shape == (ROWS, 5)
        if dtype == "bool":
            continue
        doubled(state, target="cuda")
        assert (state["x"] == 2 * value).all()
        assert (state["y"] == 1).all()


def test_a_copy_is_made_on_the_gpu(graph: fg.Graph) -> None:
    values = np.arange(ROWS * 5, dtype=np.float32).reshape(ROWS, 5)
    state = fg.State(graph, x=fg.vertex_property(values))
    doubled(state, target="cuda")
    other = state.copy()
    assert not isinstance(other._columns["x"].values, np.ndarray)
    doubled(state, target="cuda")
    np.testing.assert_array_equal(other["x"], 2 * values)
    doubled(other, target="cuda")
    np.testing.assert_array_equal(other["x"], state["x"])
