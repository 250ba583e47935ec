"""When memory of the GPU is given back, with a driver that only remembers."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from featgraph.cuda import dialect as cuda_dialect

if not cuda_dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.cuda import foreign
from featgraph.cuda import memory as cuda_memory


class Memory:
    """A stand-in for the dialect's owner of memory."""

    def __init__(self, context: Any, address: int, size: int) -> None:
        self.device_pointer = address


class Api:
    """The driver's calls, which succeed unless `is_ours` is False."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.is_ours = True
        self.taken = 0

    def cuMemAllocFromPoolAsync(self, size: int, pool: Any, stream: int) -> Any:
        self.taken += 512
        return 0, self.taken

    def cuCtxPushCurrent(self, context: Any) -> Any:
        return (0 if self.is_ours else 3,)

    def __getattr__(self, name: str) -> Any:
        def note(*given: Any) -> Any:
            self.calls.append((name, *given))
            return (0,)

        return note


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    dialect = SimpleNamespace(MemoryPointer=Memory)
    monkeypatch.setattr(cuda_memory, "cuda", dialect)
    made = object.__new__(cuda_memory._Pool)
    made._api, made._owner = Api(), None
    made._context, made._pool = "context", "pool"
    return made


def calls_of(pool: Any) -> list[Any]:
    gc.collect()
    return [call for call in pool._api.calls if call[0] != "cuCtxPopCurrent"]


def test_memory_goes_back_in_the_order_of_the_default_stream(pool: Any) -> None:
    first, second = pool.take(8), pool.take(8)
    assert calls_of(pool) == []
    del second
    assert calls_of(pool) == [("cuMemFreeAsync", 1024, 0)]
    assert first.device_pointer == 512


def test_what_was_lent_waits_for_all_streams_once(pool: Any) -> None:
    memory = pool.take(8)
    cuda_memory.expose(memory.device_pointer)
    del memory
    assert calls_of(pool) == [("cuCtxSynchronize",), ("cuMemFreeAsync", 512, 0)]
    assert 512 not in cuda_memory._exposed  # the next array there is not exposed


def test_behind_a_fork_nothing_is_freed(pool: Any) -> None:
    memory = pool.take(8)
    pool._api.is_ours = False
    del memory
    assert calls_of(pool) == []


def test_a_context_has_one_pool_which_is_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api: Any = Api()
    current, contexts = [0], list[int]()
    api.cuCtxGetCurrent = lambda: (0, current[0])
    monkeypatch.setattr(cuda_memory, "_pools", {})
    monkeypatch.setattr(cuda_memory, "import_whole", lambda name: api)
    monkeypatch.setattr(cuda_memory, "_has_pool", lambda context: context != 7)
    monkeypatch.setattr(cuda_memory, "_Pool", lambda *given: given)

    def make_current() -> int:
        current[0] = current[0] or 5
        contexts.append(current[0])
        return current[0]

    monkeypatch.setattr(
        cuda_memory, "cuda", SimpleNamespace(current_context=make_current)
    )
    first = cuda_memory._current_pool()  # a thread that has none yet
    assert first == (5, 5)
    assert cuda_memory._current_pool() is first
    current[0] = 7  # without a pool
    assert cuda_memory._current_pool() is None
    assert cuda_memory._current_pool() is None
    current[0] = 0  # another thread
    assert cuda_memory._current_pool() is first
    assert contexts == [5, 7, 5]


def test_what_was_lent_without_a_pool_is_forgotten_with_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def device_array(shape: Any, dtype: Any) -> Any:
        return SimpleNamespace(gpu_data=Memory(None, 768, 8))

    monkeypatch.setattr(cuda_memory, "_current_pool", lambda: None)
    monkeypatch.setattr(cuda_memory, "cuda", SimpleNamespace(device_array=device_array))
    array = cuda_memory.array_of((2,), "float32")
    cuda_memory.expose(768)
    assert cuda_memory.is_exposed(768)
    del array
    gc.collect()
    assert not cuda_memory.is_exposed(768)


def test_arrays_of_the_dialect_are_their_own_views() -> None:
    """But for arrays with gaps, or of a stream that has to be waited for."""

    def array(stream: int, is_dense: bool) -> Any:
        return SimpleNamespace(
            __cuda_ndarray__=True, stream=stream, is_c_contiguous=lambda: is_dense,
            __cuda_array_interface__={"mask": object()},
        )  # fmt: skip

    own = array(0, True)
    assert foreign._view(own) is own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_dialect, "is_available", lambda: True)
        for other in (array(5, True), array(0, False)):
            with pytest.raises(NotImplementedError, match="mask"):
                foreign._view(other)
