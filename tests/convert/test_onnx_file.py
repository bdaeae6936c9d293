"""One file, every weight inside, none of them held in memory."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert import onnx_file
from edgeinfer.types import Array

W = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)


def model(weight: ir.TensorProtocol) -> ir.Model:
    built = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 21]>
        g (float[n,64] x) => (float[n,32] y) <float[32] b = {0}> { y = Gemm(x, w, b) }""".replace(
            "{0}", "{" + ",".join(map(str, range(32))) + "}"
        ),
        initializers=[weight],
    )
    built.graph.initializers["w"].const_value = weight
    return built


def saved(path: Path) -> tuple[onnx.ModelProto, dict[str, Array]]:
    proto = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(proto)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    return proto, weights


def test_weights_are_inside_and_equal(tmp_path: Path) -> None:
    onnx_file.save(model(ir.tensor(W, name="w")), tmp_path / "m.onnx")
    _, weights = saved(tmp_path / "m.onnx")
    np.testing.assert_array_equal(weights["w"], W)
    np.testing.assert_array_equal(weights["b"], np.arange(32))


def test_mapped_weights_leave_their_file(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(W.tobytes())
    mapped = ir.ExternalTensor(
        "weights.bin", 0, W.nbytes, ir.DataType.FLOAT,
        shape=ir.Shape(W.shape), name="w", base_dir=tmp_path,
    )  # fmt: skip
    (tmp_path / "out").mkdir()
    onnx_file.save(model(mapped), tmp_path / "out" / "m.onnx")
    proto, weights = saved(tmp_path / "out" / "m.onnx")
    assert not any(t.external_data for t in proto.graph.initializer)
    np.testing.assert_array_equal(weights["w"], W)


def test_computed_weights_are_read_once(tmp_path: Path) -> None:
    reads = []

    def compute() -> ir.TensorProtocol:
        reads.append(1)
        return ir.tensor(W * 2, name="w")

    lazy = ir.LazyTensor(compute, dtype=ir.DataType.FLOAT, shape=ir.Shape(W.shape), name="w")
    onnx_file.save(model(lazy), tmp_path / "m.onnx")
    np.testing.assert_array_equal(saved(tmp_path / "m.onnx")[1]["w"], W * 2)
    assert len(reads) == 1


def test_same_model_gives_same_bytes(tmp_path: Path) -> None:
    given = model(ir.tensor(W, name="w"))
    for name in ("a.onnx", "b.onnx"):
        onnx_file.save(given, tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert given.graph.initializers["w"].const_value is not None
    np.testing.assert_array_equal(given.graph.initializers["w"].const_value.numpy(), W)
