"""Arrays of a graph, and views of it on a device.

`structure` has the attributes of graphs, whose arrays are built at the first use.
`view` has the stamps that key caches of a graph that changes, and the interface from
which the runtime gets arrays for kernels. `edge_orders` orders and groups edges for the
schedules of exclusive edge functions.
"""
