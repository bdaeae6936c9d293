"""Compile a kernel for this machine's CPU and run it on NumPy arrays of any alignment."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

import tvm
import tvm_ffi

from edgeinfer.backends.tvm.library import cpu_features
from edgeinfer.convert.lower.tvm.machines import MACHINES, machine
from edgeinfer.kernels.defs.emit import KernelCpu
from tests.kernels.placed import Array, misaligned

__all__ = ["HERE", "MACHINES", "Array", "compiled", "cpu", "machine", "misaligned", "tvm"]

HERE = tuple(
    name
    for name, m in MACHINES.items()
    if m.arch == "x86_64" and not m.cuda and set(m.features) <= cpu_features()
)
"""Machines whose code this CPU runs."""


def cpu(name: str) -> KernelCpu:
    """What kernels must know of a machine."""
    return KernelCpu(machine(name).lanes, machine(name).registers)


def compiled(kernel: Any, name: str) -> Callable[..., None]:
    """Return a function that takes NumPy arrays, outputs last."""
    module = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
    made = tvm.compile(module, target=machine(name).target())
    function = made["kernel"]

    def call(*arrays: Array) -> None:
        function(*(tvm_ffi.from_dlpack(a) for a in arrays))

    return call
