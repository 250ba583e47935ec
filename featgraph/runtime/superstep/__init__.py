"""One superstep of a foldmap on a State.

`foldmap` has the public class, `bound` a kernel with its State in place, `frontier` the
vertex sets, `kinds` the phases, and `exchange` the interface to other ranks. Begin with
`superstep.Superstep.run`.
"""
