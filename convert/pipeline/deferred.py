"""The graph library without SymPy, which it imports for arithmetic on sizes that have names.

SymPy is half a second of work, and few conversions do such arithmetic: it is loaded when the first
one does.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from types import ModuleType
from typing import Any

_NAME = "sympy"


class _Deferred(ModuleType):
    """Stands for SymPy until something of it is used, a submodule included.

    ``importlib.util.LazyLoader`` is no help: before Python 3.12 an import statement loads already.
    """

    is_importing = True

    def __getattr__(self, name: str) -> Any:
        if self.is_importing and name != "__path__":
            # A table of functions is made while onnx_ir is imported.
            return partial(_call, name)
        spec = self.__spec__
        self.__class__ = ModuleType  # type: ignore[assignment]  # as LazyLoader does
        if spec is not None and spec.loader is not None:
            self.__path__ = spec.submodule_search_locations or []
            spec.loader.exec_module(self)
        return getattr(self, name)


def _call(name: str, *arguments: Any) -> Any:
    return getattr(sys.modules[_NAME], name)(*arguments)


def import_onnx_ir() -> None:
    """Import it and let SymPy wait; in processes of edgeinfer's own that have one thread so far."""
    spec = None if {_NAME, "onnx_ir"} & sys.modules.keys() else importlib.util.find_spec(_NAME)
    if spec is None:
        return
    module = _Deferred(_NAME)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules[_NAME] = module
    importlib.import_module("onnx_ir")
    module.is_importing = False
