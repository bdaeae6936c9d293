"""NVIDIA's libraries are opened for what could use its GPU, and for who asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest

import edgeinfer

MARKING = """
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void opened(void) { creat(getenv("MARK_" NAME), 0600); }
int nvmlInit_v2(void) { return 1; }
int cuInit(unsigned flags) { return 1; }
"""

STEPS = """
import os, sys
from edgeinfer.backends import registry
from edgeinfer.backends.base import ProbedForCpu, able
from edgeinfer.machine.fingerprint import fingerprint
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.options import ServeOptions
from edgeinfer.runtime.session import load

def serve():
    hub = Hub([sys.argv[1]], ServeOptions())
    hub.loader.load_all(hub.models.values())
    assert hub.is_ready
    hub.close()

def probe_cpus():
    engines = [registry.get(name) for name in registry.BUILT_IN]
    able_ones = [e for e in engines if able(e, ProbedForCpu)]
    assert len(able_ones) == 5
    for engine in able_ones:
        engine.probe_cpu()

for step in (
    lambda: load(sys.argv[1]).close(),
    lambda: load(sys.argv[1], device="cpu").close(),
    serve,
    probe_cpus,
    fingerprint,
    lambda: fingerprint(ask_driver=True),
    lambda: registry.get("llm").probe(),
):
    step()
    for name in ("ML", "CUDA"):
        mark = os.environ["MARK_" + name]
        print(name if os.path.exists(mark) else "-", end=" ")
        if os.path.exists(mark):
            os.unlink(mark)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the libraries are ELF files")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler is here")
def test_a_model_that_no_gpu_can_run_opens_none_of_them(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> net (float[1,4] x) => (float[1,4] y)
{ y = Relu(x) }"""
    ir.save(ir.from_onnx_text(text), tmp_path / "net.onnx")
    bundle = tmp_path / "net.edge"
    edgeinfer.export(tmp_path / "net.onnx", bundle, targets=["onnxruntime"])
    (tmp_path / "marking.c").write_text(MARKING)
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    for name, file in (("ML", "libnvidia-ml.so.1"), ("CUDA", "libcuda.so.1")):
        env[f"MARK_{name}"] = str(tmp_path / name)
        command = ["gcc", "-shared", "-fPIC", "-w", f'-DNAME="{name}"', "marking.c", "-o", file]
        subprocess.run(command, check=True, cwd=tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(bundle)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    marks = done.stdout.split()
    assert list(zip(marks[::2], marks[1::2], strict=True)) == [
        *[("-", "-")] * 5,
        ("ML", "-"),
        ("-", "CUDA"),
    ]
