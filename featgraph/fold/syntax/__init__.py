"""From a user function to its normal form: names, calls, statements, types."""
