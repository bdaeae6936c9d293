"""An NVIDIA GPU that there is none of: TVM's CUDA C and edgeinfer's backend, run on the CPU.

``start`` loads a driver and a runtime of CUDA that do on the CPU what is asked of them, and has
g++ compile what nvcc would. So a model's whole way is run: its host code, launches, copies, and the
recorded graph. What nvcc and the card make of the text otherwise stays open: times, rounding of
functions such as ``expf``, and what threads do to one another without a barrier.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests import memory_disk

HERE = Path(__file__).parent
_IMAGE = b"\x50\xed\x55\xba"
"""As a fat binary of CUDA begins."""

_RUNTIME = "libcudart.so.13"
_FLAGS = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-mfma", "-mf16c", "-ffp-contract=fast")
_EXACT = ("-ffp-contract=off", "-O2")
_KERNEL = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\((\d+)[^)]*\) )?(\w+)\([^;{]*\) \{'
)
_MEETS = ("__sync", "__shfl", "__activemask")


def is_possible() -> bool:
    """Whether there is what it takes."""
    here = os.uname()
    is_known = here.sysname == "Linux" and here.machine == "x86_64"
    return is_known and shutil.which("g++") is not None


@cache
def load_driver() -> None:
    """Have this process see an emulated GPU of NVIDIA's."""
    folder = Path(tempfile.mkdtemp(prefix="edgeinfer-cuda-"))
    # The processes of one run share a folder for temporary files, and what is built there.
    of_run = Path(tempfile.gettempdir())
    kept = of_run / "cuda-emulator" if of_run.name.startswith(memory_disk.PREFIX) else folder
    kept.mkdir(exist_ok=True)
    try:
        for name in ("libcuda.so.1", _RUNTIME):
            if not (kept / name).exists():
                os.replace(_library(folder, name), kept / name)
            ctypes.CDLL(str(kept / name), ctypes.RTLD_GLOBAL)
    finally:
        shutil.rmtree(folder)


@cache
def start() -> None:
    """Have this process see an emulated GPU of NVIDIA's, and have TVM compile for it."""
    # Before TVM, which would load a real driver where there is one.
    load_driver()
    import tvm
    import tvm_ffi

    from edgeinfer.convert.lower.tvm import cuda_code

    ctypes.CDLL(str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"))
    os.environ[cuda_code.MODE] = "emulated"
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compiled, override=True)


def _library(folder: Path, name: str) -> Path:
    """Build the driver, or a runtime that is only a name: TVM finds its calls in the driver."""
    made, versions, source = folder / name, folder / "versions", HERE / "driver.cpp"
    command = ["g++", *_FLAGS, f"-Wl,-soname,{name}", "-o", str(made)]
    if name == _RUNTIME:
        versions.write_text(f"{name} {{ global: *; }};\n", "utf-8")
        source = folder / "empty.cpp"
        source.write_text("int emulated;\n", "utf-8")
        command += [f"-Wl,--version-script={versions}"]
    subprocess.run([*command, str(source), "-ldl"], check=True)
    return made


def compiled(text: str, *, is_ours: bool = False) -> bytes:
    """Compile CUDA C to an image that the emulated driver loads.

    Args:
        text: the code.
        is_ours: it is no text of TVM's, whose beginning is for CUDA alone, and threads of any
            kernel may wait for each other in functions.
    """
    code = str(text)
    if not is_ours:
        code = code[code.index('extern "C" __global__') :]
    code = re.sub(r"__shared__ (alignas\(\d+\))", r"\1 static", code)
    found = list(_KERNEL.finditer(code))
    ends = [m.start() for m in found[1:]] + [len(code)]
    parts = []
    for match, end in zip(found, ends, strict=True):
        most, name = match.groups()
        meets = is_ours or any(word in code[match.end() : end] for word in _MEETS)
        parts.append(
            f'extern "C" {{ void emulated_{name}(void **given) {{ called({name}, given); }}\n'
            f"bool emulated_{name}_meets = {str(meets).lower()};\n"
            f"int emulated_{name}_most = {most or 1024};\n"
            f"int emulated_{name}_takes = number({name}); }}\n"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        source.write_text(f'#include "{HERE}/device.h"\n{code}\n{"".join(parts)}', "utf-8")
        ran = subprocess.run(
            ["g++", *_FLAGS, *_EXACT * is_ours, "-o", str(made), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"g++: {ran.stderr[:2000]}")
        data = made.read_bytes()
    return _IMAGE + bytes(4) + struct.pack("<Q", len(data)) + data
