"""Classes that a package offers by name and imports when they are requested."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def offers(module: str, *names: str) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` that takes names from one of its modules.

    Args:
        module: that defines them.
        names: Names of what is offered.
    """

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module.rpartition('.')[0]!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    return attribute
