"""Passes over user functions, in each form of the loop over features.

`facts` has the facts that passes read, and `nodes` the nodes of their trees. A function
begins in `definitions`. `stores` and `predication` change its body for one feature;
`unrolled`, `looped` and `vectorized` rewrite it for several features, and `memory`
replaces accesses to properties by indices into arrays.
"""
