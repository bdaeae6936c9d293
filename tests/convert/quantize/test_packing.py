"""Four bits are laid out as each engine's own quantizer lays them out."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.convert import passes
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.lower.target import PRECISION_KEY, Lowered
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite import weight_only
from tests.convert.quantize.conftest import graph

WEIGHT4 = "weight_only_wi4b32_afp32"
BLOCKS = Path(__file__).parent / "data" / "blockwise32.tflite"
"""A product of 64 inputs and 8 outputs, quantized by ai-edge-quantizer 0.10.0 (BLOCKWISE_32, int4,
symmetric, compute precision INTEGER) from what the lowering for TFLite wrote in float."""


def product(weights: np.ndarray) -> ir.Model:
    rows, columns = weights.shape
    return graph(
        f"""<ir_version: 10, opset_import: ["" : 24]> net (float[1,{rows}] x)
        => (float[1,{columns}] y) <float[{rows},{columns}] w> {{ y = MatMul(x, w) }}""",
        w=weights,
    )


def blockwise(steps: np.ndarray, scales: np.ndarray) -> ir.Model:
    """A product whose weights are given integers in blocks of 32."""
    rows, columns = steps.shape
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]> net (float[1,{rows}] x)
        => (float[1,{columns}] y) <int4[{rows},{columns}] w, float[{rows // 32},{columns}] s> {{
          d = DequantizeLinear<axis=0, block_size=32>(w, s)
          y = MatMul(x, d)
        }}""",
        w=steps.astype(ml_dtypes.int4),
        s=scales.astype(np.float32),
    )
    model.metadata_props[PRECISION_KEY] = WEIGHT4
    return model


def lower(model: ir.Model, target: str, format: str, folder: Path) -> Lowered:
    folder.mkdir()
    options = LowerOptions(deployment="iOS18" if format == "mlprogram" else "")
    return target_for(format).lower(model, profiles.load(target), options, folder)


