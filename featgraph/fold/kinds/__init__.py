"""Kinds of phases: their interface (`base`), those of vertices, and all others."""
