"""Engines are imported without their telemetry."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.backends import engines
from edgeinfer.garbage import collector_paused

CODE = """
import sys
sys.addaudithook(lambda event, args: event.startswith("socket.") and sys.exit(f"{event} {args}"))
from pathlib import Path
import numpy as np
from edgeinfer.backends import registry
from edgeinfer.backends.base import LoadOptions
from edgeinfer.backends.testing import onnx_artifact
from edgeinfer.backends.testing.models import CASES

case = CASES["add"]
artifact = onnx_artifact(case.model(), Path(sys.argv[1]))
for name in ("onnxruntime", "openvino"):
    executable = registry.get(name).load(artifact, LoadOptions())
    executable.run(case.runs()[0][0])
    executable.close()
print("openvino_telemetry" in sys.modules, "openvino_telemetry.main" in sys.modules)
"""


def _run(code: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    clean = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "CI")}
    clean |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), **env}
    # OpenCL drivers of the machine, which OpenVINO asks for GPUs, keep caches of their own there.
    clean["OCL_ICD_VENDORS"] = str(folder / "none")
    clean["POCL_CACHE_DIR"] = str(folder / "pocl")
    command = [sys.executable, "-c", code, str(work)]
    return subprocess.run(command, env=clean, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_an_import_that_is_interrupted_is_not_a_missing_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal: type[BaseException]
) -> None:
    # As pybind11 tells it.
    text = f"raise ImportError('initialization failed') from {signal.__name__}()"
    (tmp_path / "onnxruntime.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    with pytest.raises(signal):
        engines.import_onnxruntime()
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('its library is missing')")
    with pytest.raises(ImportError, match="its library is missing"):
        engines.import_onnxruntime()


def test_engines_write_nothing_at_home_and_open_no_socket(tmp_path: Path) -> None:
    done = _run(CODE, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "False False\n"
    assert [p for p in (tmp_path / "home").rglob("*") if p.is_file()] == []


def test_a_choice_of_the_user_is_kept(tmp_path: Path) -> None:
    code = "from edgeinfer.backends.engines import *; import os; import_onnxruntime();"
    done = _run(
        code + "print(os.environ['ORT_DISABLE_TELEMETRY'])", tmp_path, ORT_DISABLE_TELEMETRY="0"
    )
    assert done.stdout == "0\n"


def test_openvino_telemetry_can_be_imported_afterwards(tmp_path: Path) -> None:
    code = "from edgeinfer.backends.engines import *; import_openvino(); import openvino_telemetry"
    assert _run(code, tmp_path).returncode == 0


def test_openvino_is_imported_without_its_converter_which_can_be_called(tmp_path: Path) -> None:
    code = (
        "from edgeinfer.backends.engines import *; import numpy, sys;"
        # NumPy 1.26 imports its own.
        "before = 'numpy.ma' in sys.modules; ov = import_openvino();"
        "print('openvino.tools.ovc' in sys.modules, 'numpy.ma' in sys.modules and not before);"
        "from edgeinfer.backends.testing import onnx_artifact;"
        "from edgeinfer.backends.testing.models import CASES;"
        "from pathlib import Path;"
        "made = onnx_artifact(CASES['add'].model(), Path(sys.argv[1]));"
        "print(len(ov.convert_model(str(made.path)).outputs), ov.convert_model.__module__,"
        "      'openvino_telemetry.main' in sys.modules)"
    )
    done = _run(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "False False\n1 openvino.tools.ovc.convert False\n"


def test_probe_does_not_need_the_engines(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(onnxruntime=None, openvino=None, onnx=None);"
        "sys.modules.update(ai_edge_litert=None, tflite_runtime=None, coremltools=None);"
        "sys.modules.update(tvm_ffi=None, tvm=None, coreai=None);"
        "sys.platform = 'linux';"
        "from edgeinfer.backends import registry;"
        "[print(p.backend, p.available, p.reason) for p in registry.probe_all()]"
    )
    done = _run(code, tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "onnxruntime False onnxruntime not installed; pip install 'edgeinfer[onnxruntime]'",
        "openvino False openvino not installed; pip install 'edgeinfer[openvino]'",
        "litert False litert not installed; pip install 'edgeinfer[litert]'",
        "reference False onnx not installed; pip install onnx",
        "coreml False Core ML runs on macOS; the backend coreml-reference evaluates packages",
        "coreml-reference False coremltools not installed; pip install 'edgeinfer[coreml]'",
        "onnxruntime-coreml False Core ML runs on macOS",
        "tensorrt False tensorrt not installed; JetPack brings it for the system's Python",
        "onnxruntime-tensorrt False onnxruntime not installed; "
        "pip install 'edgeinfer[onnxruntime]'",
        "coreai False coreai-core not installed; pip install 'edgeinfer[coreai]'",
        "tvm False tvm not installed; pip install 'edgeinfer[tvm]'",
        "llm True ",
    ]


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_rests_during_an_import_only(was_enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if was_enabled else gc.disable)()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_a_process_that_froze_its_imports_freezes_further_ones() -> None:
    gc.unfreeze()
    with collector_paused():
        pass
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with collector_paused():
            kept: list[list[int]] = [[] for _ in range(1000)]
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("call", "package", "other"),
    [
        ("import_tvm", "tvm", "torch"),
        ("import_coremltools", "coremltools", "torch"),
        ("import_coremltools", "coremltools", "transformers"),
        ("import_coremltools", "coremltools", "scipy"),
    ],
)
def test_packages_that_an_engine_would_only_have_been_glad_of_stay_out(
    tmp_path: Path, call: str, package: str, other: str
) -> None:
    (tmp_path / f"{other}.py").write_text("")
    (tmp_path / f"{package}.py").write_text(
        f"try:\n    import {other}\nexcept ImportError:\n    alone = True\n"
    )
    code = (
        f"from edgeinfer.backends import engines; print(engines.{call}().alone);"
        f"import {other}; print({other}.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", other]


def test_gpus_stay_out_of_tvms_compiler_until_a_machine_has_one(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    code = (
        "import sys; from edgeinfer.backends import engines; engines.leave_out_gpus_of_tvm();"
        "engines.import_tvm(); import tvm.backend;"
        "print([n for n in ('cuda', 'vulkan') if tvm.backend.is_loaded(n)], tvm.runtime.disco);"
        "engines.load_cuda_of_tvm(); print(tvm.backend.is_loaded('cuda'))"
    )
    done = _run(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[] None", "True"]
