"""Which device a target is."""

from __future__ import annotations

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
    from featgraph.runtime.devices.cuda_device import cuda_device

    return cuda_device()


_CPU = CpuDevice()
