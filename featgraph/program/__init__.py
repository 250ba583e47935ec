"""Declarations of users: functions, operations, combines, properties and States.

Nothing here depends on a target. `functions` has the decorators, `source` parses a
decorated function, `operations` has the `fg.` functions that bodies call, and
`combines` the table of combines. `program.Program` is the functions of a foldmap with
their captured values. `state.State` stores the values of a program on a graph, one
`column.Column` for each property; `saved` writes States to folders.
"""
