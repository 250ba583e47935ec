"""Base classes of estimators: those of scikit-learn, or substitutes without it."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["BaseEstimator", "ClassifierMixin", "NotFittedError"]

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import NotFittedError
except ImportError:  # estimators work, except in searches and clones of scikit-learn

    class BaseEstimator:  # type: ignore[no-redef]
        """Parameters of ``__init__``, read and written by name."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Return the parameters of the constructor, by name."""
            names = list(inspect.signature(type(self)).parameters)
            return {name: getattr(self, name) for name in names}

        def set_params(self, **params: Any) -> Any:
            """Set parameters by name, and return the estimator."""
            unknown = [name for name in params if name not in self.get_params()]
            if unknown:
                raise ValueError(
                    f"no parameter {unknown[0]!r}; there are {list(self.get_params())}"
                )
            for name, value in params.items():
                setattr(self, name, value)
            return self

        def __repr__(self) -> str:
            defaults = inspect.signature(type(self)).parameters
            changed = {
                name: value
                for name, value in self.get_params().items()
                if repr(value) != repr(defaults[name].default)
            }
            shown = ", ".join(f"{name}={value!r}" for name, value in changed.items())
            return f"{type(self).__name__}({shown})"

    ClassifierMixin = type("ClassifierMixin", (), {})
    NotFittedError = ValueError
