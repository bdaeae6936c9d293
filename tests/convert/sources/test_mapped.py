"""Weights inside the model file stay there."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeinfer.convert.sources import read
from edgeinfer.errors import SourceError

W = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)


def save(path: Path, weight: onnx.TensorProto) -> Path:
    small = numpy_helper.from_array(np.arange(32, dtype=np.float32), "b")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
        [weight, small],
    )
    path.write_bytes(helper.make_model(graph, ir_version=8).SerializeToString())
    return path


def tensors(path: Path) -> dict[str, ir.TensorProtocol]:
    graph = read(path).model.graph
    return {n: v.const_value for n, v in graph.initializers.items() if v.const_value is not None}


def test_large_weights_are_mapped_and_small_ones_are_not(tmp_path: Path) -> None:
    found = tensors(save(tmp_path / "m.onnx", numpy_helper.from_array(W, "w")))
    assert isinstance(found["w"], ir.ExternalTensor)
    assert not isinstance(found["b"], ir.ExternalTensor)
    np.testing.assert_array_equal(found["w"].numpy(), W)
    np.testing.assert_array_equal(found["b"].numpy(), np.arange(32))


def test_a_hard_linked_file_is_read_instead(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", numpy_helper.from_array(W, "w"))
    os.link(path, tmp_path / "other.onnx")
    found = tensors(path)
    assert not isinstance(found["w"], ir.ExternalTensor)
    np.testing.assert_array_equal(found["w"].numpy(), W)


def test_a_symbolic_link_to_the_model_is_followed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    save(tmp_path / "store" / "blob", numpy_helper.from_array(W, "w"))
    (tmp_path / "m.onnx").symlink_to(tmp_path / "store" / "blob")
    np.testing.assert_array_equal(tensors(tmp_path / "m.onnx")["w"].numpy(), W)


def test_values_outside_raw_data_are_read(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, W.shape, W.ravel().tolist())
    assert not weight.raw_data
    np.testing.assert_array_equal(tensors(save(tmp_path / "m.onnx", weight))["w"].numpy(), W)


def test_wrong_number_of_bytes_is_refused(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(W, "w")
    weight.dims[0] = 63
    with pytest.raises(SourceError, match=r"tensor 'w': expected 8064 bytes .*received 8192"):
        read(save(tmp_path / "m.onnx", weight))
