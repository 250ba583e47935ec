"""Arrays of callers, checked and converted on the host or on the GPU.

`take.given_array` and `take.storage_values` are the entries. `given` has the interface
`GivenArray` and arrays on the host, `device` those on the GPU, and `numbers` the rules
for conversions.
"""
