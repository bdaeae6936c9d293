"""Kernels for GPUs: compiled here without one, or refused with what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

import tvm
from tvm.s_tir.transform import LowerCrossThreadReduction

from edgeinfer.backends.testing.cases import graph
from edgeinfer.convert.lower.tvm import cuda_code
from edgeinfer.convert.lower.tvm.build import prepared
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.convert.lower.tvm.target import module_of
from edgeinfer.convert.lower.tvm.tuned import Tuning
from edgeinfer.convert.passes import normalise
from edgeinfer.errors import NotAvailableError, Remarks
from tests.convert.lower.tvm.run import lower

_ELF = b"\x7fELF\x02\x01\x01" + bytes(11)
HOST, GPU = _ELF + b"\xb7\x00", _ELF + b"\xbe\x00"


@pytest.mark.parametrize(
    ("content", "compiled"),
    [
        (HOST + b'extern "C" __global__ void k()', False),
        (HOST + HOST, False),
        (GPU, False),
        (HOST + bytes(9) + GPU, True),
        (HOST + b"\x50\xed\x55\xba", True),
    ],
)
def test_text_is_no_code(content: bytes, compiled: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(content)
    if compiled:
        cuda_code.check(path, "sm_87")
        return
    with pytest.raises(NotAvailableError, match="sm_87 were not compiled; pip install"):
        cuda_code.check(path, "sm_87")


def test_arithmetic_is_not_the_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (cuda_code._EXACT, cuda_code._OPTIONS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(cuda_code.MODE, "nvcc")
    monkeypatch.setattr(cuda_code, "_load", lambda name: None)
    cuda_code.get_ready("sm_90")
    assert os.environ[cuda_code._EXACT] == "1"
    assert "--prec-div=true" in os.environ[cuda_code._OPTIONS]
    source = Path(tvm.__file__).with_name("support") / "nvcc.py"
    # TVM's own names for it.
    assert all(n in source.read_text("utf-8") for n in (cuda_code._EXACT, cuda_code._OPTIONS))


def test_without_a_compiler_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, without: Any
) -> None:
    monkeypatch.delenv(cuda_code.MODE, raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    without("cuda", "nvidia")
    with pytest.raises(NotAvailableError, match=r"need a CUDA compiler: pip install .*tvm-cuda"):
        cuda_code.get_ready("sm_87")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "text",
    [
        "(float[2,40] x) => (int64[2,1] y) { y = ArgMax<axis=1>(x) }",
        "(float[2,9] x) => (float[2,9] y) { y = Hardmax(x) }",
        "(float[1,3,9,9] x) => (float[1,3,8,8] y) { y = LpPool<kernel_shape=[2,2]>(x) }",
        "(double[2,40] x) => (double[2,1] y) { y = ReduceLogSumExp(x, axes) }",
    ],
)
def test_what_tvms_rules_end_in_an_error_for_has_plain_loops(text: str) -> None:
    where = machine("sm_90")
    initializers = {"axes": np.array([1])} if "axes)" in text else {}
    model = normalise(ir.from_proto(graph(text, **initializers))).model
    made = module_of(model, where, Remarks()).module
    ready = prepared(made, where, Tuning(collect=True))
    with where.target():
        LowerCrossThreadReduction()(ready)
    kernels = [f for f in ready.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert kernels
    # All of a kernel's work is done by threads of the GPU.
    assert all("blockIdx.x" in kernel.script() for kernel in kernels)


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "arch"), [("sm_87", 183), ("sm_110", 183), ("sm_90", 62)])
def test_a_library_has_host_code_and_the_gpus_own(machine: str, arch: int, tmp_path: Path) -> None:
    if not shutil.which("nvcc") and not importlib.util.find_spec("cuda"):
        pytest.skip("no CUDA compiler")
    model = graph(
        "(float[4,24] x) => (float[4,10] y) { a = MatMul(x, w) y = Relu(a) }",
        w=np.ones((24, 10), np.float32),
    )
    data = lower(model, tmp_path, machine).files[0].read_bytes()
    assert int.from_bytes(data[18:20], "little") == arch
    # The GPU's own file: machine 190, and its architecture in the second byte of the flags.
    starts = [i for i in range(1, len(data)) if data.startswith(b"\x7fELF", i)]
    code = next(data[i : i + 52] for i in starts if data[i + 18 : i + 20] == b"\xbe\x00")
    assert code[49] == int(machine.removeprefix("sm_"))


def test_of_all_that_a_compiler_tells_the_errors_are_kept() -> None:
    told = (
        "#include <cstdint>\nint x;\nk.cu(12): warning #177-D: variable was never referenced\n"
        "  int y;\n      ^\n\nk.cu(20): error: expression must be an lvalue\n  f(&(0.f));\n    ^\n"
    )
    assert cuda_code.errors(told) == "k.cu(20): error: expression must be an lvalue f(&(0.f));"
    assert cuda_code.errors("out of memory") == ""
