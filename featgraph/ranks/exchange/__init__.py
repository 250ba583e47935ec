"""Exchange of entries of vertices and edges between their owners and other ranks.

Begin with `exchange.RankExchange`, which runs call. `ghosts` decides which rows are
sent, and when; a `transport` sends them. On the host this is `host_rows`. On GPUs it is
`gpu_transport`: through windows (`windows`, `window_channel`, `window_kernels`) or as
messages (`gpu_rows`, `gpu_messages`, `gpu_kernels`). `remote_entries` has the lists of
entries to send, and `triangles` fetches rows of edges for triangle functions.
"""
