"""The choice of cases of the suite by its command line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT, SAMPLED, _extent, cases_left_out


class Item:
    """A test's case, with the attributes that the choice reads."""

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
    files = {"simt/test_a.py": 50, "golden/test_b.py": 8, "docs/test_c.py": 3}
    items = [Item(file, n) for file, count in files.items() for n in range(count)]
    slow = [Item(file, 99, slow=0) for file in files]
    taken = [
        str(item.path.relative_to(ROOT / "tests")) for item in run(items + slow, True)
    ]
    for file, count in files.items():
        most = SAMPLED.get(file.partition("/")[0], 1)
        assert taken.count(file) == min(count, most)
    assert not run(slow, True)


def test_a_sample_may_be_had_of_files_that_are_named() -> None:
    def extent(**options: Any) -> str:
        chosen = {"sample": False, "everything": False, "keyword": "", "target": "cpu"}
        config = SimpleNamespace(
            args_source=pytest.Config.ArgsSource.ARGS,
            option=SimpleNamespace(**chosen | options),
        )
        return _extent(config)  # type: ignore[arg-type]

    assert extent(sample=True) == "sample"
    assert extent() == extent(everything=True) == "every case"
