"""Engines: exchanges of bytes and arrays between the ranks of a run.

`protocol.Engine` has the calls, and `messages.MessageEngine` implements them on top of
one exchange of bytes. There are three engines: `loopback`, whose ranks are threads of
one process, and `shared_memory` and `torch_engine`, whose ranks are processes.
`failures` raises the error of one rank on all ranks.
"""
