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
- make machine code of functions that Python cannot call, and of which other functions
  link the intermediate code;
- make a wrapper of each function for callers in C, of which there are none;
- run passes over functions that a module only declares;
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
    from numba.core import base, codegen, cpu, postproc, targetconfig
    from numba.core.types.functions import BaseFunction
    from numba.core.typing import context

    from featgraph.cuda import dialect

    _remember_templates(BaseFunction)
    _only_link(cpu.CPUContext, codegen.JITCodeLibrary)
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


def _only_link(contexts: Any, libraries: Any) -> None:
    """Have no machine code made of functions without a wrapper for Python.

    Subroutines of the compiler have none, nor have functions marked as inner ones.

    The place of a function's environment is in each module that links the function. All
    modules of a process share it, so it is filled with the first of them.
    """
    from numba import _dynfunc

    get_whole, finish_whole = contexts.get_executable, libraries._finalize_final_module
    link_whole = libraries.add_linking_library
    environments: dict[str, Any] = {}

    def get_executable(self: Any, library: Any, function: Any, env: Any) -> Any:
        defined = {found.name for found in library._final_module.functions}
        if library._finalized or function.llvm_cpython_wrapper_name in defined:
            return get_whole(self, library, function, env)
        library.is_only_linked = True
        library._ensure_finalized()
        environments[self.get_env_name(function)] = env
        return _dynfunc.make_function(
            function.lookup_module(), function.qualname.split(".")[-1],
            "", 0, env, (library,),
        )  # fmt: skip

    def finish(self: Any) -> None:
        if self.is_only_linked:
            self._finalize_dynamic_globals()
            self._verify_declare_only_symbols()
            self._finalized = True
            return
        finish_whole(self)
        names = {variable.name for variable in self._final_module.global_variables}
        for name in names & environments.keys():
            self._codegen.set_env(name, environments.pop(name))

    def link(self: Any, library: Any) -> None:
        library.is_only_linked |= not library._finalized
        link_whole(self, library)

    def optimize(self: Any, module: Any) -> None:
        module.data_layout = self._codegen._data_layout
        for function in module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    contexts.create_cfunc_wrapper = lambda *given, **named: None
    contexts.get_executable = get_executable
    libraries._optimize_functions = optimize
    libraries.is_only_linked = False
    libraries.add_linking_library = link
    libraries._finalize_final_module = finish


def _equal(whole: Any) -> Any:
    def equal(self: Any, other: Any) -> Any:
        if type(self) is type(other) and self._values == other._values:
            return True
        return whole(self, other)

    return equal
