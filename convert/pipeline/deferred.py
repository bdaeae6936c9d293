"""The graph library without SymPy, which it imports for arithmetic on sizes that have names.

SymPy is half a second of work, and few conversions do such arithmetic: it is loaded when the first
one does. coremltools derives a class from SymPy's symbols and asks of each value whether it is an
expression: for that the core is enough, until somebody makes a symbol.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from types import ModuleType
from typing import Any

_NAME = "sympy"
_CORE = ("Basic", "Symbol")


class _Deferred(ModuleType):
    """Stands for SymPy until something of it is used, a submodule included.

    ``importlib.util.LazyLoader`` is no help: before Python 3.12 an import statement loads already.
    """

    is_importing = True

    def __getattr__(self, name: str) -> Any:
        if self.is_importing and name != "__path__":
            # A table of functions is made while onnx_ir is imported.
            return partial(_call, name)
        if name in _CORE:
            return getattr(self._core(), name)
        return getattr(self._whole(), name)

    def _core(self) -> ModuleType:
        """Import the core alone; the first symbol that is made loads the rest."""
        if (loaded := sys.modules.get(f"{_NAME}.core")) is not None:
            return loaded
        spec = self.__spec__
        self.__path__ = (spec and spec.submodule_search_locations) or []
        core = importlib.import_module(f"{_NAME}.core")
        del self.__path__
        make = core.Symbol.__new__

        def first(cls: type, *args: Any, **kwargs: Any) -> Any:
            core.Symbol.__new__ = make
            self._whole()
            return make(cls, *args, **kwargs)

        core.Symbol.__new__ = first
        return core

    def _whole(self) -> ModuleType:
        spec = self.__spec__
        self.__class__ = ModuleType  # type: ignore[assignment]  # as LazyLoader does
        if spec is not None and spec.loader is not None:
            self.__path__ = spec.submodule_search_locations or []
            spec.loader.exec_module(self)
        return self


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
