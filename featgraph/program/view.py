"""Views: the values of a property in place, for other libraries; locks of States."""

from __future__ import annotations

import math
import threading
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import StateError
from featgraph.cuda.values import DeviceValues
from featgraph.graph import Graph
from featgraph.graph.views.structure import edge_rows
from featgraph.program.signature import PropertyKind, Signature

__all__ = ["InUse", "View"]


class InUse:
    """The lock of a State, held by the thread that runs supersteps on it.

    The lock is reentrant: callbacks may run other foldmaps on the State.
    """

    def __init__(self, graph: Any = None) -> None:
        #: Lock of a graph that changes: other threads apply no batch during supersteps.
        self._turns: Any = None if graph is None else graph.turns
        self._owner: dict[str, int] = {}
        self._depth = 0
        #: Number of operations that may have changed values.
        self.changes = 0

    def hold(self, doing: str, *, changes: bool = True) -> _Held:
        """Return a context that holds the lock.

        Parameters
        ----------
        doing : str
            The operation, for errors.
        changes : bool
            Whether the operation may change values.

        Raises
        ------
        StateError
            If another thread holds the lock.
        """
        return _Held(self, doing, changes)

    def take(self, doing: str, *, changes: bool = True) -> None:
        """Take the lock; each call needs a call of `leave`.

        Raises
        ------
        StateError
            If another thread holds the lock.
        """
        me = threading.get_ident()
        # `setdefault` is atomic, so that two threads cannot both find it free.
        if self._owner.setdefault("thread", me) != me:
            raise _taken(doing)
        if self._turns is not None and self._depth == 0:
            try:
                self._turns.enter(doing)
            except StateError:
                self._owner.clear()
                raise
        self._depth += 1
        self.changes += changes

    def leave(self) -> None:
        """Release one `take`."""
        self._depth -= 1
        if self._depth == 0:
            if self._turns is not None:
                self._turns.leave()
            self._owner.clear()

    def check(self, doing: str) -> None:
        """Refuse an operation that supersteps of another thread would disturb.

        Raises
        ------
        StateError
            If another thread holds the lock.
        """
        me = threading.get_ident()
        if self._owner.get("thread", me) != me:
            raise _taken(doing)


class _Held:
    """Context of `InUse.hold`: a class, as it is entered faster than a generator."""

    __slots__ = ("_changes", "_doing", "_of")

    def __init__(self, of: InUse, doing: str, changes: bool) -> None:
        self._of, self._doing, self._changes = of, doing, changes

    def __enter__(self) -> None:
        self._of.take(self._doing, changes=self._changes)

    def __exit__(self, *error: object) -> None:
        self._of.leave()


def _taken(doing: str) -> StateError:
    return StateError(
        "another thread uses this State",
        where=doing,
        expected="one thread at a time",
        fix="give each thread a copy, state.copy(), or read it in callback=",
    )


class Viewed(Protocol):
    """The attributes of a State that a view needs."""

    graph: Graph
    in_use: InUse
    superstep: int

    @property
    def signature(self) -> Signature: ...


