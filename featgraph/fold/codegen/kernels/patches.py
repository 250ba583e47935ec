"""The text of patches: how a kept aggregate takes the change of a contribution.

A vertex adds up its patches behind each other or, on CUDA, in several slots, and then
finds out whether the result is as good as a new sum over all edges. `is_patched` says
so; where it is False, all edges are gone through.
"""

from __future__ import annotations

from dataclasses import dataclass

from featgraph.fold.codegen.kernels.accumulators import Accumulator

__all__ = ["Patch", "change_name"]


def change_name(held: str) -> str:
    """Return the name of the sum of absolute differences that goes with `held`."""
    return f"change_{held}"


@dataclass(frozen=True)
class Patch:
    """How one accumulator is patched.

    Attributes
    ----------
    accumulator : Accumulator
        Of a combine that can be patched.
    library : str
        "cpu" or "warp".
    real : str
        Storage type of real numbers.
    """

    accumulator: Accumulator
    library: str
    real: str

    @property
    def measures(self) -> bool:
        """Whether the absolute differences are added up too, for sums of reals."""
        return self.accumulator.rules.is_sum and self.accumulator.type == "real"

    @property
    def starts_from_kept(self) -> bool:
        """Whether the kept value itself is where patches begin: min, max and any."""
        return self.accumulator.rules.patch == "extremum"

    def start(self, name: str, change: str, kept: str) -> list[str]:
        """Return the statements in front of the edges; `kept` is in memory."""
        if self.starts_from_kept:
            return [f"{name} = {kept}"]
        lines = [f"{name} = {self.accumulator.identity}"]
        if self.measures:
            lines.append(f"{change} = {self.accumulator.identity}")
        return lines

    def take(self, name: str, change: str, new: str, old: str) -> list[str]:
        """Return the statements for one edge: `new` instead of `old`."""
        if self.accumulator.rules.patch == "quotient":
            return [
                f"{name} *= {new} / {old}",
                f"is_patched &= {self.library}.is_normal({name})",
            ]
        if self.accumulator.rules.is_sum and not self.measures:
            return [f"{name} += {new} - {old}"]
        if self.measures:
            return [
                f"patch = {new} - {old}",
                f"{name} += patch",
                f"{change} += abs(patch)",
            ]
        # A contribution that was the extremum retreats: another one may be it now.
        order = {"min": "<=", "max": ">=", "": ""}[self.accumulator.rules.order]
        lines = [f"contributed, retreated = {new}, {old}"]
        if order:
            lines.append(
                f"is_patched &= contributed {order} {name} or not retreated {order} "
                f"{name}"
            )
        else:
            lines.append("is_patched &= contributed or not retreated")
        return [*lines, self.accumulator.update(name, "contributed")]

    def finish(self, name: str, change: str, kept: str) -> list[str]:
        """Return the statements behind the edges, when all slots are together.

        What starts from what is kept needs none.
        """
        update = self.accumulator.update(name, kept)
        if self.accumulator.rules.patch == "quotient":
            test = f"is_patched &= {self.library}.is_normal"
            return [f"{test}({kept})", update, f"{test}({name})"]
        if not self.measures:
            return [update]
        holds = f"{self.library}.sum_holds({kept}, {name}, {change})"
        return [f"is_patched &= {holds}", update]
