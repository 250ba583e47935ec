"""From a plan to the text of a module: functions, kernels, entries.

Begin with `emit`. `cpu` and `cuda` print the kernels of a target, `writer` prints
statements, `module` describes the result for the runtime, and `explain` shows plans and
trees to users.
"""
