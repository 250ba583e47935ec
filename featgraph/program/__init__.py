"""Declarations of users: functions, operations, combines, properties and States.

Nothing here depends on a target. `functions` has the decorators, `operations` the
`fg.` functions within bodies, `combines` the table of combine operators. `state.State`
holds the values of a program on a graph, `column` those of one property.
"""
