"""Bundles made here, on 64-bit Arm: Debian and the engines' own wheels, emulated.

Needs Debian's ``debootstrap`` and ``qemu-user`` 9 or newer, of bookworm-backports or trixie: under
7.2 ONNX Runtime and LiteRT crash. EDGEINFER_QEMU names another ``qemu-aarch64``. What is fetched is
kept in the user's cache. Speed under emulation says nothing; the numbers do: ``make test-arm``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest

import edgeinfer
from benchmarks.tiny import save
from edgeinfer.errors import EdgeInferError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
WHEELS = (
    *("numpy", "click", "rich", "platformdirs", "packaging"),
    *("onnxruntime", "openvino", "ai-edge-litert"),
)
TVM_WHEELS = ("apache-tvm", "apache-tvm-ffi")
PLATFORMS = (
    "manylinux_2_35",
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_17",
    "manylinux2014",
)
CPU = "cortex-a76"

NET = """
<ir_version: 10, opset_import: ["": 21]>
net (float[1,3,8,8] x, float[8,3,3,3] w, float[8] b, float[8,10] d) => (float[1,10] y) {
    c = Conv<pads=[1,1,1,1]>(x, w, b)
    r = Relu(c)
    g = GlobalAveragePool(r)
    f = Flatten(g)
    h = MatMul(f, d)
    y = Softmax<axis=-1>(h)
}
"""

RUN = """
import json, os, platform, sys
sys.executable = os.environ["ARM_PYTHON"]
import numpy as np
import edgeinfer
from edgeinfer.runtime.devices import read_facts
found = {}
with edgeinfer.load(sys.argv[1], backend=sys.argv[2], measure=False) as session:
    checked = session.verify()
    found["report"] = str(session.report())
    found["vectors"] = len(checked.vectors)
    found["breaches"] = [b for v in checked.vectors for b in v.breaches]
    found["y"] = np.asarray(session(np.load(sys.argv[3])), np.float64).ravel().tolist()
found["machine"] = platform.machine()
found["facts"] = read_facts().arch
found["converter"] = [n for n in sys.modules if n.startswith("edgeinfer.convert")]
print(json.dumps(found))
"""


def _call(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{command[0]}: {done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def emulator() -> str:
    """The path of an emulator that the engines run under."""
    names = (os.environ.get("EDGEINFER_QEMU", "qemu-aarch64"), "qemu-aarch64-static")
    for path in filter(None, map(shutil.which, names)):
        found = re.search(r"version (\d+)", _call(path, "--version"))
        if found and int(found[1]) >= 9:
            return path
    pytest.fail("needs qemu-user 9 or newer: apt-get install -t bookworm-backports qemu-user")


@pytest.fixture(scope="module")
def userland() -> Path:
    """A folder with an arm64 Debian and the wheels, made once."""
    for tool in ("debootstrap", "dpkg"):
        if shutil.which(tool) is None and not Path("/usr/sbin", tool).exists():
            pytest.fail(f"{tool} is missing: apt-get install debootstrap")
    folder = Path(platformdirs.user_cache_dir("edgeinfer-arm"))
    root, site = folder / "root", folder / "site"
    if not (root / "usr/bin/python3.11").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(root, ignore_errors=True)
        packages = "--include=python3,libgomp1,libstdc++6"
        options = ("--arch=arm64", "--foreign", "--variant=minbase", packages)
        _call("debootstrap", *options, "bookworm", root, PATH=f"{os.environ['PATH']}:/usr/sbin")
        for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
            _call("dpkg", "-x", package, root)
    if not (site / ".complete").exists():
        shutil.rmtree(site, ignore_errors=True)
        platforms = [x for name in PLATFORMS for x in ("--platform", f"{name}_aarch64")]
        only = ("--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp")
        pip = (sys.executable, "-m", "pip", "install", "-q", "--target", site)
        _call(*pip, *only, *platforms, *WHEELS)
        # The compiler's own dependencies stay away: the runtime needs none of them.
        _call(*pip, "--no-deps", *only, *platforms, *TVM_WHEELS)
        (site / ".complete").touch()
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model for a Pi's LiteRT, for OpenVINO and, where TVM can compile, for a Cortex-A76."""
    folder = tmp_path_factory.mktemp("arm")
    save(NET, folder / "net.onnx")
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.standard_normal((1, 3, 8, 8), np.float32))
    targets = ["onnxruntime", "openvino", "rpi5"]
    edgeinfer.export(folder / "net.onnx", folder / "net.edge", targets=targets)
    return folder / "net.edge"


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert"])
def test_a_bundle_passes_its_vectors_on_arm(
    emulator: str, userland: Path, bundle: Path, backend: str, tmp_path: Path
) -> None:
    x = np.load(bundle.with_name("x.npy"))
    with edgeinfer.load(bundle, backend="openvino", measure=False) as session:
        expected = np.asarray(session(x), np.float64).ravel()
    found = _on_arm(emulator, userland, bundle, backend, tmp_path)
    assert (found["machine"], found["facts"]) == ("aarch64", "aarch64")
    assert found["vectors"] > 0
    assert found["breaches"] == []
    assert f"on {backend} " in found["report"]
    assert found["converter"] == []
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.xfail(
    reason="the gate cannot run a library for another processor, so convert refuses it",
    raises=EdgeInferError,
)
def test_a_library_of_tvm_made_here_passes_its_vectors_on_arm(
    emulator: str, userland: Path, bundle: Path, tmp_path: Path
) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.fail("the cross compiler is missing: apt-get install gcc-aarch64-linux-gnu")
    pytest.importorskip("tvm_ffi", reason="TVM is not installed")
    made = tmp_path / "tvm.edge"
    edgeinfer.export(bundle.with_name("net.onnx"), made, targets=[f"tvm-{CPU}"])
    found = _on_arm(emulator, userland, made, "tvm", tmp_path)
    assert found["breaches"] == []
    assert found["vectors"] > 0


def _on_arm(
    emulator: str, userland: Path, bundle: Path, backend: str, folder: Path
) -> dict[str, Any]:
    root, site = userland / "root", userland / "site"
    python = folder / "python"
    # What the emulated program starts is started by this kernel, which cannot run arm64 programs.
    command = f'exec {emulator} -cpu {CPU} -L {root} {root}/usr/bin/python3.11 "$@"'
    python.write_text(f"#!/bin/sh\n{command}\n")
    python.chmod(0o755)
    script = folder / "run.py"
    script.write_text(RUN)
    cache = folder / "cache"
    said = _call(
        *(python, script, bundle, backend, bundle.with_name("x.npy")),
        PYTHONPATH=f"{site}:{ROOT / 'src'}",
        PYTHONDONTWRITEBYTECODE="1",
        ARM_PYTHON=str(python),
        XDG_CACHE_HOME=str(cache),
    )
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found
