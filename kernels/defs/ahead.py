"""Kernels of an NVIDIA GPU that start while the one before them still runs.

CUDA calls it programmatic dependent launch: a kernel that waits by itself for what came before may
be started as soon as there is room, to read what nobody writes, such as weights. TVM's runtime
launches so what is marked, and none of its passes marks anything: ``PIPELINE`` is its own pipeline,
and then marks each kernel that has the wait in it. Bits of known numbers become numbers there too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm.script.ir_builder import tirx as T  # noqa: N812
from tvm.tirx import compilation_pipeline

from edgeinfer.kernels.defs.emit import Buffer, Expr
from edgeinfer.kernels.defs.math import known_bits

PIPELINE = "edgeinfer"
"""A name for ``tvm.compile(..., tir_pipeline=PIPELINE)``."""

_MARK = "tirx.use_programtic_dependent_launch"
_PARAMS, _LAUNCH, _CONTROL = (
    "tirx.kernel_launch_params",
    "tirx.call_ffi_kernel",
    "tirx.ptx.griddepcontrol",
)

_SINCE = 90
"""Compute capability of Hopper, the first with ``griddepcontrol`` (PTX ISA 9.7.15.14)."""

_READ = """
__forceinline__ __device__ float4 edgeinfer_read(const float* from) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}
"""
_ONCE = """
__forceinline__ __device__ int4 edgeinfer_read_once(const int* from) {
  int4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
"""


def has(arch: str) -> bool:
    """Whether GPUs of an architecture, such as ``sm_90``, can do so."""
    return int(arch.removeprefix("sm_").rstrip("af")) >= _SINCE


def let_next_start() -> None:
    """Let the next kernel start from here on; it finds nothing of this one before its wait."""
    T.evaluate(T.ptx.griddepcontrol.launch_dependents())


def wait() -> None:
    """Wait until all that came before has ended and is seen."""
    T.evaluate(T.ptx.griddepcontrol.wait())


def read(buffer: Buffer, index: list[Expr]) -> Expr:
    """Read four float32 that a kernel before wrote: never earlier than the wait.

    What a kernel only reads, nvcc takes for what nobody writes, and reads it whenever it likes.
    """
    at = T.address_of(T.BufferLoad(buffer, index))
    return T.cuda.func_call("edgeinfer_read", at, source_code=_READ, return_type="float32x4")


def read_once(buffer: Buffer, index: list[Expr]) -> Expr:
    """Read four int32 that nobody writes, here and now, and keep no copy near."""
    at = T.address_of(T.BufferLoad(buffer, index))
    return T.cuda.func_call("edgeinfer_read_once", at, source_code=_ONCE, return_type="int32x4")


def _pipeline() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    usual, host, device = compilation_pipeline.get_tir_pipeline("default")

    def whole(module: tvm.IRModule, _: Any) -> tvm.IRModule:
        return _marked(known_bits(usual(module)))

    return tvm.transform.module_pass(whole, opt_level=0), host, device


def _marked(module: tvm.IRModule) -> tvm.IRModule:
    """Mark kernels that wait by themselves, and where they are launched."""
    made, names = tvm.IRModule(attrs=module.attrs), set()
    for name, function in module.functions.items():
        if _PARAMS in function.attrs and _waits(function.body):
            names.add(str(function.attrs["global_symbol"]))
            function = function.with_attr(_PARAMS, _with_mark(function.attrs[_PARAMS]))
        made[name] = function

    def launch(call: Any) -> Any:
        if not _is(call, _LAUNCH) or call.args[0].value not in names:
            return call
        attrs = type(call.attrs)(_with_mark(call.attrs.launch_params))
        return tvm.ir.Call(call.op, call.args, attrs, ret_ty=call.ty)

    for name, function in made.functions.items():
        if _PARAMS not in function.attrs:
            made[name] = function.with_body(
                tvm_ffi.structural_map(function.body, (tvm.ir.Call, launch))
            )
    return made


def _with_mark(params: Any) -> list[str]:
    # What follows the mark takes an argument, and the mark takes none.
    return [_MARK, *map(str, params)]


def _waits(body: Any) -> bool:
    found = []

    def look(call: Any) -> Any:
        found.append(_is(call, _CONTROL) and "wait" in str(call))
        return call

    tvm_ffi.structural_map(body, (tvm.ir.Call, look))
    return any(found)


def _is(call: Any, name: str) -> bool:
    return str(getattr(call.op, "name", "")) == name


compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline)
