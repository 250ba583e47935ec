"""Ranks of several targets: what they tell each other, and how."""
