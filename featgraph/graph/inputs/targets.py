"""The choice of a target from ``target=``."""

from __future__ import annotations

from featgraph.base.config import config
from featgraph.base.errors import PlanError
from featgraph.cuda import dialect

__all__ = ["chosen_target", "has_gpu"]


def has_gpu() -> bool:
    """Whether a GPU is available."""
    return dialect.is_available()


def chosen_target(target: object, default: str = "cuda") -> str:
    """Return "cpu" or "cuda" for the ``target=`` of a call.

    Parameters
    ----------
    target : {"auto", "cpu", "cuda"}
        "auto" selects `config.target`.
    default : {"cuda", "cpu"}
        The target if `config.target` is "auto", too, and a GPU is available.

    Raises
    ------
    DeviceError
        If the target is "cuda", and CUDA is not available.
    PlanError
        If the target is unknown.
    """
    given = target if isinstance(target, str) else repr(target)
    if given == "auto":
        given = config.target
    if given == "auto":
        given = default if has_gpu() else "cpu"
    if given == "cuda":
        dialect.require(gpu=True)
    if given in {"cpu", "cuda"}:
        return given
    raise PlanError(
        "unknown target",
        where="target=",
        got=repr(given),
        expected="auto, cpu or cuda",
    )
