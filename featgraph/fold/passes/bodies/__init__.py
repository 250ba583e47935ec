"""Passes over user functions, in each form of the loop over features."""
