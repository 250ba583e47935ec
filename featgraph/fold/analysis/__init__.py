"""Analysis of a program: accesses, checks, gathers, and changes of properties."""
