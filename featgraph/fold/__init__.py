"""The folder: from declared functions to one specialised kernel for each phase.

A program enters, the text of a module and its compiled kernels leave. Begin with
`folder.fold`, which calls these in turn:

============  ====================================================================
`syntax`      a function becomes a syntax tree in normal form, with types
`analysis`    reads, writes and combines of each function
`plan`        phases, and for each its schedule: `plan.schedules` chooses it
`kinds`       the kinds of phases: `kinds.table` lists them
`schedules`   ways to assign vertices, edges and features to threads, listed in
              `schedules.table`
`passes`      from tree to tree: bodies of functions, and nests of loops
`printing`    trees as text
`compiling`   text as kernels, in memory and in the store on disk
============  ====================================================================

`tree` has the statements of nests, `operations` the operations on features.
"""
