"""The cost model: predicted times of supersteps on P ranks (0059).

`machine` has the constants of a machine, `calibrate` measures them, and `forecast`
counts the work of ranks and multiplies.
"""
