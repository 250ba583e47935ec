"""The folder: from declared functions to one specialised kernel for each phase.

A program enters, the text of a module and its compiled kernels leave. Begin with
`folder.fold`, which calls these in turn:

============  ====================================================================
`syntax`      a function becomes a syntax tree in normal form, with types
`analysis`    the reads, writes and combines of each function
`plan`        phases, each a kernel, with a schedule: `plan.schedules` chooses it
`kinds`       the kinds of phases: `kinds.table` lists them
`schedules`   ways to assign vertices, edges and features to threads, listed in
              `schedules.table`
`passes`      passes over the bodies of functions, and over the loop nests of
              kernels: `passes.passes` lists them
`printing`    the text of a module, from the trees
`compiling`   compiled kernels, in memory and in the store on disk
============  ====================================================================

`tree` has the statements of nests, `operations` the operations on features.
"""
