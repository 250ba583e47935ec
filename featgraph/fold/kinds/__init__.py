"""Kinds of phases, a file each; `table` lists them."""