class View:
    """The values of a property, without a copy, in kernel order.

    Made by `State.view`. Other libraries read it as an array: ``cupy.asarray(view)``,
    ``torch.as_tensor(view, device="cuda")``, ``torch.from_dlpack(view)``,
    ``numpy.asarray(view)``. NumPy gets a copy of values on the GPU, other libraries the
    memory itself. The view is valid until the next call of a foldmap,
    `featgraph.iterate`, superstep or assignment, which may move the values. Arrays that
    were made from the view before keep the memory alive.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    def __init__(
        self, state: Viewed, name: str, array: Any, shape: tuple[int, ...] | None = None
    ) -> None:
        if isinstance(array, DeviceValues):
            from featgraph.cuda.foreign import unpadded  # imports the dialect

            array = unpadded(array)
        self._state, self._name, self._array = state, name, array
        self._made = _content_version(state)
        #: Shape that the array gets at the first use: reshaping an array of the dialect
        #: takes as long as a small superstep.
        self._wanted = shape
        self.shape: tuple[int, ...] = tuple(array.shape) if shape is None else shape
        self.dtype: np.dtype[Any] = array.dtype

    def __repr__(self) -> str:
        where = "host" if self._is_on_host else "GPU"
        shown = self._state.signature[self._name].describe()
        return f"View of {self._name} on the {where}: {shown}"

    def __len__(self) -> int:
        return self.shape[0]

    def whole(self) -> npt.NDArray[Any]:
        """Return a copy on the host, with the rows of all ranks.

        On several ranks, all of them call this method.
        """
        array = self.__array__(copy=True)
        if self._state.signature[self._name].kind is not PropertyKind.VERTEX:
            return array
        return self._state.graph.collect_vertex_values(array)  # type: ignore[no-any-return]

    def local(self) -> npt.NDArray[Any]:
        """Return a copy on the host of the rows that this rank owns."""
        array, graph = self.__array__(copy=True), self._state.graph
        if self._state.signature[self._name].kind is not PropertyKind.VERTEX:
            return array
        return array[: graph.own_vertices.size]

    @property
    def is_of_ranks(self) -> bool:
        """Whether each rank has a part of the values."""
        return self._state.graph.ranks is not None

    def reshape(self, *shape: int) -> View:
        """Return a view of the same values in another shape."""
        array = self.current()
        if self._is_on_host:
            return View(self._state, self._name, array.reshape(shape))
        is_plain = min(shape, default=0) >= 0 and array.is_c_contiguous()
        if is_plain and math.prod(shape) == array.size:
            return View(self._state, self._name, array, tuple(shape))
        from featgraph.cuda.foreign import reshaped

        return View(self._state, self._name, reshaped(array, shape))

    @property
    def order(self) -> npt.NDArray[Any] | None:
        """The given edge that each row belongs to; None if rows are as given.

        For an undirected graph with `E` given edges, ``E + i`` is the other direction
        of edge i.
        """
        is_edge = self._state.signature[self._name].kind is PropertyKind.EDGE
        return np.array(edge_rows(self._state.graph).on_host()) if is_edge else None

    @property
    def is_on_gpu(self) -> bool:
        """Whether the values are on the GPU, without exporting them."""
        return not self._is_on_host

    @property
    def _is_on_host(self) -> bool:
        return isinstance(self._array, np.ndarray)

    def current(self) -> Any:
        """Return the array, on the host or the GPU, while the view is valid."""
        if _content_version(self._state) != self._made:
            raise StateError(
                "the view has ended",
                where=f"state.view({self._name!r})",
                got="a State that was used since",
                expected="no call, superstep or assignment between a view and its use",
                fix=f"take another one: state.view({self._name!r})",
            )
        if self._wanted is not None:
            from featgraph.cuda.foreign import reshaped

            self._array, self._wanted = reshaped(self._array, self._wanted), None
        return self._array

    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        array = self.current()
        if self._is_on_host:
            if copy is None and (dtype is None or array.dtype == dtype):
                return array  # type: ignore[no-any-return]
            return np.array(array, dtype, copy=copy)
        if copy is False:
            raise ValueError("values on the GPU need a copy to reach the host")
        from featgraph.cuda.download import read  # imports the dialect

        found = read(array)
        return found if dtype is None else found.astype(dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        array = self.current()
        if self._is_on_host:
            raise AttributeError("the values are on the host")
        from featgraph.cuda.foreign import array_interface  # imports the dialect

        return array_interface(array)

    def __dlpack_device__(self) -> tuple[int, int]:
        array = self.current()
        if self._is_on_host:
            return array.__dlpack_device__()  # type: ignore[no-any-return]
        from featgraph.cuda.foreign import dlpack_device

        return dlpack_device(array)

    def __dlpack__(self, **options: Any) -> Any:
        array = self.current()
        if self._is_on_host:
            return array.__dlpack__(**options)
        from featgraph.cuda.foreign import dlpack_capsule

        return dlpack_capsule(self, **options)


def _content_version(state: Viewed) -> tuple[int, ...]:
    """Return a value that changes whenever values may have changed or moved."""
    return state.in_use.changes, state.superstep
