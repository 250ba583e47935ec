"""What a user declares: functions, properties, State, combine operators.

Nothing here knows a target.
"""
