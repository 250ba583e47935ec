"""Other cuts in the midst of a run: when they pay, and what moves (0062)."""
