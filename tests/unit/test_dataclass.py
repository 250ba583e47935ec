"""`featgraph.base.dataclass` gives the methods that the standard library gives."""

import dataclasses
import importlib
from pathlib import Path

import pytest

import featgraph.base.dataclass


def _classes(dataclass):
    @dataclass(frozen=True)
    class Pair:
        a: int
        b: list = dataclasses.field(default_factory=list, compare=False)
        c: str = dataclasses.field(default="c", repr=False)

    @dataclass
    class Plain:
        a: int

    @dataclass(eq=False)
    class ById:
        a: int

    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(frozen=True)
    class Own:
        a: int

        def __eq__(self, other):
            return True

        def __repr__(self):
            return "own"

    @dataclass(frozen=True)
    class Longer(Pair):
        d: int = 0

    @dataclass(frozen=True, slots=True)
    class Slots:
        a: int

    pairs = [Pair(1), Pair(1, [2]), Pair(2), Pair(1, c="d"), Longer(1), Longer(1, d=1)]
    return {
        "pairs": pairs,
        "plain": [Plain(1), Plain(1), Plain(2)],
        "by id": [ById(1), ById(1)],
        "empty": [Empty(), Empty()],
        "own": [Own(1), Own(2)],
        "slots": [Slots(1), Slots(1), Slots(2)],
    }


@pytest.mark.parametrize("name", sorted(_classes(dataclasses.dataclass)))
def test_methods_are_those_of_the_standard_library(name):
    expected = _classes(dataclasses.dataclass)[name]
    got = _classes(featgraph.base.dataclass.dataclass)[name]
    assert [[x == y for y in got] for x in got] == [
        [x == y for y in expected] for x in expected
    ]
    assert got[0] != expected[0] or name == "own"
    assert [repr(x) for x in got] == [repr(x) for x in expected]
    assert [dataclasses.asdict(x) for x in got] == [
        dataclasses.asdict(x) for x in expected
    ]
    for x, y in zip(got, expected, strict=True):
        assert (type(x).__hash__ is None) == (type(y).__hash__ is None)
        assert dataclasses.replace(x) == x or name == "by id"
        if type(y).__hash__ not in (None, object.__hash__):
            assert hash(x) == hash(dataclasses.replace(x))
        assert ("__dict__" in dir(x)) == ("__dict__" in dir(y))


def test_a_value_that_holds_itself_can_be_shown():
    value = _classes(featgraph.base.dataclass.dataclass)["pairs"][0]
    value.b.append(value)
    assert "..." in repr(value)


def test_what_inherits_from_a_frozen_class_is_frozen():
    @dataclasses.dataclass(frozen=True)
    class Base:
        a: int

    @featgraph.base.dataclass.dataclass(frozen=True)
    class Made(Base):
        b: int

    made = Made(1, 2)
    assert (made, repr(made)[-14:]) == (Made(1, 2), "Made(a=1, b=2)")
    with pytest.raises(AttributeError):
        made.b = 3


def test_every_module_with_dataclasses_can_be_imported():
    root = Path(featgraph.__file__).parent
    for file in root.rglob("*.py"):
        if "dataclass import" in file.read_text():
            names = file.relative_to(root.parent).with_suffix("").parts
            importlib.import_module(".".join(names).removesuffix(".__init__"))
