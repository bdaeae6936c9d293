"""Run ONNX node cases through source, passes and a target, and through the plain engine.

A child process of its own: an engine may abort on an odd graph. Prints one JSON line when a case
starts and one when it ends.

Usage: python -m tests.conformance.node_worker TARGET suite|golden FIRST STEP SKIP
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from tests.conformance.node_cases import SOURCES, Case, difference, line_of, plain

FORMATS = {"onnxruntime": "onnx", "openvino": "openvino_ir"}


def run_onnxruntime(model: bytes | str, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    special = {i.name: i.type for i in session.get_inputs() if i.type in _BITS}
    if not special:
        outputs: list[Any] = session.run(None, feeds)
        return outputs
    make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
    values = {
        k: make(v.view(np.uint16 if v.itemsize == 2 else np.uint8), _BITS[special[k]])
        if k in special
        else onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(v))
        for k, v in feeds.items()
    }
    return [_bits(v) for v in session.run_with_ort_values(None, values)]


_BITS = {
    "tensor(bfloat16)": onnx.TensorProto.BFLOAT16,
    "tensor(float8e4m3fn)": onnx.TensorProto.FLOAT8E4M3FN,
    "tensor(float8e5m2)": onnx.TensorProto.FLOAT8E5M2,
    "tensor(float8e4m3fnuz)": onnx.TensorProto.FLOAT8E4M3FNUZ,
    "tensor(float8e5m2fnuz)": onnx.TensorProto.FLOAT8E5M2FNUZ,
}


def _bits(value: Any) -> Any:
    import ctypes

    kind = value.element_type()
    if kind not in _BITS.values():
        return value.numpy()
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    shape = value.shape()
    size = int(np.prod(shape)) * dtype.itemsize
    data = bytes((ctypes.c_char * size).from_address(value.data_ptr()))
    return np.frombuffer(data, dtype).reshape(shape)


def run_openvino(model: bytes | str, feeds: dict[str, Any], names: Sequence[str] = ()) -> list[Any]:
    """Feed by position; with ``names``, see that every input and output answers to its name."""
    import io

    import openvino as ov

    core = ov.Core()
    read = core.read_model(io.BytesIO(model) if isinstance(model, bytes) else model)
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(read, "CPU", settings)
    request = compiled.create_infer_request()
    held = []
    if len(read.inputs) != len(feeds):
        raise ValueError(f"{len(read.inputs)} inputs for {len(feeds)}")
    for index, (port, name) in enumerate(zip(read.inputs, feeds, strict=True)):
        if names and name not in port.get_names():
            raise AssertionError(f"input {index} lost its name {name!r}: {port.get_names()}")
        held.append(_tensor(ov, port.get_element_type(), feeds[name]))
        if names:
            _refuse_wide(feeds[name])
        request.set_input_tensor(index, held[-1])
    request.infer()
    for index, name in enumerate(names):
        if name and name not in read.outputs[index].get_names():
            raise AssertionError(f"output {index} lost its name {name!r}")
    return [_array(ov, request.get_output_tensor(i)) for i in range(len(compiled.outputs))]


def _refuse_wide(value: Any) -> None:
    """Refuse what our backend refuses: the plugin computes 64-bit integers in 32 bits."""
    if np.asarray(value).dtype in (np.int64, np.uint64) and np.size(value):
        limits = np.iinfo(np.int32)
        if np.max(value) > limits.max or np.min(value) < limits.min:
            raise OverflowError("beyond 32 bits")


def _tensor(ov: Any, kind: Any, value: Any) -> Any:
    if isinstance(value, list) or value is None:
        raise TypeError("OpenVINO takes no sequences")
    value = np.asarray(value)
    if value.dtype.kind in "OUST":
        return ov.Tensor(value.astype(str))
    value = np.array(value, order="C", copy=True)
    if value.dtype.kind in "fiub":
        return ov.Tensor(value)
    tensor = ov.Tensor(kind, list(value.shape))
    if tensor.byte_size != value.nbytes:
        raise TypeError(f"{value.dtype} is packed")
    bits = np.frombuffer(value.tobytes(), np.uint8)
    np.asarray(tensor.data).reshape(-1).view(np.uint8)[:] = bits
    return tensor


def _array(ov: Any, tensor: Any) -> Any:
    if tensor.get_element_type() == ov.Type.string:
        return np.array(tensor.str_data)
    data = np.array(tensor.data, copy=True)
    if tensor.get_element_type() == ov.Type.bf16:
        return data.view(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))
    return data


def outcome_plain(target: str, case: Case) -> str:
    """Return ``ok``, ``wrong: ...`` or ``refused: ...`` of the engine on the model as it is."""
    _, model, data_sets, rtol, atol = case
    try:
        return _compare(_runner(target), model.SerializeToString(), model, data_sets, rtol, atol)
    except Exception as e:
        return f"refused: {line_of(e)}"


def outcome_lowered(target: str, case: Case, options: Any = None) -> str:
    """Return the same of what edgeinfer writes; ``error: ...`` where it fails by accident."""
    from edgeinfer import profiles
    from edgeinfer.bundle.values import KEY, unfit
    from edgeinfer.convert.lower import LowerOptions, target_for
    from edgeinfer.convert.passes import normalise
    from edgeinfer.errors import EdgeInferError

    _, model, data_sets, rtol, atol = case
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        out.mkdir()
        try:
            graph = ir.from_proto(model)
            normalised = normalise(graph).model
            lowered = target_for(FORMATS[target]).lower(
                normalised, profiles.load(target), options or LowerOptions(), out
            )
        except EdgeInferError as e:
            return f"refused: {line_of(e)}"
        except Exception as e:
            return f"error: {type(e).__name__}: {line_of(e)}"
        path = str(lowered.files[0])
        for inputs, _ in data_sets:
            # A session refuses these inputs.
            level = lowered.constraints.get(KEY)
            floats = [np.asarray(v) for v in map(plain, inputs) if not isinstance(v, list)]
            if found := next((w for a in floats if level and (w := unfit(level, a))), ""):
                return f"refused: inputs are to be {level}: {found}"
        try:
            return _compare(_runner(target, model), path, model, data_sets, rtol, atol)
        except AssertionError as e:
            return f"error: {line_of(e)}"
        except Exception as e:
            return f"refused: by the engine: {line_of(e)}"


def _runner(target: str, model: onnx.ModelProto | None = None) -> Any:
    if target == "onnxruntime":
        return run_onnxruntime
    names = [o.name for o in model.graph.output] if model is not None else ()
    return lambda data, feeds: run_openvino(data, feeds, names)


def _compare(
    run: Any, data: bytes | str, model: onnx.ModelProto, data_sets: Any, rtol: float, atol: float
) -> str:
    for inputs, outputs in data_sets:
        names = [i.name for i in model.graph.input]
        feeds = {n: plain(v) for n, v in zip(names, inputs, strict=False)}
        got = run(data, feeds)
        if len(got) != len(outputs):
            return f"wrong: {len(got)} outputs, expected {len(outputs)}"
        for name, e, g in zip((o.name for o in model.graph.output), outputs, got, strict=True):
            if found := difference(plain(e), g, rtol, atol):
                return f"wrong: {name}: {found}"
    return "ok"


def main(target: str, source: str, first: int, step: int, skip: int) -> None:
    """Run every ``step``-th case from ``first``, leaving out the first ``skip`` of those."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    for case in SOURCES[source]()[first::step][skip:]:
        print(json.dumps({"start": case[0]}), flush=True)  # noqa: T201
        result = {"name": case[0], "plain": outcome_plain(target, case)}
        print(json.dumps({"plain": result["plain"]}), flush=True)  # noqa: T201
        result["ours"] = outcome_lowered(target, case)
        print(json.dumps(result), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(a) for a in sys.argv[3:6]))
