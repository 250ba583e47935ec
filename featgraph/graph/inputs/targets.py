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
    chosen = target if isinstance(target, str) else repr(target)
    if chosen == "auto":
        chosen = config.target
    if chosen == "auto":
        chosen = default if has_gpu() else "cpu"
    if chosen == "cuda":
        dialect.require(gpu=True)
    if chosen in {"cpu", "cuda"}:
        return chosen
    raise PlanError(
        "unknown target",
        where="target=",
        got=repr(chosen),
        expected="auto, cpu or cuda",
    )
