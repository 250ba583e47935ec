"""Has the compilers of the tests do no work twice: they take two thirds of a CI run.

What is compiled stays the same. Numba, and its dialect for CUDA, which has copies of
some modules,

- try all implementations of an operator whenever it occurs, until one takes the types
  of its operands: here the one that took them last is tried first;
- find the variables that live at each block behind every pass, which only generators
  and objects of Python ask for;
- compare sets of options by copies of all of them;
- go through all registries for new implementations, several times for each function:
  here only where a registry has grown;
- have LLVM parse the text of a module for the size of a type: here once for each type;
- make two events of every call of LLVM, for which nothing listens.
"""

from __future__ import annotations

from typing import Any

import numba

__all__ = ["find_again"]

#: Of other versions nothing is known, and nothing is changed.
_KNOWN = "0.68."


def find_again() -> None:
    """Have this process compile in less time."""
    if not numba.__version__.startswith(_KNOWN):
        return
    from llvmlite.binding import ffi
    from numba.core import base, postproc, targetconfig
    from numba.core.types.functions import BaseFunction
    from numba.core.typing import context

    from featgraph.cuda import dialect

    _remember_templates(BaseFunction)
    ffi.lib._lock._cblist.clear()
    modules = [(postproc, targetconfig, base, context)]
    if dialect.is_installed():
        names = "core.postproc", "core.targetconfig", "core.base", "typing.context"
        modules.append(tuple(map(dialect.dialect_module, names)))
    for passes, config, targets, typing in modules:
        _skip_live_variables(passes)
        options = config.TargetConfig
        options.__eq__ = _equal(options.__eq__)
        _refresh_when_grown(typing.BaseContext, lambda context: None)
        _refresh_when_grown(
            targets.BaseContext, lambda context: context.typing_context.refresh()
        )
        _remember_sizes(targets.BaseContext)


def _remember_templates(functions: Any) -> None:
    """Have functions of the compiler keep which template took which types."""
    from numba.core import errors
    from numba.core.target_extension import get_local_target
    from numba.core.types.functions import _unlit_non_poison as plain
    from numba.core.utils import order_by_target_specificity

    find_anew = functions.get_call_type
    # The functions are kept: another could be given the place of one that is gone.
    known: dict[int, tuple[Any, dict[Any, Any]]] = {}

    def ways(function: Any, context: Any) -> list[tuple[Any, bool]]:
        target = get_local_target(context)
        ordered = order_by_target_specificity(target, function.templates)
        both = {True: (True, False), False: (False, True)}
        return [(t, way) for t in ordered for way in both[bool(t.prefer_literal)]]

    def find(self: Any, context: Any, args: Any, kws: Any) -> Any:
        _, took = known.setdefault(id(self), (self, {}))
        key = id(context), tuple(args), tuple(kws.items())
        for way in [took[key]] if key in took else ways(self, context):
            template, is_literal = way[0](context), way[1]
            given = args if is_literal else tuple(map(plain, args))
            named = kws if is_literal else {n: plain(t) for n, t in kws.items()}
            try:
                signature = template.apply(given, named)
            except errors.NumbaError:
                continue
            if signature is not None:
                self._impl_keys[signature.args] = template.get_impl_key(signature)
                took[key] = way
                return signature
        return find_anew(self, context, args, kws)  # it says why there is none

    find.__wrapped__ = find_anew  # type: ignore[attr-defined]
    functions.get_call_type = find


def _skip_live_variables(module: Any) -> None:
    run_whole = module.PostProcessor.run

    def run(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        code = self.func_ir
        if emit_dels or code.is_generator:
            run_whole(self, emit_dels, extend_lifetimes)
            return
        code.blocks = module.transforms.canonicalize_cfg(code.blocks)
        code.variable_lifetime = module.VariableLifetime(code.blocks)
        code.generator_info = None

    module.PostProcessor.run = run


def _refresh_when_grown(contexts: Any, refresh_others: Any) -> None:
    """Have contexts go through their registries only where one has grown."""
    refresh_whole = contexts.refresh

    def entries(self: Any) -> int:
        return sum(
            len(getattr(registry, name))
            for registry, loader in self._registries.items()
            for name in loader.registry_items
        )

    def refresh(self: Any) -> None:
        if vars(self).get("known_entries") == entries(self):
            refresh_others(self)
            return
        refresh_whole(self)
        self.known_entries = entries(self)

    contexts.refresh = refresh


def _remember_sizes(contexts: Any) -> None:
    find, known = contexts.get_abi_sizeof, dict[str, int]()

    def get_abi_sizeof(self: Any, of_type: Any) -> int:
        # A named type has one body: all modules have one context of llvmlite.
        text = str(of_type)
        if text not in known:
            known[text] = find(self, of_type)
        return known[text]

    contexts.get_abi_sizeof = get_abi_sizeof


def _equal(whole: Any) -> Any:
    def equal(self: Any, other: Any) -> Any:
        if type(self) is type(other) and self._values == other._values:
            return True
        return whole(self, other)

    return equal
