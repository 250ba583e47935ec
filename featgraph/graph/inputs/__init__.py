"""Arrays of callers, checked and converted on the host or on the GPU.

Begin with `take`: `given_array` wraps an argument of an algorithm, `storage_values`
converts the values of a State. `given` has the interface `GivenArray` and its
implementation on the host, `device` that on the GPU, and `numbers` the rules for
conversions.
"""
