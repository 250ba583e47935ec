"""Rows of properties on a link: which of them changed, in the form of fewest bytes."""
