"""What a device gets: one engine, the runtime, and nothing of the converter.

Installs wheels from the package registry into fresh environments: ``make test-install``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import httpx
import numpy as np
import pytest

import edgeinfer
from benchmarks.tiny import save
from release.runtime_wheel import build
from tests.runtime.serve.test_resources import free_port, is_ready

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENGINES = {"onnxruntime": "cpu", "openvino": "openvino", "litert": "rpi4"}

NET = """
<ir_version: 10, opset_import: ["": 21]>
net (float[1,3,8,8] x, float[8,3,3,3] w, float[8] b, float[8,10] d) => (float[1,10] y) {
    c = Conv<pads=[1,1,1,1]>(x, w, b)
    r = Relu(c)
    g = GlobalAveragePool(r)
    f = Flatten(g)
    y = MatMul(f, d)
}
"""

RUN = """
import json, sys
import numpy as np
import edgeinfer
session = edgeinfer.load(sys.argv[1])
found = session.verify()
x = np.load(sys.argv[2])
y = session(x)
print(json.dumps({
    "backend": session.report().backend,
    "passed": found.passed,
    "vectors": len(found.vectors),
    "y": np.asarray(y, np.float64).ravel().tolist(),
    "modules": sorted({name.split(".")[0] for name in sys.modules}),
    "convert": [name for name in sys.modules if name.startswith("edgeinfer.convert")],
}))
"""


def _call(*command: object, fails: int = 0) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == fails, done.stderr[-2000:]
    return done.stdout if not fails else done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
def test_one_engine_is_enough(engine: str, wheel: Path, tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    save(NET, source)
    bundle = tmp_path / "net.edge"
    edgeinfer.export(source, bundle, targets=[ENGINES[engine]])
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)
    np.save(tmp_path / "x.npy", x)
    with edgeinfer.load(bundle) as session:
        expected = np.asarray(session(x), np.float64).ravel()

    _call(sys.executable, "-m", "venv", tmp_path / "v")
    python = tmp_path / "v" / "bin" / "python"
    _call(python, "-m", "pip", "install", "-q", f"{wheel}[{engine}]")
    found = json.loads(_call(python, "-I", "-c", RUN, bundle, tmp_path / "x.npy"))

    assert found["backend"] == engine
    assert found["passed"]
    assert found["vectors"] > 0
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-5)
    assert found["convert"] == []
    assert not {"onnx", "onnx_ir", "jinja2", "torch"} & set(found["modules"])
    installed = {p["name"] for p in json.loads(_call(python, "-m", "pip", "list", "--format=json"))}
    assert not {"onnx", "onnx-ir", "onnx_ir", "Jinja2", "jinja2"} & installed

    command = tmp_path / "v" / "bin" / "edgeinfer"
    _call(command, "verify", bundle)
    said = _call(command, *("convert", source, "-t", "cpu", "-o", tmp_path / "other.edge"), fails=3)
    assert "pip install 'edgeinfer[convert]'" in said
    assert "Traceback" not in said
    assert not (tmp_path / "other.edge").exists()


@pytest.mark.timeout(600)
def test_numpy_and_one_engine_are_enough_in_python(wheel: Path, tmp_path: Path) -> None:
    """Nothing else is installed, not even what the command line is made of."""
    source, bundle = tmp_path / "net.onnx", tmp_path / "net.edge"
    save(NET, source)
    edgeinfer.export(source, bundle, targets=["rpi4"])
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)
    np.save(tmp_path / "x.npy", x)
    _call(sys.executable, "-m", "venv", tmp_path / "v")
    python, command = (tmp_path / "v" / "bin" / name for name in ("python", "edgeinfer"))
    _call(python, "-m", "pip", "install", "-q", "numpy", "ai-edge-litert")
    _call(python, "-m", "pip", "install", "-q", "--no-deps", wheel)
    found = json.loads(_call(python, "-I", "-c", RUN, bundle, tmp_path / "x.npy"))
    assert (found["backend"], found["passed"]) == ("litert", True)
    own = {"click", "rich", "packaging", "platformdirs", "onnx"}
    assert not own & set(found["modules"])
    installed = {p["name"] for p in json.loads(_call(python, "-m", "pip", "list", "--format=json"))}
    assert not own & installed
    said = _call(command, "devices", fails=3)
    assert said.startswith("edgeinfer: the command line needs click: ")
    assert said.count("\n") == 1


def _python(version: str) -> str | None:
    """Return an interpreter of a version; a shim may be there without one."""
    homes = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for name in filter(shutil.which, (f"python{version}", *map(str, homes))):
        if subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0:
            return name
    return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize(("device", "target"), [("pi", "rpi5"), ("nuc", "openvino")])
def test_the_line_of_a_device(device: str, target: str, version: str, tmp_path: Path) -> None:
    """The wheel of the runtime, on every Python that a device may have and that is here."""
    python = _python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    source, bundle = tmp_path / "net.onnx", tmp_path / "net.edge"
    save(NET, source)
    edgeinfer.export(source, bundle, targets=[target])
    made = build(tmp_path / "dist")
    _call(python, "-m", "venv", tmp_path / "v")
    inside, command = (tmp_path / "v" / "bin" / name for name in ("python", "edgeinfer"))
    _call(inside, "-m", "pip", "install", "-q", f"{made}[{device}]")
    assert "all within budget" in _call(command, "verify", bundle)
    assert "would run" in _call(command, "doctor", bundle)
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    _call(command, "run", bundle, tmp_path / "x.npy")
    said = _call(command, "convert", source, "-t", "cpu", fails=3)
    assert said.startswith("edgeinfer: edgeinfer-runtime runs bundles and converts nothing")


@pytest.mark.timeout(900)
def test_a_device_serves(tmp_path: Path) -> None:
    """The runtime alone, over HTTP and gRPC: ready, an answer, its counters, and a good end."""
    source, bundle, port = tmp_path / "net.onnx", tmp_path / "net.edge", free_port()
    save(NET, source)
    edgeinfer.export(source, bundle, targets=["rpi5"])
    made = build(tmp_path / "dist")
    _call(sys.executable, "-m", "venv", tmp_path / "v")
    inside, command = (tmp_path / "v" / "bin" / name for name in ("python", "edgeinfer"))
    _call(inside, "-m", "pip", "install", "-q", f"{made}[litert,serve]")
    ports = ("--port", str(port), "--grpc-port", str(free_port()))
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen([command, "serve", bundle, *ports], env=alone) as server:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                while not is_ready(client, "/v2/health/ready"):
                    assert server.poll() is None
                    time.sleep(0.1)
                x = {"name": "x", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": [0.5] * 192}
                found = client.post("/v2/models/net/infer", json={"inputs": [x]})
                assert found.status_code == 200
                assert found.json()["outputs"][0]["shape"] == [1, 10]
                assert "edgeinfer_requests_total" in client.get("/metrics").text
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 128 + signal.SIGTERM


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_line_of_a_jetson(version: str, tmp_path: Path) -> None:
    """The engine is JetPack's, which is not here: that is said, and nothing else fails."""
    python = _python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    source, bundle = tmp_path / "net.onnx", tmp_path / "net.edge"
    save(NET, source)
    edgeinfer.export(source, bundle, targets=["jetson"])
    made = build(tmp_path / "dist")
    _call(python, "-m", "venv", tmp_path / "v")
    inside, command = (tmp_path / "v" / "bin" / name for name in ("python", "edgeinfer"))
    _call(inside, "-m", "pip", "install", "-q", f"{made}[jetson]")
    for arguments in (("run", bundle, tmp_path / "x.npy"), ("build", bundle)):
        np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
        said = _call(command, *arguments, fails=3)
        assert "tensorrt not installed; JetPack brings it for the system's Python" in said
        assert "Traceback" not in said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_line_of_a_mac_resolves(version: str, tmp_path: Path) -> None:
    """Every package has a wheel for Macs with Apple's chips; nothing is installed."""
    made = build(tmp_path / "dist")
    wanted = ("--platform", "macosx_14_0_arm64", "--python-version", version, "--only-binary=:all:")
    report = tmp_path / "report.json"
    _call(
        *(sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"),
        *("--target", tmp_path / "t", "--report", report, *wanted, f"{made}[mac]"),
    )
    found = json.loads(report.read_text())["install"]
    files = {p["metadata"]["name"]: p["download_info"]["url"].rpartition("/")[2] for p in found}
    for name in ("coremltools", "onnxruntime", "numpy", "pillow", "soxr"):
        assert "macosx" in files[name], files[name]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_line_that_converts(version: str, wheel: Path, tmp_path: Path) -> None:
    """For every device of README's table, on every Python that it names and that is here."""
    python = _python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    source, bundle = tmp_path / "net.onnx", tmp_path / "net.edge"
    save(NET, source)
    _call(python, "-m", "venv", tmp_path / "v")
    inside, command = (tmp_path / "v" / "bin" / name for name in ("python", "edgeinfer"))
    _call(inside, "-m", "pip", "install", "-q", f"{wheel}[convert]")
    targets = ("cpu", "openvino", "rpi5", "ios", "android", "jetson")
    _call(command, "convert", source, *(f"-t{t}" for t in targets), "-o", bundle)
    assert "all within budget" in _call(command, "verify", bundle)
    for suffix, target in ((".tflite", "rpi5"), (".mlpackage", "ios"), (".onnx", "onnxruntime")):
        _call(command, "convert", source, "-t", target, "-o", tmp_path / f"app{suffix}")
        assert (tmp_path / f"app{suffix}").exists()


COMMANDS = re.findall(r"`(edgeinfer convert model\.onnx [^`]*)`", (ROOT / "README.md").read_text())


def test_readme_has_a_conversion_for_each_device() -> None:
    assert len(COMMANDS) == 6


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_conversion_of_readme_ends_with_what_the_device_takes(
    command: str, tmp_path: Path
) -> None:
    save(NET, tmp_path / "model.onnx")
    _, *arguments = shlex.split(command)
    run = (sys.executable, "-m", "edgeinfer")
    done = subprocess.run([*run, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    made = tmp_path / arguments[-1]
    assert made.exists()
    if made.suffix == ".edge":
        assert "all within budget" in _call(*run, "verify", made)


@pytest.mark.timeout(600)
def test_apple_is_enough_to_convert_for_apple(wheel: Path, tmp_path: Path) -> None:
    source, bundle = tmp_path / "net.onnx", tmp_path / "net.edge"
    save(NET, source)
    _call(sys.executable, "-m", "venv", tmp_path / "v")
    python, command = (tmp_path / "v" / "bin" / name for name in ("python", "edgeinfer"))
    _call(python, "-m", "pip", "install", "-q", f"{wheel}[apple]")
    installed = {p["name"] for p in json.loads(_call(python, "-m", "pip", "list", "--format=json"))}
    assert "coremltools" in installed
    assert "onnxruntime" not in installed

    for precision in ("fp32", "fp16"):
        _call(command, *("convert", source, "-t", "ios", "-o", bundle, "--precision", precision))
        _call(command, "verify", bundle)
        with zipfile.ZipFile(bundle) as opened:
            oracles = json.loads(opened.read("report.json"))["oracles"]
        assert oracles["confirmed"] == oracles["asked"] > 0
        bundle.unlink()
    said = _call(command, *("convert", source, "-t", "cpu", "-o", bundle), fails=3)
    assert "onnxruntime" in said
    assert "Traceback" not in said
