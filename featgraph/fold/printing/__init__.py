"""Trees of statements as text, a file for what only one target wants."""
