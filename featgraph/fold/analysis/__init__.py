"""Analysis of a program: accesses, checks, gathers, and changes of properties.

Begin with `analyse.analyse`, which makes an `Analysis` of all functions of a program.
"""
