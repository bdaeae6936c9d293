"""Bundles made here, on 64-bit Arm: Debian and the engines' own wheels, emulated.

Needs Debian's ``debootstrap`` and ``qemu-user`` 9 or newer, of bookworm-backports or trixie: under
7.2 ONNX Runtime and LiteRT crash. EDGEINFER_QEMU names another ``qemu-aarch64``. What is fetched is
kept in the user's cache. Speed under emulation says nothing; the numbers do: ``make test-arm``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from benchmarks.tiny import save
from edgeinfer.backends.process.emulator import Emulator, emulator
from edgeinfer.bundle.archive import Bundle
from edgeinfer.convert import arm_userland

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

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
from edgeinfer.machine.fingerprint import read_facts
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
def userland() -> Path:
    """A folder with an arm64 Debian and the wheels, made once."""
    return arm_userland.make()


@pytest.fixture(scope="module")
def arm(userland: Path) -> Emulator:
    """What runs Python for Arm; says what is missing where it is."""
    return emulator("aarch64", CPU)


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
    arm: Emulator, bundle: Path, backend: str, tmp_path: Path
) -> None:
    x = np.load(bundle.with_name("x.npy"))
    with edgeinfer.load(bundle, backend="openvino", measure=False) as session:
        expected = np.asarray(session(x), np.float64).ravel()
    found = _on_arm(arm, bundle, backend, tmp_path)
    assert (found["machine"], found["facts"]) == ("aarch64", "aarch64")
    assert found["vectors"] > 0
    assert found["breaches"] == []
    assert f"on {backend} " in found["report"]
    assert found["converter"] == []
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-6)


def test_a_library_of_tvm_made_here_passes_its_vectors_on_arm(
    arm: Emulator, bundle: Path, tmp_path: Path
) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.fail("the cross compiler is missing: apt-get install gcc-aarch64-linux-gnu")
    pytest.importorskip("tvm_ffi", reason="TVM is not installed")
    made = tmp_path / "tvm.edge"
    edgeinfer.export(bundle.with_name("net.onnx"), made, targets=[f"tvm-{CPU}"])
    with Bundle.open(made) as opened:
        assert [v.unverified for v in opened.manifest.variants] == [""]
    np.save(made.with_name("x.npy"), np.load(bundle.with_name("x.npy")))
    found = _on_arm(arm, made, "tvm", tmp_path)
    assert found["breaches"] == []
    assert found["vectors"] > 0
    assert "on tvm " in found["report"]
    assert not np.allclose(found["y"], found["y"][0])


def _on_arm(arm: Emulator, bundle: Path, backend: str, folder: Path) -> dict[str, Any]:
    python = folder / "python"
    # What the emulated program starts is started by this kernel, which cannot run arm64 programs.
    python.write_text(f'#!/bin/sh\nexec {shlex.join(arm.command)} "$@"\n')
    python.chmod(0o755)
    script = folder / "run.py"
    script.write_text(RUN)
    said = _call(
        *(python, script, bundle, backend, bundle.with_name("x.npy")),
        **arm.environment,
        ARM_PYTHON=str(python),
        XDG_CACHE_HOME=str(folder / "cache"),
    )
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found
