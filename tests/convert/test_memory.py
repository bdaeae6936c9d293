"""Giving memory back must never disturb who still reads."""

from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.memory import release_memory


def test_mapped_weights_are_let_go_of_and_read_again(tmp_path: Path) -> None:
    w = np.arange(2048, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(w.tobytes())
    tensor = ir.ExternalTensor(
        "w.bin", 0, w.nbytes, ir.DataType.FLOAT, shape=ir.Shape(w.shape), name="w",
        base_dir=tmp_path,
    )  # fmt: skip
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2048] x) => (float[2048] y)'
        " { y = Add(x, w) }",
        initializers=[tensor],
    )
    held = tensor.numpy()
    release_memory(model)
    np.testing.assert_array_equal(held, w)
    np.testing.assert_array_equal(tensor.numpy(), w)
    del held
    release_memory(model)
    np.testing.assert_array_equal(tensor.numpy(), w)
