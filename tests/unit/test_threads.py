"""A State that one thread runs on is refused to others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import featgraph as fg


@fg.vertex
def count(f, v, d):
    d.x_next[v] = d.x[v] + 1
    return d.x[v] < 5


counting = fg.foldmap(count)


def make() -> fg.State:
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    return fg.State(graph, x=fg.vertex_property(0, iterated=True))


def in_a_thread(function: Callable[[], Any]) -> list[Any]:
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return found


USES: dict[str, Callable[[fg.State], Any]] = {
    "iterate": lambda state: fg.iterate(counting, state, target="cpu"),
    "call": lambda state: counting(state, target="cpu"),
    "write": lambda state: state.__setitem__("x", 0),
    "read": lambda state: state["x"],
    "copy": lambda state: state.copy(),
    "save": lambda state: state.save("/nowhere/at/all"),
}


@pytest.mark.parametrize("use", USES)
def test_a_second_thread_is_refused(use: str) -> None:
    state, found = make(), []

    def interfere(run: fg.Run, state: fg.State) -> None:
        if run.supersteps == 2:
            found.extend(in_a_thread(lambda: USES[use](state)))

    run = fg.iterate(counting, state, target="cpu", callback=interfere)
    assert len(found) == 1
    assert isinstance(found[0], fg.StateError)
    for part in ("another thread", "one thread at a time", "state.copy()"):
        assert part in str(found[0])
    assert run.supersteps == 6
    assert state["x"].tolist() == [5, 5, 5]
    # Afterwards any thread may.
    (after,) = in_a_thread(lambda: fg.iterate(counting, state, target="cpu"))
    assert isinstance(after, fg.Run)


def test_calls_keep_others_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from featgraph.runtime.superstep.superstep import Superstep

    state, found, run = make(), [], Superstep.run

    def slow(self: Any, *given: Any, **options: Any) -> Any:
        found.extend(in_a_thread(lambda: counting(state, target="cpu")))
        return run(self, *given, **options)

    monkeypatch.setattr(Superstep, "run", slow)
    counting(state, target="cpu")
    assert isinstance(found[0], fg.StateError)


def test_callbacks_may_run_and_write() -> None:
    state = make()

    def more(run: fg.Run, state: fg.State) -> bool:
        counting(state, target="cpu")
        fg.iterate(
            counting, state, target="cpu", max_supersteps=1, until=lambda s: True
        )
        state["x"] = state["x"] + 1
        return bool(run.supersteps == 2)

    run = fg.iterate(counting, state, target="cpu", callback=more)
    assert run.supersteps == 2
    assert state["x"].tolist() == [6, 6, 6]


def test_an_error_gives_the_state_back() -> None:
    state = make()

    def fail(run: fg.Run, state: fg.State) -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fg.iterate(counting, state, target="cpu", callback=fail)
    assert not isinstance(in_a_thread(lambda: state["x"])[0], Exception)


def test_copies_are_for_threads() -> None:
    state = make()
    copies = [state.copy() for _ in range(4)]
    threads = [
        threading.Thread(target=fg.iterate, args=(counting, each)) for each in copies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each["x"].tolist() == [5, 5, 5] for each in copies)
    assert state["x"].tolist() == [0, 0, 0]
