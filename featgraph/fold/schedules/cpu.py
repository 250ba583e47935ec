"""One thread owns a vertex of a chunk, with all its features (CPU)."""

from __future__ import annotations

from featgraph.fold.schedules.base import (
    Binding,
    FeatureAxis,
    KernelShape,
    Schedule,
    Scope,
    in_blocks,
)
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, code, noted, when

__all__ = ["CpuSchedule"]

#: A set -> what a word of it is called that is not stored yet.
_OF_WORD = {"passed": "done", "targets": "hit"}
#: Has those run that gather from `v`: later words, and the rest of this one.
_SPREAD = """
if spreads:
    for slot in range(out_offsets[v], out_offsets[v + 1]):
        target = out_targets[slot]
        if cpu.test_bit(allowed, target) and not cpu.test_bit(due, target):
            cpu.set_bit(due, target)
"""


class CpuSchedule(Schedule):
    """A chunk is a range of words of a set, with about as much work as every other."""

    name = "cpu"
    is_asked_for = False
    shares_features = False

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        form = "vectors of, or loops over," if mapping.loops else "a copy of each of"
        return f"one thread a vertex, {form} {width} features"

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        axis = FeatureAxis(
            shape.width,
            per_lane=shape.width,
            is_looped=mapping.loops,
            are_passed_as_values=shape.names_features and not mapping.loops,
        )
        alone = dict.fromkeys(("edge", "vertex", "partial"), Scope())
        block = mapping.block
        return Binding(False, axis, Walk("range"), alone, block=block, partial="chunk")

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        front = self.front(binding)
        if node.marks:
            return front + self._swept(node, shape)
        every = f"range(word * 32, min(word * 32 + 32, {shape.vertex_count}))"
        each = (
            self._set_bits(node, shape, node.body)
            if node.words
            else code(f"for {node.vertex} in {every}:\n    BODY", BODY=node.body)
        )

        def words(first: str, last: str) -> Body:
            return code(f"for word in range({first}, {last}):\n    BODY", BODY=each)

        end = f"block_start + min({{}}, {max(binding.block // 32, 1)})"
        return front + in_blocks(node, ("first_word", "last_word"), end, words)

    def _swept(self, node: Sweep, shape: KernelShape) -> Body:
        """Return the loop over the words of a chunk; a word of the result each."""
        body, word = list(node.body), code("word = swept_words[place]")
        left: Body = []
        for flag, words in node.marks:
            own = _OF_WORD[words]
            word += code(f"{own} = uint32(0)")
            mark = code(f"{own} |= uint32(1) << uint32(bit)")
            if shape.spreads and words == "passed":
                mark += code(_SPREAD)
            body += when([flag], mark)
            left += code(f"{words}[word] = {own}")
        if shape.spreads:
            body += code("pending = uint32(due[word] & ~done_bits)")
            word += code("done_bits = uint32(0)")
        word += self._set_bits(node, shape, body) + left
        return code("for place in range(first_word, last_word):\n    BODY", BODY=word)

    def front(self, binding: Binding) -> Body:
        """Return the names of the features, and what is worked in.

        LLVM folds the names into constants.
        """
        axis = binding.features
        if not axis.are_passed_as_values:
            return [Areas()]
        why = "not a literal, or each feature would be compiled apart"
        out = noted(code("f_0 = chunk - chunk"), why)
        for j in range(1, axis.per_lane):
            out += code(f"f_{j} = f_0 + {j}")
        return [*out, Areas()]

    def _set_bits(self, node: Sweep, shape: KernelShape, body: Body) -> Body:
        """Return a loop over the vertices of a word of a set."""
        taken = "pending = uint32(pending & (pending - uint32(1)))"
        if shape.spreads:
            taken = "done_bits |= uint32(1) << uint32(bit)"
        next_ = code(
            "bit = cpu.trailing_zeros(pending)\n"
            f"{taken}\n{node.vertex} = word * 32 + bit"
        )
        loop = code("while pending != 0:\n    BODY", BODY=next_ + body)
        return code(f"pending = {node.words}[word]") + loop
