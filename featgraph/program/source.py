"""The source of a user function: its syntax tree, location and captured values."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import UserFunctionError

__all__ = ["FunctionSource", "captured_value", "parse_function", "plain_function"]


@dataclass(frozen=True)
class FunctionSource:
    """A parsed user function.

    Attributes
    ----------
    name : str
        The function's name.
    file : str
        The file that defines it.
    line : int
        Line of its ``def``.
    tree : ast.FunctionDef
        Its syntax tree with the line numbers of `file`. Copy it before changing it.
    text : str
        The dedented source, for the digest.
    """

    name: str
    file: str
    line: int
    tree: ast.FunctionDef
    text: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(argument.arg for argument in self.tree.args.args)

    @cached_property
    def free_names(self) -> list[str]:
        """Names that the body reads and that nothing in the function binds."""
        bound = set(self.parameters)
        read: dict[str, None] = {}
        for node in self._nodes():
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    read[node.id] = None
                else:
                    bound.add(node.id)
        return [name for name in read if name not in bound]

    @cached_property
    def dotted_names(self) -> list[str]:
        """Dotted names, such as ``module.name``, that the body reads."""
        return [
            ast.unparse(node)
            for node in self._nodes()
            if isinstance(node, ast.Attribute) and _is_chain(node)
        ]

    def _nodes(self) -> Iterator[ast.AST]:
        return (node for statement in self.tree.body for node in ast.walk(statement))

    def where(self, node: ast.AST | None = None) -> str:
        """Return ``file:line in name`` for an error message."""
        line = getattr(node, "lineno", self.line)
        return f"{self.file}:{line} in {self.name}"

    def error(
        self, what: str, node: ast.AST | None = None, **parts: Any
    ) -> UserFunctionError:
        """Return an error with the location in this function."""
        return UserFunctionError(what, where=self.where(node), **parts)


def _is_chain(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def plain_function(function: Any) -> Callable[..., Any]:
    """Return the Python function of a function or of a Numba or CUDA dispatcher."""
    return getattr(function, "py_func", function)  # type: ignore[no-any-return]


def parse_function(
    function: Callable[..., Any], *, defaults: bool = False
) -> FunctionSource:
    """Parse `function`; refuse everything but a plain ``def`` with readable source.

    Parameters
    ----------
    function : callable
        A Python function, or a Numba or CUDA dispatcher over one.
    defaults : bool, optional
        Whether parameters may have default values.

    Raises
    ------
    UserFunctionError
        For builtins, classes, lambdas, methods, generators, coroutines, functions typed
        at a prompt without source, and signatures with defaults, ``*args`` or
        keyword-only parameters.
    """
    plain = plain_function(function)
    label = getattr(plain, "__name__", repr(plain))
    code = getattr(plain, "__code__", None)
    if not isinstance(plain, types.FunctionType):
        place = f"{code.co_filename}:{code.co_firstlineno} in " if code else ""
        raise UserFunctionError(
            "not a plain Python function",
            where=f"{place}{label}",
            got=type(plain).__name__,
            expected=(
                "a function written with def, or one decorated with @cuda.jit or @njit"
            ),
            fix="write it as a module-level def",
        )
    where = f"{plain.__code__.co_filename}:{plain.__code__.co_firstlineno} in {label}"
    try:
        # The file may have been edited since another function was read from it.
        linecache.checkcache(plain.__code__.co_filename)
        lines, first = inspect.getsourcelines(plain)
    except (OSError, TypeError) as error:
        raise UserFunctionError(
            "the source of this function cannot be read",
            where=where,
            got=str(error),
            expected="a function in a file or a notebook cell",
            fix="put it in a file and import it",
        ) from error
    text = textwrap.dedent("".join(lines))
    try:
        module = ast.parse(text)
    except SyntaxError:  # a lambda in the middle of an expression, mostly
        module = ast.Module([], [])
    tree = module.body[0] if module.body else None
    if not isinstance(tree, ast.FunctionDef):
        raise UserFunctionError(
            "only a plain def can be folded",
            where=where,
            got=_describe(plain, tree),
            expected="def name(f, v, d): ...",
            fix="write it as a def",
        )
    ast.increment_lineno(tree, first - 1)  # errors name lines of the file
    source = FunctionSource(
        tree.name, plain.__code__.co_filename, tree.lineno, tree, text
    )
    _refuse_odd_signature(source, plain, defaults)
    return source


def _describe(plain: types.FunctionType, tree: ast.stmt | None) -> str:
    if plain.__name__ == "<lambda>":
        return "a lambda"
    if isinstance(tree, ast.AsyncFunctionDef):
        return "an async function"
    return type(tree).__name__ if tree is not None else "an expression"


def _refuse_odd_signature(
    source: FunctionSource, plain: types.FunctionType, defaults: bool
) -> None:
    arguments = source.tree.args
    if inspect.isgeneratorfunction(plain):
        raise source.error("a generator cannot be folded", fix="return a value")
    odd = {
        "*args": arguments.vararg,
        "**kwargs": arguments.kwarg,
        "keyword-only parameters": arguments.kwonlyargs,
        "positional-only parameters": arguments.posonlyargs,
        "default values": arguments.defaults and not defaults,
    }
    for kind, present in odd.items():
        if present:
            raise source.error(
                f"{kind} cannot be used in a folded function",
                expected="plain positional parameters",
                fix="give the value through State, or as a module constant",
            )


_MISSING = object()


def captured_value(function: Any, name: str) -> Any:
    """Return the value of a free name: from the closure, globals, or builtins.

    Raises
    ------
    KeyError
        If the name is undefined.
    """
    plain = plain_function(function)
    cells = dict(zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True))
    if name in cells:
        try:
            return cells[name].cell_contents
        except ValueError as error:  # a cell that is still empty
            raise KeyError(name) from error
    if name in plain.__globals__:
        return plain.__globals__[name]
    builtin = plain.__globals__.get("__builtins__", {})
    table = builtin if isinstance(builtin, dict) else vars(builtin)
    value = table.get(name, _MISSING)
    if value is _MISSING:
        raise KeyError(name)
    return value