@pytest.mark.parametrize("rows", [64, 100, 33])
def test_onnx_runtimes_own_packer_gives_the_same_bytes(rows: int, tmp_path: Path) -> None:
    """What ONNX Runtime makes of the graph is what its quantizer makes of the same numbers."""
    import onnxruntime
    from onnxruntime.capi._pybind_state import quantize_matmul_4bits

    weights = np.random.default_rng(rows).normal(size=(rows, 48)).astype(np.float32)
    written = weight_only.write(product(weights), recipe(WEIGHT4)).model
    rounded = next(v for v in written.graph.initializers.values() if v.dtype == ir.DataType.INT4)
    scale = next(v for v in written.graph.initializers.values() if v.dtype == ir.DataType.FLOAT)
    steps = np.asarray(rounded.const_value.numpy()).astype(np.float32)  # type: ignore[union-attr]
    wide = np.repeat(scale.const_value.numpy(), 32, axis=0)[:rows]  # type: ignore[union-attr]
    floats = np.ascontiguousarray(steps * wide)
    count = -(-rows // 32)
    packed = np.zeros((48, count, 16), np.uint8)
    scales, zeros = np.zeros(48 * count, np.float32), np.zeros(48 * ((count + 1) // 2), np.uint8)
    quantize_matmul_4bits(packed, floats, scales, zeros, 32, 48, rows, True)

    ir.save(written, tmp_path / "in.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "out.onnx")
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.graph_optimization_level = level
    onnxruntime.InferenceSession(tmp_path / "in.onnx", options, providers=["CPUExecutionProvider"])
    fused = next(n for n in ir.load(tmp_path / "out.onnx").graph if n.op_type == "MatMulNBits")
    ours, our_scales = (fused.inputs[i].const_value.numpy() for i in (1, 2))  # type: ignore[union-attr]
    np.testing.assert_array_equal(our_scales.ravel(), scales)
    filled = np.arange(count * 32).reshape(count, 16, 2) < rows
    mask = (filled[..., 0] * 0x0F + filled[..., 1] * 0xF0).astype(np.uint8)
    # What fills up the last block is multiplied with nothing.
    np.testing.assert_array_equal(ours & mask, packed & mask)


def _blockwise(path: Path) -> tuple[bytes, np.ndarray, int]:
    """Return the packed bytes, the scales and the block size of the one tensor that has blocks."""
    from edgeinfer.convert.lower.tflite.writer import schema

    s: Any = schema()
    model = s.ModelT.InitFromObj(s.Model.GetRootAs(path.read_bytes(), 0))
    tensors = model.subgraphs[0].tensors
    (weights,) = (t for t in tensors if t.type == s.TensorType.INT4)
    details = weights.quantization.details
    scales = tensors[details.scales]
    assert scales.type == s.TensorType.FLOAT16
    assert details.zeroPoints == -1
    raw = bytes(model.buffers[scales.buffer].data)
    numbers = np.frombuffer(raw, np.float16).reshape(list(scales.shape))
    return bytes(model.buffers[weights.buffer].data), numbers, details.blockSize


def test_tflites_blocks_are_ai_edge_quantizers(tmp_path: Path) -> None:
    """Its integers and scales, written by our lowering, are the same bytes in the same places."""
    packed, scales, block = _blockwise(BLOCKS)
    halves = np.frombuffer(packed, np.uint8)
    unsigned = np.stack([halves & 15, halves >> 4], axis=-1).reshape(8, 64)
    steps = np.where(unsigned > 7, unsigned.astype(np.int8) - 16, unsigned).astype(np.int8)
    model = blockwise(steps.T, scales.T)
    made = lower(model, "rpi4", "tflite", tmp_path / "out")
    ours, our_scales, our_block = _blockwise(made.files[0])
    assert our_block == block == 32
    assert ours == packed
    np.testing.assert_array_equal(our_scales, scales)


@pytest.mark.slow
def test_core_mls_blocks_are_coremltools(tmp_path: Path) -> None:
    """coremltools' integers and scales, written by our lowering, are read back as they were."""
    ct = pytest.importorskip("coremltools")
    import coremltools.optimize.coreml as cto
    from coremltools.converters.mil.frontend.milproto.load import load

    rng = np.random.default_rng(0)
    weights = rng.normal(size=(64, 32)).astype(np.float32)
    model = passes.normalise(product(weights)).model

    def package(made: Lowered) -> Any:
        root = next(p for p in (made.files[0], *made.files[0].parents) if p.suffix == ".mlpackage")
        return ct.models.MLModel(str(root), skip_model_load=True)

    def blocks(package: Any) -> tuple[np.ndarray, np.ndarray]:
        spec = package.get_spec()
        version, folder = spec.specificationVersion, package.weights_dir
        program = load(spec, specification_version=version, file_weights_dir=folder)
        (op,) = (
            op
            for op in program.functions["main"].operations
            if op.op_type == "constexpr_blockwise_shift_scale"
        )
        return np.asarray(op.inputs["data"].val).astype(int), np.asarray(op.inputs["scale"].val)

    asked = cto.OpLinearQuantizerConfig(
        mode="linear_symmetric",
        dtype="int4",
        granularity="per_block",
        block_size=32,
        weight_threshold=0,
    )
    floats = package(lower(model, "ios", "mlprogram", tmp_path / "float"))
    config = cto.OptimizationConfig(global_config=asked)
    theirs, their_scale = blocks(cto.linear_quantize_weights(floats, config))
    # A linear layer of Core ML has its weights the other way round than a product.
    assert theirs.shape == (32, 64)
    written = blockwise(theirs.T, their_scale.T)
    ours, our_scale = blocks(package(lower(written, "ios", "mlprogram", tmp_path / "int")))
    turned = ours.shape != theirs.shape
    np.testing.assert_array_equal(ours.T if turned else ours, theirs)
    np.testing.assert_array_equal(our_scale.T if turned else our_scale, their_scale)
