"""The version of what is installed."""

from __future__ import annotations

from importlib import metadata

__all__ = ["VERSION"]

try:
    VERSION = metadata.version("featgraph")
except metadata.PackageNotFoundError:  # a checkout that is not installed
    VERSION = "0"
