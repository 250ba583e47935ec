"""Every decision about the kernels of a program.

Begin with `planner.make_plan`. It makes a `plan.FoldPlan`: phases, each a kernel with
its functions, its mapping to threads, and the arrays that it reads and writes. `fusion`
groups functions into phases, `schedules` chooses mappings, and `facts` and `halos`
collect facts for the runtime.
"""
