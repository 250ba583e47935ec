"""One thread owns a vertex of a chunk, with all its features (CPU).

A chunk is a range of words of a set, or of a list of words. The thread writes whole
words of result sets such as ``passed``, so that setting their bits needs no atomics.
"""

from __future__ import annotations

from featgraph.fold.schedules.base import (
    Binding,
    FeatureAxis,
    KernelShape,
    Schedule,
    Scope,
    in_blocks,
)
from featgraph.fold.schedules.mapping import MOST_COPIES, Mapping
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Areas, Sweep
from featgraph.fold.tree.statements import Body, code, noted, when

__all__ = ["CpuSchedule", "map_chunks"]

#: Result set -> variable that collects the bits of one of its words.
_OF_WORD = {
    "changed_edges": "kept",
    "due": "found",
    "passed": "done",
    "targets": "hit",
}


class CpuSchedule(Schedule):
    """A thread takes chunks: ranges of set words with about equal work."""

    name = "cpu"
    is_selectable = False
    targets = ("cpu",)
    shares_features = False
    frontier_forms = ()  # sweeps skip empty words instead

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        form = (
            "vectors of, or loops over," if mapping.is_looped else "a copy of each of"
        )
        return f"one thread a vertex, {form} {width or 'all'} features"

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        axis = FeatureAxis(
            shape.width,
            per_lane=shape.width,
            is_looped=mapping.is_looped,
            are_passed_as_values=shape.names_features and not mapping.is_looped,
        )
        alone = dict.fromkeys(("edge", "vertex", "partial"), Scope())
        block = mapping.block
        row = "row" if shape.frontier_form == "blocks" else "chunk"
        return Binding(False, axis, Walk("range"), alone, block=block, partial=row)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body."""
        front = self.front(binding)
        if shape.frontier_form == "vertices":
            return front + self._listed(node)
        if node.marks:
            each = self._swept(node, shape)
        elif node.words:
            each = self._set_bits(node, shape, node.body)
        else:
            every = f"range(word * 32, min(word * 32 + 32, {shape.vertex_count}))"
            each = code(f"for {node.vertex} in {every}:\n    BODY", BODY=node.body)

        def words(first: str, last: str) -> Body:
            if shape.frontier_form == "listed":
                listed = code("word = swept_words[place]") + each
                loop = f"for place in range({first}, {last}):\n    BODY"
                return code(loop, BODY=listed)
            return code(f"for word in range({first}, {last}):\n    BODY", BODY=each)

        if shape.frontier_form == "blocks":
            block = words("vertex_blocks[row]", "vertex_blocks[row + 1]")
            block = [*node.between, *block, *node.behind]
            loop = "for row in range(first_row, last_row):\n    BODY"
            return front + code(loop, BODY=block)
        # Blocks of terms begin and end with words.
        end = f"block_start + min({{}}, {max(binding.block // 32, 1)})"
        return front + in_blocks(node, ("first_word", "last_word"), end, words)

    def _listed(self, node: Sweep) -> Body:
        """Return the loop over a list of vertices; the result is a list, too.

        A kernel returns the length of at most one list. Only stages of the worklist
        loop run here (0098): they walk no edges, and have one result.
        """
        body, first, last = list(node.body), code(""), code("")
        for flag, vertices in node.marks:
            first += code(f"{vertices}_count = 0")
            append = f"{vertices}[{vertices}_count] = {node.vertex}\n"
            body += when([flag], code(f"{append}{vertices}_count += 1"))
            last += code(f"return {vertices}_count")
        each = code(f"{node.vertex} = {node.words}[place]") + body
        loop = "for place in range(first_word, last_word):\n    BODY"
        return first + code(loop, BODY=each) + node.behind + last

    def _swept(self, node: Sweep, shape: KernelShape) -> Body:
        """Return the loop over one word of a set; it stores one word of each result."""
        body, word, left = list(node.body), code(""), code("")
        for flag, words in node.marks:
            if words not in _OF_WORD:  # other threads test its bits meanwhile
                body += when([flag], code(f"cpu.join_bit({words}, {node.vertex})"))
                continue
            own = _OF_WORD[words]
            before = f"{node.begins}[word]" if node.begins else "uint32(0)"
            word += code(f"{own} = {before}")
            body += when([flag], code(f"{own} |= uint32(1) << uint32(bit)"))
            left += code(f"{words}[word] = {own}")
        if shape.frontier_form == "blocks":
            word += code("due_bits = due[word]")
        if shape.spreads:
            # A vertex may make others of its word due: read the word again behind each.
            body += code("pending = uint32(due[word] & ~done_bits)")
            word += code("done_bits = uint32(0)")
        if node.words:
            return word + self._set_bits(node, shape, body) + left
        loop = f"for bit in range(min(32, {shape.vertex_count} - word * 32)):\n    BODY"
        if node.begins:
            body = when([f"not {own} >> uint32(bit) & uint32(1)"], body)
        each = code(f"{node.vertex} = word * 32 + bit") + body
        return word + code(loop, BODY=each) + left

    def front(self, binding: Binding) -> Body:
        """Return the variables that number the features, and the work areas.

        LLVM replaces the variables by constants.
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


def map_chunks(width: int, in_loops: bool) -> Mapping:
    """Return the mapping of features: variables, or loops.

    Few features are variables, unless options set loops, which compile faster.
    """
    loops = width > (1 if in_loops else MOST_COPIES)
    return Mapping(1, 1 if loops else width, 1, loops, CpuSchedule.name)
