"""Which phase may be swept piece by piece, and its rows be sent meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from featgraph.fold.analysis.analyse import Analysis
from featgraph.fold.plan.halos import Halo, Split
from featgraph.fold.plan.options import IN_PLACE, Options
from featgraph.fold.plan.plan import Phase
from featgraph.program.signature import PropertyKind

__all__ = ["find_split", "sent_rows"]


def sent_rows(
    writes_next: Sequence[str], halos: Sequence[Halo], analysis: Analysis
) -> tuple[str, ...]:
    """Return the properties whose committed rows go with the bits that say which."""
    read = {name for halo in halos for name in halo.reads}
    ahead = {name for halo in halos for name in halo.reads_next}
    signature = analysis.signature
    return tuple(
        name
        for name in writes_next
        if signature[name].kind is PropertyKind.VERTEX
        and name in read
        and name not in ahead
    )


def find_split(
    analysis: Analysis, phases: Sequence[Phase], sent: Sequence[str], options: Options
) -> Split:
    """Return which phase of a plan may be swept piece by piece, if any.

    Parameters
    ----------
    sent : sequence of str
        What `sent_rows` returns.
    """
    why = next(_reasons(analysis, phases, sent, options), "")
    if why:
        return Split(-1, why)
    told = [n for n, phase in enumerate(phases) if not phase.kind.reduces]
    return Split(told[-1], "")


def _reasons(
    analysis: Analysis, phases: Sequence[Phase], sent: Sequence[str], options: Options
) -> Iterator[str]:
    """Give what is against it, one reason behind the other."""
    # Behind reduces, the rows that a superstep commits stay what they are.
    told = [phase for phase in phases if not phase.kind.reduces]
    if not told or not told[-1].kind.pulls or told[-1].kind.pulls_edges:
        yield "which vertices were committed is known behind all edges"
        return
    last = told[-1]
    kinds = [phase.kind for phase in told]
    if any(k.sweeps_edges or k.intersects or k.pulls_edges for k in kinds):
        yield "edges tell which vertices are active"
    if options.asynchronous or last.spreads or last.commits:
        yield f"vertices see what others commit ({IN_PLACE})"
    functions = [analysis.functions[i] for i in last.functions]
    if any(a.mode == "atomic" for f in functions for a in f.accesses):
        yield "atomic operations would come in another order"
    if not sent:
        yield "no row goes with the bits that say what was committed"
    if options.checked:
        yield "checks tell which fault came first"
    if options.exchange == "all":
        yield "an owner's whole range is one message (exchange='all')"
