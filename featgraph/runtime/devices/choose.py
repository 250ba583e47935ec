"""Which device a target is."""

from __future__ import annotations

from typing import Any

from featgraph.arrays.targets import chosen_target
from featgraph.runtime.devices.cpu import CpuDevice
from featgraph.runtime.devices.protocol import Device

__all__ = ["choose_device"]


def choose_device(target: str) -> Device:
    """Return the device for ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    DeviceError
        If CUDA is asked for and cannot be used here.
    PlanError
        For an unknown target.
    """
    if chosen_target(target) == "cpu":
        return _CPU
    if not _loaded:  # an import statement takes a twentieth of a call
        from featgraph.runtime.devices import cuda_device

        _loaded.append(cuda_device)
    device: Device = _loaded[0].cuda_device()
    return device


_CPU = CpuDevice()
#: The module of the CUDA target, which imports the dialect.
_loaded: list[Any] = []
