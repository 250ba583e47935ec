"""One thread owns a vertex with all its features (NFA)."""

from __future__ import annotations

from featgraph.fold.plan.schedules import Mapping
from featgraph.fold.schedules.base import Binding, FeatureAxis, KernelShape, Scope
from featgraph.fold.schedules.frontier import each_listed, each_packed
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, code, when

__all__ = ["ThreadSchedule"]


class ThreadSchedule:
    """Each thread goes its own way; its features are named copies, or loops."""

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        axis = FeatureAxis(
            shape.width,
            per_lane=shape.width,
            vector_width=mapping.piece,
            is_looped=mapping.loops,
        )
        # With ``range`` every step would ask again whether there is a next one, in
        # front of the loads of that.
        walk = Walk("while")
        return Binding(False, axis, walk, {"edge": Scope(), "vertex": Scope()})

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        return [Areas(), *self._each(node, shape, node.body)]

    def _each(self, node: Sweep, shape: KernelShape, body: Body) -> Body:
        if node.words and shape.form != "plain":
            each = each_packed if shape.form == "packed" else each_listed
            return each(node, 1, when([node.wanted], body))
        vertex, words = node.vertex, node.words
        test = f"warp.test_bit({words}, {vertex})"
        if shape.covers:
            test = test if words else f"{vertex} < vertex_count"
            return code(f"{vertex} = int32(cuda.grid(1))") + when([test], body)
        skip = code(f"if not {test}:\n    continue") if words else []
        out = code(
            "first_vertex, stride = int32(cuda.grid(1)), int32(cuda.gridsize(1))"
        )
        return out + code(
            f"for {vertex} in range(first_vertex, int32(vertex_count), stride):\n"
            "    BODY",
            BODY=skip + body,
        )
