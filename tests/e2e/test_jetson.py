"""A small net for each Jetson target: judged here, and of the form that TensorRT takes."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.backends.process.isolation import IN_PROCESS

NET = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 3, 16, 16] x) => (float[N, 10] y)
{
    c = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
    r = Relu(c)
    m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
    d = Conv<pads = [1, 1, 1, 1]>(m, w2, b2)
    a = Add(d, m)
    s = Relu(a)
    g = GlobalAveragePool(s)
    f = Flatten(g)
    y = Gemm(f, w3, b3)
}
"""


WEIGHTS = {
    "w1": (8, 3, 3, 3),
    "b1": (8,),
    "w2": (8, 8, 3, 3),
    "b2": (8,),
    "w3": (8, 10),
    "b3": (10,),
}


@pytest.fixture
def net(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(NET)
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        fan = max(1, int(np.prod(shape[1:])))
        values = rng.standard_normal(shape, np.float32) / np.float32(fan**0.5)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    folder = tmp_path / "samples"
    folder.mkdir()
    for index in range(16):
        np.savez(folder / f"{index}.npz", x=rng.standard_normal((1, 3, 16, 16), np.float32))
    return folder


@pytest.mark.parametrize(
    ("target", "precision", "written"),
    [
        ("jetson", "fp16", "fp16+fp32"),
        ("jetson-orin", "static_wi8_ai8", "static_wi8_ai8"),
        ("jetson-orin", "static_wi8_ai8+fp16", "static_wi8_ai8+fp16"),
        ("jetson-thor", "fp8", "fp8+fp16"),
    ],
)
def test_the_artifact_says_what_it_computes(
    net: Path,
    samples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    precision: str,
    written: str,
) -> None:
    monkeypatch.setenv(IN_PROCESS, "1")
    done = edgeinfer.export(
        net,
        f"{tmp_path}/net.edge/",
        targets=(target,),
        precision=precision,
        calibration=None if precision == "fp16" else samples,
        force=True,
    )
    (variant,) = done.manifest.variants
    assert variant.precision == written
    compilers = ["tensorrt", "onnxruntime-tensorrt"]
    assert [e.backend for e in variant.engines] == [*compilers, "onnxruntime"]
    (result,) = done.report.variants
    (said,) = [n for n in result.notes if "not run: tensorrt (gpu): " in n]
    assert "; onnxruntime-tensorrt (gpu): " in said
    assert (result.verdict, result.passed) == ("not run", True)
    model = ir.load(done.path / variant.files[0].path)
    assert model.opset_imports == {"": 21}
    pairs = [n for n in model.graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert bool(pairs) == (precision != "fp16")
    kind = ir.DataType.FLOAT8E4M3FN if precision == "fp8" else ir.DataType.INT8
    halves = precision in ("static_wi8_ai8+fp16", "fp8")
    for node in pairs:
        scale, zero = (node.inputs[i].const_value for i in (1, 2))  # type: ignore[union-attr]
        assert scale is not None
        assert zero is not None
        assert zero.dtype == kind
        assert not zero.numpy().astype(np.float32).any()
        stored = node.inputs[0]
        assert stored is not None
        if node.op_type == "QuantizeLinear":
            # Strong types: what is rounded and its scale have one.
            assert scale.dtype == (stored.dtype or ir.DataType.FLOAT), node
        elif stored.is_initializer():
            assert scale.dtype == (ir.DataType.FLOAT16 if halves else ir.DataType.FLOAT), node
    singles = [n for n in pairs if n.inputs[1].dtype == ir.DataType.FLOAT]  # type: ignore[union-attr]
    # The model's own input, and a mean, whose sum is one of single precision.
    assert not halves or len(singles) <= 3
    # A bias is never an integer: TensorRT takes none.
    assert not [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.INT32]


def test_fp8_is_for_thor_alone(net: Path, samples: Path, tmp_path: Path) -> None:
    with pytest.raises(edgeinfer.errors.UsageError, match=r"not possible on jetson-orin.*as small"):
        edgeinfer.export(
            net, tmp_path / "n.edge", targets=("jetson-orin",), precision="fp8", calibration=samples
        )


def test_targets_of_one_form_share_an_artifact_and_others_do_not(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IN_PROCESS, "1")
    targets = ("jetson", "jetson-orin", "onnxruntime")
    done = edgeinfer.export(net, tmp_path / "net.edge", targets=targets)
    files = {v.target: v.files for v in done.manifest.variants}
    assert files["jetson"] == files["jetson-orin"] != files["onnxruntime"]
