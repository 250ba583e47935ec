"""One thread owns a vertex of a chunk, with all its features (CPU)."""

from __future__ import annotations

from featgraph.fold.plan.schedules import Mapping
from featgraph.fold.schedules.base import Binding, FeatureAxis, KernelShape, Scope
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, code, noted

__all__ = ["CpuSchedule"]


class CpuSchedule:
    """A chunk is a range of words of a set, with about as much work as every other."""

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        axis = FeatureAxis(
            shape.width,
            per_lane=shape.width,
            is_looped=mapping.loops,
            are_passed_as_values=shape.names_features and not mapping.loops,
        )
        walk = Walk("range")
        return Binding(False, axis, walk, {"edge": Scope(), "vertex": Scope()})

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        every = f"range(word * 32, min(word * 32 + 32, {shape.vertex_count}))"
        each = (
            self._set_bits(node, node.body)
            if node.words
            else code(f"for {node.vertex} in {every}:\n    BODY", BODY=node.body)
        )
        front = self._features(binding.features)
        loop = code("for word in range(first_word, last_word):\n    BODY", BODY=each)
        return [*front, Areas(), *loop]

    def _features(self, axis: FeatureAxis) -> Body:
        """Return the names of the features; LLVM folds them into constants."""
        if not axis.are_passed_as_values:
            return []
        why = "not a literal, or each feature would be compiled apart"
        out = noted(code("f_0 = chunk - chunk"), why)
        for j in range(1, axis.per_lane):
            out += code(f"f_{j} = f_0 + {j}")
        return out

    def _set_bits(self, node: Sweep, body: Body) -> Body:
        """Return a loop over the vertices of a word of a set."""
        next_ = code(
            "bit = cpu.trailing_zeros(pending)\n"
            "pending = uint32(pending & (pending - uint32(1)))\n"
            f"{node.vertex} = word * 32 + bit"
        )
        loop = code("while pending != 0:\n    BODY", BODY=next_ + body)
        return code(f"pending = {node.words}[word]") + loop
