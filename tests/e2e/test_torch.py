"""PyTorch nets: exported for both CPU engines, through the gate, and equal to PyTorch itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.types import Array

torch = pytest.importorskip("torch")
nets = pytest.importorskip("tests.zoo.nets")

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("onnxruntime", "openvino")
FORMATS = {"onnx", "openvino_ir"}
REAL = nets.PRETRAINED
RANDOM = tuple(name for name in nets.NETS if name not in REAL)

pytestmark = pytest.mark.timeout(900)


def larger(inputs: Any, dynamic: Any, by: int) -> dict[str, Any]:
    """Inputs of the same kind as the examples, every dynamic size larger, one mask row padded."""
    rng = np.random.default_rng(by)
    feeds = {}
    for name, example in inputs.items():
        axes = dynamic.get(name, {})
        shape = [size + by * (axis in axes) for axis, size in enumerate(example.shape)]
        if example.is_floating_point():
            feeds[name] = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
        elif "mask" in name:
            feeds[name] = torch.ones(shape, dtype=torch.int64)
            feeds[name][-1, shape[1] // 2 :] = 0
        else:
            feeds[name] = torch.from_numpy(rng.integers(1, 1000, shape))
    return feeds


def answers(module: Any, feeds: dict[str, Any]) -> list[Array]:
    with torch.no_grad():
        outputs = module(**feeds)
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return [output.numpy() for output in outputs]


def assert_equals_torch(path: Path, module: Any, inputs: Any, dynamic: Any) -> None:
    """Every backend gives PyTorch's numbers at two sizes, and no dynamic size was fixed."""
    with edgeinfer.Bundle.open(path) as bundle:
        manifest = bundle.manifest
    assert {variant.format for variant in manifest.variants} == FORMATS
    for spec in manifest.inputs:
        assert spec.shape is not None
        free = {axis: size for axis, size in enumerate(spec.shape) if not isinstance(size, int)}
        assert free == dynamic.get(spec.name, {})
    for backend in BACKENDS:
        with edgeinfer.load(path, backend=backend) as session:
            for by in (1, 3):
                feeds = larger(inputs, dynamic, by)
                expected = answers(module, feeds)
                got = session.run({name: value.numpy() for name, value in feeds.items()})
                for (name, array), wanted in zip(got.items(), expected, strict=True):
                    assert array.shape == wanted.shape
                    error = np.abs(array - wanted).max() / np.abs(wanted).max()
                    assert error < 1e-4, f"{backend} {name} {array.shape}: {error:.1e}"


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.models) for name in REAL),
        *(pytest.param(name, marks=pytest.mark.slow) for name in RANDOM),
    ],
)
def test_a_module(name: str, tmp_path: Path) -> None:
    module, inputs, dynamic = nets.torch_model(name)
    result = edgeinfer.export(
        module,
        tmp_path / "m.edge",
        targets=("cpu", "openvino"),
        example_inputs=inputs,
        dynamic_shapes=dynamic,
    )
    assert result.report.passed
    assert_equals_torch(result.path, module, inputs, dynamic)


@pytest.mark.models
@pytest.mark.parametrize("name", REAL)
def test_a_saved_program(name: str, tmp_path: Path) -> None:
    module, inputs, dynamic = nets.torch_model(name)
    sizes = {key: dict.fromkeys(dynamic.get(key, {}), torch.export.Dim.DYNAMIC) for key in inputs}
    # PyTorch fixes a size that is 1 in the example.
    examples = larger(inputs, dynamic, 1)
    program = torch.export.export(module, (), examples, dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "m.pt2")
    result = edgeinfer.export(
        tmp_path / "m.pt2",
        tmp_path / "m.edge",
        targets=("cpu", "openvino"),
        dynamic_shapes=dynamic,
    )
    assert result.report.passed
    assert_equals_torch(result.path, module, inputs, dynamic)


@pytest.mark.models
@pytest.mark.parametrize("name", REAL)
def test_a_callable_on_the_command_line(name: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(
        "from tests.zoo.nets import torch_model\n\n\n"
        f"def make():\n    return torch_model({name!r})\n"
    )
    command = ["convert", f"{script}:make", "-t", "cpu", "-t", "openvino", "-o", "m.edge", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "edgeinfer", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    told = json.loads(done.stdout)
    assert all(check["passed"] for check in told["checks"])
    assert_equals_torch(tmp_path / "m.edge", *nets.torch_model(name))
