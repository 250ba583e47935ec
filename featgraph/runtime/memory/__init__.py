"""Memory on a device: arrays of graphs, and buffers of the values of States.

`buffers` moves values between a State and a device, `data` passes them to kernels and
keeps double buffers equal, and `graph_arrays` uploads arrays of graphs. Begin with
`buffers.buffers_of`.
"""
