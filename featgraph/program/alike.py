"""What every rank should be given alike, in a few words that ranks can compare.

Ranks run one program. A number that differs between them, as by a seed that is missing,
makes an answer of parts that do not belong together. So what a State is given goes with
the next call that ranks make together, and is compared there.

Of arrays some entries are compared, and of real numbers three digits: what machines
have rounded differently is alike.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from featgraph.cuda.values import Filled
from featgraph.program.column import Column
from featgraph.program.given import PropertySpec
from featgraph.program.signature import PropertyKind

__all__ = ["compare_given", "said_behind"]

#: Entries of an array that are compared.
ENTRIES = 16
#: What is on the host, and says how many entries it has.
_COMPARED = (np.ndarray, np.generic, bool, int, float, list, tuple, range)


def compare_given(ranks: Any, name: str, given: Any, column: Column) -> None:
    """Have ranks compare what is given for a name, with what they do together next.

    Parameters
    ----------
    ranks : DistributedGraph or None
        None where there are none.
    name : str
    given : PropertySpec, array or scalar
        Of vertices, what all ranks are given. Values of edges may be those of one, and
        arrays of a GPU stay there: of both, nothing is said.
    column : Column
        What the State has made of it.
    """
    said = "" if ranks is None else _said_of(name, given, column)
    if said:
        ranks.compare(said)


def _said_of(name: str, given: Any, column: Column) -> str:
    """Return what ranks compare of what is given for a name, "" for nothing."""
    values, kind = column.values, column.type.kind
    if isinstance(values, Filled):
        said = f"{name} = {_number(values.value)}"
        at = getattr(given, "at", None)
        for axis in at if isinstance(at, tuple) else (at,):
            said += said_behind(" at ", axis)
        return said + said_behind(" with ", getattr(given, "entries", None))
    if kind is PropertyKind.VERTEX:
        values = given.values if isinstance(given, PropertySpec) else given
    if kind is PropertyKind.EDGE or not isinstance(values, _COMPARED):
        return ""
    return f"{name} = {_some(np.asarray(values))}"


def said_behind(word: str, given: Any) -> str:
    """Return a word and what ranks compare of an array of the host, else nothing."""
    return word + _some(np.asarray(given)) if isinstance(given, _COMPARED) else ""


def _some(values: Any) -> str:
    """Describe an array of the host by its shape and some of its entries."""
    if values.ndim == 0:
        return _number(values[()])
    flat = values.reshape(-1) if values.flags.c_contiguous else values.flat
    places = np.unique(np.linspace(0, max(values.size - 1, 0), ENTRIES).astype(int))
    found = [_number(flat[int(place)]) for place in places[: values.size]]
    if values.size <= 2:
        return f"[{', '.join(found)}]"
    digest = zlib.crc32(f"{values.dtype} {values.shape} {found}".encode())
    return f"[{found[0]}, ... {found[-1]}] #{digest:08x}"


def _number(value: Any) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    return f"{plain:.3g}" if isinstance(plain, float) else str(plain)
