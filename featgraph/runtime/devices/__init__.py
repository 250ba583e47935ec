"""Arrays, bitvectors and launches of each target."""
