"""Errors, settings, checks of arguments, files, interrupts: what every room needs."""
