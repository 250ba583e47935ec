"""Errors, settings, checks of arguments, files and interrupts, for all other rooms.

Nothing here depends on graphs or kernels. `errors` has the exceptions that users see,
`config` the settings, `arguments` the checks of single arguments.
"""
