"""Kernels for an NVIDIA GPU as code of that GPU, made where there is none.

TVM compiles CUDA C only where its runtime for CUDA is loaded, which needs a driver. Elsewhere it
keeps the text without a word, for a device that has TVM's compiler and CUDA's; none of ours has.
So the runtime is loaded over a driver that says of every call that there is no device.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import tvm
import tvm_ffi

from edgeinfer.errors import NotAvailableError

MODE = "TVM_CUDA_COMPILE_MODE"
INSTALL = "pip install 'edgeinfer[tvm-cuda]', or nvcc of CUDA 13 on the PATH"

_ROOT, _OPTIONS = "CUDA_PATH", "TVM_CUDA_NVRTC_EXTRA_OPTS"
_EXACT = "TVM_CUDA_NVCC_NO_FAST_MATH"
_AS_IEEE = "--ftz=false --prec-div=true --prec-sqrt=true"
"""TVM asks for CUDA's fast arithmetic: quotients and roots that are not the nearest, numbers close
to zero that become zero, and exponentials of a few more bits' error. A quotient next to a half then
is rounded to the other integer."""

_CREATE = "ffi.Module.create.cuda"
_RUNTIME, _CUDART, _DRIVER = "libtvm_runtime_cuda.so", "libcudart.so.13", "libcuda.so.1"
_CALLS = (
    *("cuDeviceGetName", "cuFuncSetAttribute", "cuGetErrorName", "cuGetErrorString", "cuInit"),
    *("cuLaunchKernelEx", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload"),
    *("cuDeviceGetCount", "cuDriverGetVersion", "cuTensorMapEncodeTiled"),
)
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""

_FAT = b"\x50\xed\x55\xba"
_ELF, _GPU, _AT = b"\x7fELF", (190).to_bytes(2, "little"), 18


def get_ready(name: str) -> None:
    """Have TVM compile kernels when it makes them.

    Args:
        name: Name of the machine, for messages.

    Raises:
        NotAvailableError: a part of CUDA is missing; has the install line.
    """
    if MODE not in os.environ:
        os.environ[MODE] = _compiler(name)
    os.environ.setdefault(_EXACT, "1")
    options = _AS_IEEE
    root = next(_wheels(), None)
    if os.environ[MODE] == "nvrtc" and root is not None and _ROOT not in os.environ:
        os.environ[_ROOT] = str(root)
        # TVM looks for them where the toolkit has them.
        options += f" -I{root / 'include' / 'cccl'}"
    os.environ.setdefault(_OPTIONS, options)
    if tvm_ffi.get_global_func(_CREATE, allow_missing=True) is None:
        _load(name)


def check(path: Path, name: str) -> None:
    """Look for a GPU's code in a library.

    Raises:
        NotAvailableError: there is none, only text.
    """
    data = path.read_bytes()
    found = _FAT in data
    place = data.find(_ELF, 1)
    while not found and place > 0:
        found = data[place + _AT : place + _AT + 2] == _GPU
        place = data.find(_ELF, place + 1)
    if not found:
        raise NotAvailableError(f"kernels for {name} were not compiled; {INSTALL}")


def errors(output: str) -> str:
    """The first errors that a compiler of CUDA C printed, each with its line."""
    lines = output.splitlines()
    found = [i for i, line in enumerate(lines) if ": error: " in line]
    return "; ".join(" ".join(" ".join(lines[i : i + 2]).split())[:300] for i in found[:3])


def _compiler(name: str) -> str:
    if shutil.which("nvcc"):
        return "nvcc"
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
        return "nvrtc"
    raise NotAvailableError(f"kernels for {name} need a CUDA compiler: {INSTALL}")


@cache
def _load(name: str) -> None:
    runtime = Path(tvm.__file__).parent / "lib" / _RUNTIME
    cudart = next((p for p in _places() if p.is_file()), None)
    if cudart is None:
        raise NotAvailableError(f"kernels for {name} need {_CUDART}: {INSTALL}")
    ctypes.CDLL(str(cudart))
    try:
        ctypes.CDLL(str(runtime))
    except OSError:
        _load_driver(name)
        try:
            ctypes.CDLL(str(runtime))
        except OSError as error:
            raise NotAvailableError(f"kernels for {name}: {error}; {INSTALL}") from error


def _places() -> Iterator[Path]:
    """Where CUDA's runtime may be: of the wheels, of the toolkit."""
    for root in _wheels():
        yield root / "lib" / _CUDART
    homes = [os.environ.get("CUDA_HOME"), os.environ.get(_ROOT), "/usr/local/cuda"]
    if found := shutil.which("nvcc"):
        homes.insert(0, str(Path(found).resolve().parents[1]))
    homes += sorted(map(str, Path("/usr/local").glob("cuda-13*")))
    for home in filter(None, homes):
        for place in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
            yield Path(home) / place / _CUDART


def _wheels() -> Iterator[Path]:
    """Where the wheels put CUDA."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (Path(folder) / "cu13").is_dir():
            yield Path(folder) / "cu13"


def _load_driver(name: str) -> None:
    """Load a driver that has no device."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NotAvailableError(f"kernels for {name} need a C compiler: apt-get install gcc")
    text = "".join(f"int {call}(void) {{ return {_NO_DEVICE}; }}\n" for call in _CALLS)
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        made = Path(folder) / _DRIVER
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{_DRIVER}", "-o", str(made)]
        done = subprocess.run(
            [*command, "-x", "c", "-"], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotAvailableError(f"kernels for {name}: {done.stderr.strip()[-300:]}")
        # Later libraries that want the driver take what is loaded under its name.
        ctypes.CDLL(str(made))
