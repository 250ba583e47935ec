"""Results of algorithms as tables, and their output to files.

`columns_of` makes a table of a result, and `write_result` writes it.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.base.dataclass import fields
from featgraph.base.errors import FileFormatError
from featgraph.base.files import replacing

__all__ = [
    "FORMATS",
    "Table",
    "check_output",
    "columns_of",
    "names_of",
    "require_place",
    "summary_of",
    "write_result",
]

#: Formats of output files.
FORMATS = ("csv", "tsv", "json", "npy")
#: Arrays with one entry per given edge.
_OF_EDGES = frozenset({"trussness", "currents"})
#: Arrays that are not in tables: statistics of runs, and others.
_LEFT_OUT = frozenset(
    {
        "edges",
        "messages",
        "residuals",
        "sources",
        "training_rmse",
        "vertex_names",
        "vertices",
    }
)
#: Arrays of vertices, which are printed as names.
_OF_VERTICES = frozenset({"parents", "predecessors"})
#: Algorithms whose labels are vertices.
_LABELLED_BY_VERTEX = frozenset(
    {"connected-components", "strongly-connected-components"}
)


class Table(NamedTuple):
    """A result as a table.

    Attributes
    ----------
    columns : dict of str to array
        One entry per row.
    first : ndarray
        The array of ``.npy`` files, which have no other columns.
    numbers : dict
        Results that are not arrays, for ``.json`` files.
    """

    columns: dict[str, Any]
    first: npt.NDArray[Any]
    numbers: dict[str, Any]


def columns_of(name: str, source: Any, result: Any) -> Table:
    """Return the table of a result.

    Parameters
    ----------
    name : str
        The algorithm, with dashes.
    source : Graph, FactorGraph or sparse matrix
        The input of the run.
    result : object
        The result of the algorithm.

    Returns
    -------
    Table
        One row per vertex, edge, user, item, or state of a variable.
    """
    values = _attributes(result)
    numbers = {
        key: value
        for key, value in values.items()
        if isinstance(value, bool | int | float | np.number)
    }
    if hasattr(result, "user_factors"):
        return _factors(result, numbers)
    if name == "factor-propagation":
        return _marginals(source, result, numbers)
    arrays = {
        key: value
        for key, value in values.items()
        if isinstance(value, np.ndarray) and key not in _LEFT_OUT
    }
    first = next(iter(arrays.values()))
    is_of_edges = next(iter(arrays)) in _OF_EDGES
    names = names_of(source)
    columns: dict[str, Any] = {"vertex": names[:-1]}
    if len(first) != source.vertex_count and hasattr(result, "vertices"):
        columns = {"vertex": names[result.vertices]}  # a result for some vertices
    if is_of_edges:
        columns = {"source": names[source.sources], "target": names[source.targets]}
    for key, array in arrays.items():
        if (key in _OF_EDGES) != is_of_edges or np.shape(array)[:1] != first.shape[:1]:
            continue
        has_vertices = key in _OF_VERTICES or (
            key == "labels" and name in _LABELLED_BY_VERTEX
        )
        columns |= _split(key, names[array] if has_vertices else array)
    return Table(columns, first, numbers)


def _attributes(result: Any) -> dict[str, Any]:
    """Return the values of a result by name, which computes lazy ones."""
    return {one.name: getattr(result, one.name) for one in fields(result)}


def names_of(graph: fg.Graph) -> npt.NDArray[Any]:
    """Return the names of vertices, shape (V + 1,), with "" at the end for -1."""
    names: Any = graph.vertex_names
    if names is None:
        names = range(graph.vertex_count)
    found = np.empty(graph.vertex_count + 1, object)
    found[:-1] = names.tolist() if isinstance(names, np.ndarray) else list(names)
    found[-1] = ""
    return found


def _split(key: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    """Return a column for each feature; several are numbered from 0."""
    if array.ndim == 1:
        return {key: array}
    flat = array.reshape(len(array), -1)
    return {f"{key}_{f}": flat[:, f] for f in range(flat.shape[1])}


def _factors(result: Any, numbers: dict[str, Any]) -> Table:
    parts = (result.user_factors, result.item_factors)
    sides = np.repeat(np.array(["user", "item"], object), [len(part) for part in parts])
    ids = np.concatenate([np.arange(len(part)) for part in parts])
    both = np.concatenate(parts)
    columns = {"side": sides, "id": ids, **_split("factor", both)}
    if hasattr(result, "biases"):
        columns["bias"] = result.biases
    return Table(columns, both, numbers)


def _marginals(model: fg.FactorGraph, result: Any, numbers: dict[str, Any]) -> Table:
    variables, states, chances = [], [], []
    for variable, marginal in result.marginals.items():
        variables += [variable] * len(marginal)
        states += list(model.states[variable])
        chances += marginal.tolist()
    columns = {"variable": variables, "state": states, "probability": chances}
    return Table(columns, np.array(chances), numbers)


def summary_of(result: Any) -> str:
    """Return one line about the run, with the results that are not arrays."""
    parts = [f"{result.supersteps:,} supersteps"]
    run = getattr(result, "run", None)
    if run is not None:
        parts[0] += f" on {run.target} in {sum(run.seconds):.3f} s"
        if not run.converged:
            parts.append("ended by the limit of supersteps")
    for key, value in _attributes(result).items():
        if isinstance(value, bool | int | float | np.number) and key != "supersteps":
            parts.append(f"{key} {value:.6g}")
    return "; ".join(parts)


def check_output(output: str | None, format_: str | None = None) -> None:
    """Raise if the output of a result cannot be written; called before the run.

    Raises
    ------
    FileFormatError
        If the name exists and is not a file, or ``.npy`` output has no name.
    OSError
        If the folder is missing or not writable.
    """
    if output is None:
        if _format(output, format_) == "npy":
            raise FileFormatError("a .npy file needs --output", where="--format npy")
        return
    require_place(output)
    path = Path(output)
    if path.exists() and not path.is_file():
        raise FileFormatError(
            "not a file",
            where="--output",
            got=output,
            expected="the name of a file; one that exists is replaced",
        )


def require_place(output: str, *, makes_folders: bool = False) -> None:
    """Raise OSError if the folder of a path is not writable.

    Parameters
    ----------
    output : str
    makes_folders : bool
        Whether missing folders will be created.
    """
    folder = Path(output).absolute().parent
    while makes_folders and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{output}: there is no such folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{output}: the folder may not be written")


def _format(output: str | None, format_: str | None) -> str:
    suffix = Path(output or "").suffix[1:]
    return format_ or (suffix if suffix in FORMATS else "csv")


def write_result(table: Table, output: str | None, format_: str | None) -> None:
    """Write a table atomically.

    Parameters
    ----------
    table : Table
        A result of `columns_of`.
    output : str, optional
        The file. Default: standard output, which is invalid for ``npy``.
    format_ : str, optional
        One of `FORMATS`. Default: from the suffix of `output`, else csv.
    """
    chosen = _format(output, format_)
    if output is None:
        _write_text(sys.stdout, table, chosen)
        return
    with replacing(Path(output)) as partial:  # no reader sees a part of the file
        if chosen == "npy":
            with open(partial, "wb") as binary:
                np.save(binary, table.first, allow_pickle=False)
        else:
            with open(partial, "w", newline="", encoding="utf-8") as stream:
                _write_text(stream, table, chosen)


def _write_text(stream: Any, table: Table, format_: str) -> None:
    columns = {key: _listed(values) for key, values in table.columns.items()}
    if format_ == "json":
        # JSON has neither nan nor infinities.
        content = {key: [_finite(x) for x in values] for key, values in columns.items()}
        numbers = {key: _finite(_listed([x])[0]) for key, x in table.numbers.items()}
        json.dump(numbers | content, stream, default=str, allow_nan=False)
        stream.write("\n")
        return
    delimiter = "\t" if format_ == "tsv" else ","
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))


def _listed(values: Any) -> list[Any]:
    """Return plain Python values; float32 with its shortest decimal digits."""
    array = np.asarray(values)
    if array.dtype == np.float32:
        return [float(str(value)) for value in array]
    return array.tolist() if isinstance(values, np.ndarray) else list(values)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
