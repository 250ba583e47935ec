"""Lines, indents and expressions."""
