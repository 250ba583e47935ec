"""A format that a test adds is read whole, in gzip, by ranks, and to slices."""

from __future__ import annotations

import argparse
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cli.graphs import add_convert_options, add_graph_options
from featgraph.cli.ranks import add_forecast_options
from featgraph.distributed import run_ranks
from featgraph.graph import Graph
from featgraph.graph.formats import layout, readers
from featgraph.graph.formats.convert import convert
from featgraph.graph.formats.layout import Layout, check_claims, is_count, read_edges
from featgraph.graph.formats.text import Text, read_text
from tests.ranks.test_loading import require_equal


def arcs_layout(text: Text) -> Layout:
    """Return the layout of lines ``u v w``, from 0, below a line ``V E``."""
    _, end, line = next(text.lines(), (0, 0, ""))
    words = line.split()
    if len(words) != 2 or not all(map(is_count, words)):
        text.fail("malformed first line", 0, expected="VERTICES EDGES")
    vertices, edges = map(int, words)
    check_claims(text, 0, end, vertices, edges, len("0 0 1\n"))
    return Layout.of(text, end, "iir", "#", vertex_count=vertices, entries=edges)


def read_arcs(path: Any, *, max_bytes: int | None = None) -> Graph:
    """Read such a file."""
    text = read_text(path, max_bytes)
    return Graph(read_edges(arcs_layout(text), text))


@pytest.fixture(autouse=True)
def is_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    added = readers.TextFormat("Arcs", (".arcs",), read_arcs, arcs_layout, "#")
    monkeypatch.setattr(readers, "FORMATS", (*readers.FORMATS, added))
    monkeypatch.setattr(layout, "BLOCK_BYTES", 64)


def write(folder: Path, *, lines: int = 40, wrong: str = "") -> Path:
    path = folder / "graph.arcs"
    rows = [f"{i % 9} {i * 5 % 12} {i / 8}" for i in range(lines)]
    if wrong:
        rows[-2] = wrong
    path.write_text("\n".join(["12 40", "# u v w", *rows]))
    return path


def test_a_new_format_is_read_whole_by_ranks_and_to_slices(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = fg.read_graph(path)
    assert (whole.vertex_count, whole.edge_count) == (12, 40)
    assert whole.weights is not None
    assert whole.weights.tolist() == (np.arange(40) / 8).tolist()
    packed = tmp_path / "graph.arcs.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert fg.read_graph(packed, directed=True).digest == whole.digest
    convert(path, tmp_path / "graph.fgs")
    assert fg.read_graph(tmp_path / "graph.fgs").digest == whole.digest

    def on_a_rank(_: Any) -> None:
        require_equal(fg.read_graph(path, partition="edges"), fg.distribute(whole))

    run_ranks(3, on_a_rank)


def test_help_names_a_new_format() -> None:
    for add in (add_graph_options, add_convert_options, add_forecast_options):
        parser = argparse.ArgumentParser(formatter_class=argparse.HelpFormatter)
        add(parser)
        assert "Arcs (.arcs)" in " ".join(parser.format_help().split())


def test_integer_weights_may_turn_real_in_any_format(tmp_path: Path) -> None:
    """From 1 on, too, where the layout allows it; else an error has the line."""
    path = tmp_path / "graph.arcs"
    path.write_text("1 2 3\n2 1 4\n1 3 0.5\n")
    for base in (0, 1):
        text = read_text(path, None)
        given = Layout.of(text, 0, "iii", "#", base=base, vertex_count=4, entries=3)
        with pytest.raises(fg.FileFormatError, match=":3: not an integer"):
            read_edges(given, text)
        either = replace(given, weights_may_be_real=True)
        weights = read_edges(either, text).weights
        assert weights is not None
        assert weights.tolist() == [3, 4, 0.5]


@pytest.mark.parametrize("kinds", ["rii", "iri", "iir", "r-ii"])
@pytest.mark.parametrize("columns", [(0, 1), (1, 0)])
def test_columns_count_among_integers(
    kinds: str, columns: tuple[int, int], tmp_path: Path
) -> None:
    words = {"i": iter("12"), "r": iter(["0.5"]), "-": iter("9")}
    path = tmp_path / "graph.arcs"
    path.write_text(" ".join(next(words[kind]) for kind in kinds) + "\n")
    text, known = read_text(path, None), {"vertex_count": 4, "entries": 1}
    given = Layout.of(text, 0, kinds, "#", integer_columns=columns, **known)
    found = read_edges(given, text)
    assert [found.sources[0], found.targets[0]] == [1 + column for column in columns]
    assert found.weights is not None
    assert found.weights.tolist() == [0.5]


WRONG = {
    "id": ("0 12 1", 41, "vertex id out of range"),
    "word": ("0 a 1", 41, "not an integer"),
    "fields": ("0 1", 41, "too few fields"),
    "weight": ("0 1 x", 41, "not a weight"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_a_new_format_have_their_line(name: str, tmp_path: Path) -> None:
    """And propose no option of another format."""
    wrong, line, what = WRONG[name]
    path = write(tmp_path, wrong=wrong)
    with pytest.raises(fg.FileFormatError, match=f":{line}: {what}") as caught:
        fg.read_graph(path)
    assert caught.value.fix is None

    def on_a_rank(_: Any) -> None:
        with pytest.raises(fg.FileFormatError, match=f":{line}: {what}") as caught:
            fg.read_graph(path, partition="edges")
        assert caught.value.fix is None

    run_ranks(2, on_a_rank)


def test_arguments_that_a_new_format_contradicts(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(fg.GraphInputError, match="directed= contradicts the file"):
        fg.read_graph(path, directed=False)
    with pytest.raises(fg.ArgumentError, match="no such option"):
        fg.read_graph(path, weights=2)
    with pytest.raises(fg.FileFormatError, match="fewer entries"):
        fg.read_graph(write(tmp_path, lines=39))
