"""Parts of the converter that are loaded when they are needed, and which no type checker follows.

What a program imports of edgeinfer is checked together with all that it imports in turn. Behind
the public functions stand the graph libraries, PyTorch among them: ten times what annotations name.
"""

from __future__ import annotations

import importlib
from typing import Any


def late(name: str) -> Any:
    """Import a module of the converter by its name within it, e.g. ``lower.tvm``."""
    return importlib.import_module(f"edgeinfer.convert.{name}")
