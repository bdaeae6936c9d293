"""CUDA C as TVM writes it, run on the CPU: one block after the other, its threads in turns."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.kernels.tuning import workload

_BEFORE = r"""
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>
#include <algorithm>
using std::min; using std::max;
struct float2 { float x, y; }; struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Place { int x, y, z; };
static Place threadIdx, blockIdx, blockDim;
static ucontext_t whole, *one;
static void wait_() { swapcontext(one, &whole); }
#define __syncthreads wait_
#define __global__
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__
typedef _Float16 half;
struct int4 { int x, y, z, w; }; struct int2 { int x, y; };
static inline float __half2float(half v) { return (float)v; }
static inline int __float_as_int(float v) { int r; memcpy(&r, &v, 4); return r; }
"""

_AFTER = r"""
static void **given;
static bool *ended;
static void thread_(int index) { CALL; ended[index] = true; }
extern "C" void run(int grid, int x, int y, void **arrays) {
  int count = x * y;
  std::vector<ucontext_t> all(count);
  std::vector<std::vector<char>> stacks(count, std::vector<char>(65536));
  given = arrays; ended = new bool[count];
  for (int b = 0; b < grid; b++) {
    blockIdx = {b, 0, 0};
    for (int t = 0; t < count; t++) {
      getcontext(&all[t]);
      all[t].uc_stack.ss_sp = stacks[t].data(); all[t].uc_stack.ss_size = 65536;
      all[t].uc_link = &whole;
      makecontext(&all[t], (void (*)())thread_, 1, t);
      ended[t] = false;
    }
    for (bool more = true; more;) {
      more = false;
      for (int t = 0; t < count; t++) {
        if (ended[t]) continue;
        threadIdx = {t % x, t / x, 0}; one = &all[t];
        swapcontext(&whole, one);
        more |= !ended[t];
      }
    }
  }
  delete[] ended;
}
"""


_COMPILE = "tvm_callback_cuda_compile"


def text_of(function: tirx.PrimFunc) -> str:
    """Return the CUDA C of a function whose loops are in order."""
    texts: list[str] = []

    def compiled(code: str) -> bytes:
        texts.append(str(code))
        return b"none"

    # TVM's own one is there or not, as other tests imported it or not, and wants a GPU.
    own = tvm_ffi.get_global_func(_COMPILE, allow_missing=True)
    tvm_ffi.register_global_func(_COMPILE, compiled, override=True)
    try:
        module = tvm.IRModule({workload.NAME: workload.plain(function)})
        made = tvm.compile(module, target=machine("sm_90").target())
    finally:
        if own is None:
            tvm_ffi.remove_global_func(_COMPILE)
        else:
            tvm_ffi.register_global_func(_COMPILE, own, override=True)
    # Not asked to compile, TVM keeps the text.
    return texts[0] if texts else str(made.mod.imports[0].inspect_source())


def extents(function: tirx.PrimFunc) -> dict[str, int]:
    """Return the number of blocks and threads along each axis."""
    text = str(function.script())
    found = re.findall(r'launch_thread\("(\w+\.\w)", (\d+)\)', text)
    found += [(b, a) for a, b in re.findall(r'thread_binding\((\d+), thread="(\w+\.\w)"\)', text)]
    return {name: int(size) for name, size in found}


def run(function: tirx.PrimFunc, arrays: Sequence[Any], folder: Path) -> None:
    """Run a function on arrays, in the order of its parameters."""
    text, sizes = text_of(function), extents(function)
    match = re.search(r"main_kernel\(([^)]*)\) \{", text)
    assert match is not None, text
    names = re.findall(r"\w+(?=_ptr\b)", match.group(1))
    order = [names.index(str(p.name)) for p in function.params]
    code = text[text.rindex('extern "C" __global__', 0, match.end()) :]
    code = re.sub(r"__shared__ (alignas\(\d+\))", r"\1 static", code)
    kinds = re.findall(r"(\w+)\* __restrict__", match.group(1))
    given = [f"({kinds[i]}*)given[{order.index(i)}]" for i in range(len(names))]
    call = f"main_kernel({', '.join(given)})"
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(_BEFORE + code + _AFTER.replace("CALL", call), "utf-8")
    options = ["-O0", "-w", "-shared", "-fPIC", "-ffp-contract=off"]
    subprocess.run(["g++", *options, "-o", str(library), str(source)], check=True)
    loaded = ctypes.CDLL(str(library))
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    loaded.run(
        sizes["blockIdx.x"], sizes.get("threadIdx.x", 1), sizes.get("threadIdx.y", 1), pointers
    )
