"""Which device a target is."""

from __future__ import annotations

from featgraph import _cuda
from featgraph.config import config
from featgraph.errors import PlanError
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
    if not isinstance(target, str):
        target = repr(target)
    if target == "auto":
        target = config.target
    if target == "auto":
        target = "cuda" if _cuda.is_available() else "cpu"
    if target == "cpu":
        return _CPU
    if target == "cuda":
        _cuda.require(gpu=True)
        from featgraph.runtime.devices.cuda_device import cuda_device

        return cuda_device()
    raise PlanError(
        "unknown target",
        where="target=",
        got=repr(target),
        expected="auto, cpu or cuda",
    )


_CPU = CpuDevice()
