"""User functions as text, in each form of the loop over features."""
