"""What a user declares: functions, properties, State, combine operators.

Nothing here depends on a target.
"""
