"""In which precision each layer of a written artifact really computes."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgeinfer.backends.engines import import_coremltools, import_onnxruntime, import_openvino
from edgeinfer.errors import LoadError
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class EngineKernel:
    """One kernel as the engine runs it.

    Attributes:
        name: the engine's name for it.
        op: the engine's name for the operator.
        precision: type of its activations: ``int8``, ``int16``, ``fp32``, ``fp16``.
        weights: type its weights are stored in, or how they are packed, as in a recipe's name
            (``p4``, ``s``); empty without weights.
        zeros: share of the weights that is zero and not stored.
    """

    name: str
    op: str
    precision: str
    weights: str = ""
    zeros: float = 0.0


def layers(path: Path, format: str) -> tuple[EngineKernel, ...]:
    """List the kernels that the engine makes of an artifact, in its order.

    Raises:
        NotAvailableError: the engine is not installed.
        LoadError: it refuses the artifact.
    """
    readers = {"onnx": _onnxruntime, "openvino_ir": _openvino, "tflite": _tflite}
    reader = {**readers, "mlprogram": _mlprogram}.get(format)
    return reader(path) if reader is not None else ()


@contextmanager
def _may_refuse(engine: str, path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise LoadError(f"{engine} refuses {path}: {why}") from error


def precision_name(found: tuple[EngineKernel, ...], floats: str = "fp32") -> str:
    """Name a precision by what was found in the layers with weights, as recipes are named.

    A mixture joins its parts: ``static_wi8_ai8+fp32``.

    Args:
        found: every layer.
        floats: types of all floats in the artifact; half precision next to integers is named.
    """
    names = {_recipe_of(layer) for layer in found if layer.weights}
    scaled = any(n.startswith("static_") or n == "fp8" for n in names)
    if "fp16" in floats.split("+") and scaled:
        names.add("fp16")
    order = (
        *("weight_only_wi4b32_afp32", "weight_only_wi4b32_afp16", "static_wi8_ai8"),
        *("dynamic_wi8_afp32", "static_wi8_ai16", "weight_only_wi8_afp32"),
        *("weight_only_wi8_afp16", "fp8", "fp16", "fp32"),
    )
    packed = sorted(names - set(order))
    return "+".join((*packed, *(n for n in order if n in names))) or "fp32"


def _recipe_of(layer: EngineKernel) -> str:
    rest = "afp16" if layer.precision == "fp16" else "afp32"
    if layer.weights == "int4":
        return f"weight_only_wi4b32_{rest}"
    if layer.weights == "int8":
        kinds = {"int8": "static_wi8_ai8", "int16": "static_wi8_ai16"}
        kinds["dynamic"] = "dynamic_wi8_afp32"
        return kinds.get(layer.precision, f"weight_only_wi8_{rest}")
    if layer.weights == "fp8":
        return "fp8"
    if layer.weights[:1] in ("p", "s"):
        return f"weight_only_w{layer.weights}_{rest}"
    return "fp16" if layer.weights == "fp16" else "fp32"


def to_json(layer: EngineKernel) -> dict[str, Any]:
    """Return JSON-ready data."""
    row = {"name": layer.name, "op": layer.op, "precision": layer.precision}
    share = {"zeros": round(layer.zeros, 4)} if layer.zeros else {}
    return {**row, "weights": layer.weights, **share}


def counts(found: tuple[EngineKernel, ...]) -> dict[str, int]:
    """Count the layers with weights by ``activations/weights``."""
    return dict(sorted(Counter(f"{y.precision}/{y.weights}" for y in found if y.weights).items()))


def _mlprogram(path: Path) -> tuple[EngineKernel, ...]:
    """Read the package: which unit computes an operator is decided on the device."""
    from edgeinfer.convert.lower.coreml.readback import weighted

    import_coremltools()
    rows = weighted(path.parent)
    return tuple(EngineKernel(w.name, w.op, w.activations, w.stored, w.zeros) for w in rows)


_ONNX_TYPES = {
    ir.DataType.INT8: "int8",
    ir.DataType.UINT8: "int8",
    ir.DataType.INT16: "int16",
    ir.DataType.UINT16: "int16",
    ir.DataType.FLOAT8E4M3FN: "fp8",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.FLOAT: "fp32",
}
_WEIGHTS_AT = {
    **{"Conv": 1, "FusedConv": 1, "ConvTranspose": 1, "Gemm": 1, "FusedGemm": 1, "MatMul": 1},
    **{"FusedMatMul": 1, "QLinearConv": 3, "QLinearMatMul": 3, "QGemm": 3, "MatMulNBits": 1},
    **{"MatMulIntegerToFloat": 1, "MatMulInteger": 1, "DynamicQuantizeMatMul": 1},
    **{"ConvInteger": 1, "QAttention": 1, "DynamicQuantizeLSTM": 1, "LSTM": 1, "GRU": 1, "RNN": 1},
}
_INTEGER_OPS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat"})
_DYNAMIC_OPS = frozenset({"DynamicQuantizeMatMul", "MatMulInteger", "ConvInteger"})
_DYNAMIC_OPS |= frozenset({"DynamicQuantizeLSTM"})


def _typed(model: ir.Model) -> tuple[EngineKernel, ...]:
    """Read the types of a file that is compiled as it stands."""
    found = []
    for node in model.graph:
        at = _WEIGHTS_AT.get(node.op_type)
        if at is None or at >= len(node.inputs):
            continue
        stored = _stored_type(node.inputs[at])
        rounded = _rounded_type(node.inputs[0])
        # Weights alone are made floats again: the product is one of floats.
        kind = rounded if rounded == stored else _float_type(node)
        found.append(EngineKernel(node.name or "", node.op_type, kind, stored))
    return tuple(found)


def _rounded_type(value: ir.Value | None) -> str:
    """Return the type that an operand was rounded to; empty where it was not."""
    maker = value.producer() if value is not None else None
    if maker is None or maker.op_type != "DequantizeLinear":
        return ""
    point = maker.inputs[2] if len(maker.inputs) > 2 else None
    return "" if point is None or point.dtype is None else _ONNX_TYPES.get(point.dtype, "")


def _float_type(node: ir.Node) -> str:
    kinds = (v.dtype for v in (*node.inputs, *node.outputs) if v is not None and v.dtype)
    return next((_ONNX_TYPES[k] for k in kinds if k.is_floating_point() and k in _ONNX_TYPES), "")


def _onnxruntime(path: Path) -> tuple[EngineKernel, ...]:
    """Open the file with all optimisation and read what the engine made of it."""
    from edgeinfer.convert.lower.onnxruntime.typed import TYPED_KEY

    source = ir.load(path)
    if TYPED_KEY in source.metadata_props:
        return _typed(source)
    ort = import_onnxruntime()
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        written = Path(folder) / "optimised.onnx"
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.optimized_model_filepath = str(written)
        # Layouts that only the machine at hand wants would hide what the operators were.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        with _may_refuse("onnxruntime", path):
            ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        model = ir.load(written)
        return tuple(_onnx_layer(n) for g in model.graphs() for n in g)


def _onnx_layer(node: ir.Node) -> EngineKernel:
    at = _WEIGHTS_AT.get(node.op_type)
    value = node.inputs[at] if at is not None and at < len(node.inputs) else None
    stored = _stored_type(value)
    if node.op_type == "MatMulNBits" and stored:
        bits = node.attributes.get("bits")
        stored = "int4" if bits is None or bits.as_int() == 4 else "int8"
    result = next((v for v in node.outputs if v.name), None)
    kind = _ONNX_TYPES.get(result.dtype, "") if result is not None and result.dtype else ""
    if node.op_type in _INTEGER_OPS:
        kind = "int8"
    elif node.op_type in _DYNAMIC_OPS:
        kind = "dynamic"
    elif node.op_type == "MatMulNBits":
        kind = "fp32"
    elif _is_fake(node, at):
        # Rounded before and after, computed in float between: no integer kernel was found.
        kind = "fp32"
    return EngineKernel(node.name or "", node.op_type, kind, stored)


def _is_fake(node: ir.Node, at: int | None) -> bool:
    return at is not None and node.op_type not in _INTEGER_OPS | _DYNAMIC_OPS


def _stored_type(value: ir.Value | None) -> str:
    """Return the type that weights are stored in, seen through their dequantization."""
    for _ in range(3):
        if value is None:
            return ""
        if value.const_value is not None:
            dtype = value.const_value.dtype
            narrow = {ir.DataType.INT4: "int4", ir.DataType.UINT4: "int4"}
            return narrow.get(dtype) or _ONNX_TYPES.get(dtype, "")
        maker = value.producer()
        known = ("DequantizeLinear", "Cast", "Transpose")
        value = maker.inputs[0] if maker is not None and maker.op_type in known else None
    return ""


_OPENVINO_TYPES = {"i8": "int8", "u8": "int8", "f32": "fp32", "f16": "fp16", "bf16": "bf16"}
_OPENVINO_TYPES |= {"i4": "int4", "u4": "int4"}
_OPENVINO_WEIGHTED = frozenset({"Convolution", "FullyConnected", "MatMul", "Deconvolution"})
_OPENVINO_WEIGHTED |= frozenset({"GroupConvolution", "Gemm"})


def _openvino(path: Path) -> tuple[EngineKernel, ...]:
    """Compile the file and read the plan that the plugin executes."""
    openvino = import_openvino()
    core = openvino.Core()
    source = core.read_model(str(path))
    narrow = _stored_narrow(source)
    with _may_refuse("openvino", path):
        compiled = core.compile_model(source, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = []
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = {k: _text(op, k) for k in ("layerType", "runtimePrecision", "originalLayersNames")}
        kind = _OPENVINO_TYPES.get(info["runtimePrecision"].lower(), info["runtimePrecision"])
        weighted = info["layerType"] in _OPENVINO_WEIGHTED and len(op.inputs()) > 1
        stored = _input_type(op, 1) if weighted else ""
        if weighted:
            # The plan's own word is that of the narrowest operand, weights included.
            kind = _input_type(op, 0)
            if stored not in _NARROW:
                stored = _made_of(op.input_value(1).get_node(), narrow) or stored
        found.append(EngineKernel(op.get_friendly_name(), info["layerType"], kind, stored))
    return (*found, *_openvino_bodies(source))


_OPENVINO_SOURCE = frozenset({"Convolution", "GroupConvolution", "MatMul"})
_OPENVINO_SOURCE |= frozenset({"ConvolutionBackpropData", "GroupConvolutionBackpropData"})


def _openvino_bodies(model: Any, *, inside: bool = False) -> Iterator[EngineKernel]:
    """List the layers in bodies, which the plan does not show, as they are written."""
    for op in model.get_ordered_ops():
        kind = op.get_type_name()
        if kind in ("If", "Loop", "TensorIterator"):
            parts = [op.get_function(i) for i in (0, 1)] if kind == "If" else [op.get_function()]
            for part in parts:
                yield from _openvino_bodies(part, inside=True)
        if not inside or kind not in _OPENVINO_SOURCE:
            continue
        node = op.input_value(1).get_node()
        while node.get_type_name() in _BETWEEN:
            node = node.input_value(0).get_node()
        if node.get_type_name() == "Constant":
            stored = str(node.get_output_element_type(0).get_type_name())
            stored = _OPENVINO_TYPES.get(stored, stored)
            yield EngineKernel(op.get_friendly_name(), kind, _input_type(op, 0), stored)


_NARROW = frozenset({"int8", "int4"})
_BETWEEN = frozenset({"Convert", "Subtract", "Multiply", "Reshape", "Transpose", "FakeQuantize"})
_MAKING = frozenset({"Convert", "Eltwise", "Subgraph", "Transpose", "Reshape", "Reorder"})


def _stored_narrow(source: Any) -> dict[str, str]:
    """Return the types of stored integers, by the name of what makes floats of them."""
    found = {}
    for op in source.get_ordered_ops():
        if op.get_type_name() not in _BETWEEN:
            continue
        node = op
        while node.get_type_name() in _BETWEEN:
            node = node.input_value(0).get_node()
        kind = _OPENVINO_TYPES.get(str(node.get_output_element_type(0).get_type_name()), "")
        if node.get_type_name() == "Constant" and kind in _NARROW:
            found[op.get_friendly_name()] = kind
    return found


def _made_of(node: Any, narrow: Mapping[str, str]) -> str:
    """Return the type of the integers that a plan makes weights of.

    Products with weights of many axes do it in each run; convolutions have the floats as constants,
    made when the file was opened.
    """
    while _text(node, "layerType") in _MAKING and node.get_input_size():
        node = node.input_value(0).get_node()
    kind = str(node.get_output_element_type(0).get_type_name())
    if _text(node, "layerType") != "Const":
        return ""
    own = _OPENVINO_TYPES.get(kind, "")
    return own if own in _NARROW else narrow.get(node.get_friendly_name(), "")


def _text(op: Any, key: str) -> str:
    info = op.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""


def _input_type(op: Any, index: int) -> str:
    name = str(op.input(index).get_element_type().get_type_name())
    return _OPENVINO_TYPES.get(name, name)


def _tflite(path: Path) -> tuple[EngineKernel, ...]:
    from edgeinfer.convert.lower.tflite.precision import layers as tflite_layers

    return tuple(EngineKernel(y.name, y.op, y.activations, y.weights) for y in tflite_layers(path))
