"""Checkpoints of runs: written in the background, and resumed from (0054).

`public` has the functions of users and the session of one run, `resumable_call` the
position in a call of several runs, `resume_point` the saved values, and `folder` the
files. Begin with `public.Checkpoints`.
"""
