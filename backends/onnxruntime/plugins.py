"""Execution providers that packages named ``onnxruntime-ep-*`` bring: libraries next to the engine.

Such a package has a module ``onnxruntime_ep_…`` that says where its library is and what it is
called; the engine loads it when it is registered, and then lists the devices it can use.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

from edgeinfer.backends.checks import one_line
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.records import dataclass

_PREFIX = "onnxruntime_ep_"


@dataclass(frozen=True, slots=True)
class Plugin:
    """One installed package.

    Attributes:
        module: its name.
        version: Version of the package; empty when unknown.
        providers: that it brings.
        devices: the engine's own objects, for ``SessionOptions.add_provider_for_devices``.
        problem: why it cannot be used here; empty when it can.
    """

    module: str
    version: str = ""
    providers: tuple[str, ...] = ()
    devices: tuple[Any, ...] = ()
    problem: str = ""


@functools.cache
def plugins() -> tuple[Plugin, ...]:
    """Register every installed package with the engine, once; never raises."""
    names = sorted(m.name for m in pkgutil.iter_modules() if m.name.startswith(_PREFIX))
    return tuple(_registered(name) for name in names)


def _registered(module: str) -> Plugin:
    try:
        onnxruntime = import_onnxruntime()
        package = importlib.import_module(module)
        path = str(package.get_library_path())
        ask = getattr(package, "get_ep_names", None)
        providers = tuple(ask()) if ask is not None else (str(package.get_ep_name()),)
        onnxruntime.register_execution_provider_library(module, path)
        found = onnxruntime.get_ep_devices()
        devices = tuple(d for d in found if d.ep_name in providers)
    except Exception as error:  # a stranger's library may raise anything; the plugin reports it
        return Plugin(module, problem=f"cannot be used: {one_line(error)}")
    problem = "" if devices else f"{', '.join(providers)} finds no device of its kind here"
    return Plugin(module, _version(module), providers, devices, problem)


def _version(module: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(module)
    except PackageNotFoundError:
        return ""
