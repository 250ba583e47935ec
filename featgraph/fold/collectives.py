"""Prints collaborative operations over named copies: first over the copies of a lane, then over the lanes.

A lane that has no feature (padding), or whose vertex is not in the branch, contributes the identity.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from featgraph.fold.nodes import Access, Operate, Whole, names_read
from featgraph.fold.printer import Style, print_expression
from featgraph.fold.variance import varies

if TYPE_CHECKING:
    from featgraph.fold.copies import _Copies

__all__ = ["CopiesOperations"]

_REDUCTIONS = {
    "feature_sum": ("group_sum", "segment_sum"),
    "feature_max": ("group_max", "segment_max"),
    "feature_min": ("group_min", "segment_min"),
    "any_feature": ("group_any", "segment_any"),
    "all_features": ("group_all", "segment_all"),
}
Origin = tuple[str, int]


class CopiesOperations:
    """The operations of one collective function."""

    def __init__(self, owner: _Copies) -> None:
        self.owner = owner

    def emit(self, target: str, node: Operate, predicate: str, origin: Origin) -> None:
        """Write the statements for ``target = operation(...)``."""
        handlers: dict[str, Callable[[str, Operate, str, Origin], None]] = {
            "argmax": self._argmax,
            "broadcast": self._broadcast,
            "matvec": self._matvec,
            "solve": self._solve,
            "inverse": self._inverse,
        }
        handler = handlers.get(node.name, self._reduction)
        owner = self.owner
        if not (owner.in_rounds and predicate) or node.name == "inverse":
            handler(target, node, predicate, origin)
            return
        # A group that goes round with others keeps the result of its own last iteration.
        found = owner._fresh("found")
        handler(found, node, predicate, origin)
        with owner.writer.block(f"if {predicate}:"):
            varying = target in owner.varying
            pairs = zip(self._names(target), self._names(found), strict=True) if varying else [(target, found)]
            for own, new in pairs:
                self._line(f"{own} = {new}", origin)

    # -- small parts

    def _line(self, text: str, origin: Origin) -> None:
        self.owner.writer.line(text, origin)

    def _names(self, target: str) -> list[str]:
        return [self.owner.copy_name(target, j) for j in range(self.owner.count)]

    def _operands(self, node: ast.expr, identity: str, predicate: str) -> list[str]:
        """Return the operand of each copy, masked where the lane has none."""
        texts = []
        for j, style in enumerate(self.owner.styles):
            text = self._vector_text(node, style)
            tests = [predicate] if predicate and self.owner.predicated else []
            tests += [self.owner.live] if self.owner.needs_guard(node) else []
            if self.owner.padded:
                tests.append(self.owner.copy_name("inside", j))
            texts.append(f"({text} if {' and '.join(tests)} else {identity})" if tests else text)
        return texts

    def _vector_text(self, node: ast.expr, style: Style) -> str:
        """Print a per-feature operand; a whole row stands for its element f."""
        if isinstance(node, Whole):
            element = Access(node.name, node.version, [*node.indices, ast.Name("f", ast.Load())])
            node = ast.copy_location(element, node)
        return print_expression(node, style)

    def _identity(self, name: str, operand: ast.expr) -> str:
        type_ = self._type(operand)
        if name in {"any_feature", "all_features"}:
            return "False" if name == "any_feature" else "True"
        if name == "feature_sum":
            return f"{self.owner.context.real}(0.0)" if type_ == "real" else "int64(0)"
        if type_ == "real":
            sign = "-" if name in {"feature_max", "argmax"} else ""
            return f"{self.owner.context.real}({sign}math.inf)"
        low = name in {"feature_max", "argmax"}
        return f"int64({-(2**62) if low else 2**62})"

    def _type(self, node: ast.expr) -> str:
        from featgraph.fold.operand import operand_type

        return operand_type(node, self.owner.function, self.owner.context.analysis)

    def _combined(self, name: str, texts: list[str]) -> str:
        """Return the combination of one lane's copies."""
        if len(texts) == 1:
            return texts[0]
        if name == "feature_sum":
            return " + ".join(texts)
        if name in {"any_feature", "all_features"}:
            return (" or " if name == "any_feature" else " and ").join(f"({t})" for t in texts)
        function = "max" if name == "feature_max" else "min"
        text = texts[0]
        for other in texts[1:]:
            text = f"{function}({text}, {other})"
        return text

    # -- reductions

    def _reduction(self, target: str, node: Operate, predicate: str, origin: Origin) -> None:
        owner, group = self.owner, node.constant("group")
        operand = node.args[0]
        if group is not None and owner.width % group:
            raise owner.function.declared.source.error(
                "group= must divide the number of features", node, got=f"group={group}, K={owner.width}"
            )
        texts = self._operands(operand, self._identity(node.name, operand), predicate)
        if group is not None:
            self._segments(target, node, texts, group, origin)
            return
        text = self._combined(node.name, texts)
        if owner.predicated and owner.lanes > 1:
            text = f"warp.{_REDUCTIONS[node.name][0]}({self._wide(text, operand, node.name)}, {owner.lanes})"
        self._line(f"{target} = {text}", origin)

    def _wide(self, text: str, operand: ast.expr, name: str) -> str:
        """Shuffles have one type on all lanes: integers travel as int64."""
        if name in {"any_feature", "all_features"} or self._type(operand) == "real":
            return text
        return f"int64({text})"

    def _segments(
        self, target: str, node: Operate, texts: list[str], group: int, origin: Origin
    ) -> None:
        owner, names = self.owner, self._names(target)
        if not owner.predicated:
            for start in range(0, owner.width, group):
                members = texts[start : start + group]
                self._line(f"{names[start]} = {self._combined(node.name, members)}", origin)
                for name in names[start + 1 : start + group]:
                    self._line(f"{name} = {names[start]}", origin)
        elif owner.count == 1:
            function = _REDUCTIONS[node.name][1]
            text = self._wide(texts[0], node.args[0], node.name)
            self._line(f"{names[0]} = warp.{function}({text}, lane, {group}, {owner.lanes})", origin)
        else:
            self._segments_across_copies(names, node, texts, group, origin)

    def _segments_across_copies(
        self, names: list[str], node: Operate, texts: list[str], group: int, origin: Origin
    ) -> None:
        """Members of a segment stand in several copies of several lanes: ask for each in turn."""
        owner = self.owner
        is_vote = node.name in {"any_feature", "all_features"}
        held = [owner._fresh("held") for _ in texts]
        for name, text in zip(held, texts, strict=True):
            value = f"int32({text})" if is_vote else self._wide(text, node.args[0], node.name)
            self._line(f"{name} = {value}", origin)
        combine = {"feature_sum": "{} + {}", "any_feature": "{} | {}", "all_features": "{} & {}",
                   "feature_max": "max({}, {})", "feature_min": "min({}, {})"}[node.name]  # fmt: skip
        for j, name in enumerate(names):
            first = f"{owner.feature(j)} // {group} * {group}"
            self._line(f"{name} = {self._member(held, first)}", origin)
            with owner.writer.block(f"for member in range(1, {group}):"):
                value = self._member(held, f"({first} + member)")
                self._line(f"{name} = {combine.format(name, value)}", origin)
            if is_vote:
                self._line(f"{name} = {name} != 0", origin)

    def _member(self, held: list[str], feature: str) -> str:
        """Return the value of `feature`, which another lane may hold."""
        owner, count = self.owner, self.owner.count
        parts = [f"warp.broadcast({h}, int32({feature} // {count}), {owner.lanes})" for h in held]
        text = parts[-1]
        for j in range(count - 2, -1, -1):
            text = f"cuda.selp({feature} % {count} == {j}, {parts[j]}, {text})"
        return text

    def _argmax(self, target: str, node: Operate, predicate: str, origin: Origin) -> None:
        owner, group = self.owner, node.constant("group")
        operand = node.args[0]
        texts = self._operands(operand, self._identity("argmax", operand), predicate)
        if group is not None and owner.predicated and owner.count > 1:
            raise owner.function.declared.source.error(
                f"argmax with group= takes at most {owner.lanes} features on this mapping", node, got=owner.width
            )
        if group is not None and owner.predicated:
            text = self._wide(texts[0], operand, "argmax")
            self._line(
                f"{target} = lane // {group} * {group} + warp.segment_argmax({text}, lane, {group}, {owner.lanes})[1]",
                origin,
            )
            return
        size = group or len(texts)
        names = self._names(target) if group is not None else [target]
        for segment, start in enumerate(range(0, len(texts), size)):
            name = names[start] if group is not None else target
            top = owner._fresh("top")
            self._line(f"{top} = {self._wide(texts[start], operand, 'argmax')}", origin)
            self._line(f"{name} = int64({owner.feature(start)})", origin)
            for j in range(start + 1, start + size):
                with owner.writer.block(f"if {texts[j]} > {top} or ({top} != {top} and {texts[j]} == {texts[j]}):"):
                    self._line(f"{top} = {texts[j]}", origin)
                    self._line(f"{name} = int64({owner.feature(j)})", origin)
            for other in names[start + 1 : start + size] if group is not None else []:
                self._line(f"{other} = {name}", origin)
            if owner.predicated and segment == 0:
                self._line(f"{target} = warp.group_argmax({top}, {target}, {owner.lanes})[1]", origin)

    def _broadcast(self, target: str, node: Operate, predicate: str, origin: Origin) -> None:
        owner = self.owner
        x, index = node.args
        zero = self._identity("feature_sum", x)
        texts = self._operands(x, zero, predicate)
        per_copy = varies(index, owner.varying)
        for j, name in enumerate(self._names(target) if per_copy else [target]):
            feature = print_expression(index, owner.styles[j])
            if not owner.predicated:
                chosen = texts[int(feature)] if feature.isdigit() and int(feature) < len(texts) else f"({', '.join(texts)},)[{feature}]"
                self._line(f"{name} = {chosen}", origin)
            else:
                held = [self._wide(t, x, "broadcast") for t in texts]
                self._line(f"{name} = {self._member(held, f'({feature})')}", origin)

    # -- matrices

    def _element(self, matrix: ast.expr, row: str, column: str, style: Style) -> str:
        """Return the text of ``matrix[row, column]``."""
        row_, column_ = style.index(row), style.index(column)
        if isinstance(matrix, Whole):
            if matrix.name in style.temporaries:
                return f"{style.temporaries[matrix.name]}[{row_}, {column_}]"
            first = print_expression(matrix.indices[0], style)
            is_edge = isinstance(matrix.indices[0], Operate) or first == "e"
            text = f"d.{matrix.name}[{first if is_edge else style.index(first)}, {row_}, {column_}]"
            guarded = self.owner.needs_guard(matrix)
            return f"({text} if {self.owner.live} else {self.owner.context.real}(0.0))" if guarded else text
        if isinstance(matrix, ast.Name) and matrix.id in self.owner.function.matrices:
            return f"{style.matrices[matrix.id]}[{row_}, {self.owner.width} + {column_}]"
        raise self.owner.function.declared.source.error(
            "not a matrix",
            matrix,
            expected="d.name[v] of a k x k property or temporary, outer(x, y), inverse(A)",
        )

    def _matvec(self, target: str, node: Operate, predicate: str, origin: Origin) -> None:
        owner = self.owner
        matrix, x = node.args
        if isinstance(matrix, Operate) and matrix.name == "outer":
            self._outer_times(target, node, predicate, origin)
            return
        zero = f"{owner.context.real}(0.0)"
        names = self._names(target)
        for name in names:
            self._line(f"{name} = {zero}", origin)
        texts = self._operands(x, zero, predicate)
        if not owner.predicated:
            held = owner._fresh("held")
            self._line(f"{held} = ({', '.join(texts)},)", origin)
            with owner.writer.block(f"for i in range({owner.width}):"):
                self._accumulate(names, node, f"{held}[i]", origin)
            return
        for j, text in enumerate(texts):
            held = owner._fresh("held")
            self._line(f"{held} = {text}", origin)
            members = -(-(owner.width - j) // owner.count)  # lanes whose copy j is a feature
            with owner.writer.block(f"for member in range({members}):"):
                self._line(f"i = member * {owner.count} + {j}", origin)
                self._line(f"x_i = warp.broadcast({held}, int32(member), {owner.lanes})", origin)
                self._accumulate(names, node, "x_i", origin)

    def _accumulate(self, names: list[str], node: Operate, value: str, origin: Origin) -> None:
        owner, matrix = self.owner, node.args[0]
        transpose = node.option("transpose")
        for j, name in enumerate(names):
            style, f = owner.styles[j], owner.feature(j)
            plain = self._element(matrix, f, "i", style)
            turned = self._element(matrix, "i", f, style)
            if transpose is None or (isinstance(transpose, ast.Constant) and not transpose.value):
                text = plain
            elif isinstance(transpose, ast.Constant):
                text = turned
            else:
                text = f"({turned} if {print_expression(transpose, style)} else {plain})"
            self._line(f"{name} += {text} * {value}", origin)

    def _outer_times(self, target: str, node: Operate, predicate: str, origin: Origin) -> None:
        """``outer(a, b) @ x`` is ``a * dot(b, x)``; transposed ``b * dot(a, x)``."""
        owner = self.owner
        assert isinstance(node.args[0], Operate)
        a, b = node.args[0].args
        transpose = node.option("transpose")
        if transpose is not None and not isinstance(transpose, ast.Constant):
            raise owner.function.declared.source.error("transpose= of an outer product must be a constant", node)
        if transpose is not None and transpose.value:
            a, b = b, a
        zero = f"{owner.context.real}(0.0)"
        left = self._operands(b, zero, predicate)
        right = self._operands(node.args[1], zero, predicate)
        dot = owner._fresh("dot")
        text = " + ".join(f"{p} * {q}" for p, q in zip(left, right, strict=True))
        if owner.predicated:
            text = f"warp.group_sum({text}, {owner.lanes})"
        self._line(f"{dot} = {text}", origin)
        for name, style in zip(self._names(target), owner.styles, strict=True):
            self._line(f"{name} = {self._vector_text(a, style)} * {dot}", origin)

    def _solve(self, target: str, node: Operate, predicate: str, origin: Origin) -> None:
        owner = self.owner
        k = owner.width
        work = self._fill(node, k + 1, predicate, origin)
        rhs = self._operands(node.args[1], f"{owner.context.real}(0.0)", "")
        self._per_feature(lambda j, f: f"{work}[{f}, {k}] = {rhs[j]}", origin)
        self._call("solve_spd" if node.constant("spd") else "solve_general", work, node, origin)
        for j, name in enumerate(self._names(target)):
            self._line(f"{name} = {work}[{self._index(owner.feature(j))}, {k}]", origin)

    def _inverse(self, target: str, node: Operate, predicate: str, origin: Origin) -> None:
        owner = self.owner
        work = self._fill(node, 2 * owner.width, predicate, origin)
        self._call("inverse_spd" if node.constant("spd") else "inverse_general", work, node, origin)
        owner.styles = [
            Style(**{**s.__dict__, "matrices": {**s.matrices, target: work}}) for s in owner.styles
        ]

    def _fill(self, node: Operate, columns: int, predicate: str, origin: Origin) -> str:
        """Copy the matrix into a work area of its own, each lane the rows of its features."""
        owner = self.owner
        work = f"work_{len(owner.areas)}"
        owner.areas.append(columns)
        matrix = node.args[0]
        if owner.predicated:
            self._line("warp.sync()", origin)
        with owner.writer.block(f"for column in range({owner.width}):"):
            self._per_feature(
                lambda j, f: f"{work}[{f}, {self._index('column')}] = {self._element(matrix, owner.feature(j), 'column', owner.styles[j])}",
                origin,
            )
        return work

    def _index(self, text: str) -> str:
        return self.owner.styles[0].index(text)

    def _per_feature(self, text: Callable[[int, str], str], origin: Origin) -> None:
        owner = self.owner
        for j in range(owner.count):
            line = text(j, self._index(owner.feature(j)))
            if owner.padded:
                with owner.writer.block(f"if {owner.copy_name('inside', j)}:"):
                    self._line(line, origin)
            else:
                self._line(line, origin)

    def _call(self, name: str, work: str, node: Operate, origin: Origin) -> None:
        owner = self.owner
        given = node.option("diagonal")
        diagonal = (
            f"{owner.context.real}(0.0)" if given is None else print_expression(given, owner.styles[0])
        )
        lane, lanes = ("lane", owner.lanes) if owner.predicated else (0, 1)
        library = "linalg" if owner.predicated or not owner.context.cuda else "linalg_thread"
        self._line(f"{library}.{name}({work}, {owner.width}, {diagonal}, {lane}, {lanes})", origin)


_ = names_read
