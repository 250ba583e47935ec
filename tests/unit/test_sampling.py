"""Which cases of the suite run, as its command line asks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT, SAMPLED, cases_left_out


class Item:
    """A test's case, as far as choosing asks."""

    def __init__(self, file: str, number: int, **marks: int) -> None:
        self.path = Path(ROOT, "tests", file)
        self.nodeid = f"tests/{file}::test_some[{number}]"
        self.marks = marks

    def get_closest_marker(self, name: str) -> Any:
        return SimpleNamespace(args=[self.marks[name]]) if name in self.marks else None


def run(items: list[Item], is_sample: bool) -> list[Item]:
    left_out = cases_left_out(items, is_sample)  # type: ignore[arg-type]
    return [item for item in items if item not in left_out]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 30])
def test_one_of_n_cases_is_drawn(count: int) -> None:
    items = [Item("simt/test_a.py", n, drawn=3) for n in range(count)]
    taken = [items.index(item) // 3 for item in run(items, False)]
    assert taken == list(range(-(-count // 3)))
    assert run(items, False) == run(items, False)


def test_draws_have_no_rhythm() -> None:
    items = [Item("simt/test_a.py", n, drawn=3) for n in range(90)]
    assert {items.index(item) % 3 for item in run(items, False)} == {0, 1, 2}


def test_everything_runs_what_is_not_drawn() -> None:
    items = [Item("simt/test_a.py", n) for n in range(9)]
    items += [Item("unit/test_b.py", n, slow=0) for n in range(9)]
    assert run(items, False) == items


def test_the_sample_takes_a_few_cases_a_file_and_no_slow_ones() -> None:
    items = [Item("simt/test_a.py", n) for n in range(50)]
    few = [Item("unit/test_b.py", n) for n in range(3)]
    whole = [Item("docs/test_c.py", n) for n in range(70)]
    slow = [Item("docs/test_c.py", 99, slow=0), Item("simt/test_a.py", 99, slow=0)]
    taken = run([*items, *few, *whole, *slow], True)
    assert len([item for item in taken if item in items]) == SAMPLED["simt"]
    assert [item for item in taken if item not in items] == [*few, *whole]
