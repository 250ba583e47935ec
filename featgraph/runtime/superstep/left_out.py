"""Due vertices that a foldmap's ``.on`` leaves out: they stay due for a later call."""

from __future__ import annotations

from typing import Any

from featgraph.runtime.devices.protocol import Device

__all__ = ["LeftOut"]

Words = Any


class LeftOut:
    """What was due in any superstep of a run, and must not run.

    Parameters
    ----------
    device : Device
    on, full : words
        The vertices that the foldmap is restricted to, and all.

    Attributes
    ----------
    words : words or None
        None where nothing has been left out yet.
    """

    def __init__(self, device: Device, on: Words, full: Words) -> None:
        self._device = device
        self._on, self._full = on, full
        self.forget()

    def forget(self) -> None:
        """Have nothing due that was left out."""
        self.words: Words | None = None
        self._is_all = False

    def cut(self, due: Words) -> Words:
        """Return the due vertices that may run; do not write it. Note the others."""
        device, on = self._device, self._on
        if due is self._full:
            if not self._is_all:
                self.words, self._is_all = device.words_without(due, on), True
            return on
        if self.words is None:
            self.words = device.empty_words(due.size)
        return device.leave_out(due, on, self.words)
