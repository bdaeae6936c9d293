"""Run ONNX node cases through source, passes, TFLite lowering and LiteRT.

A child process of its own: LiteRT ends the process on some files. Prints one JSON line when a case
starts and one when it ends. A case is tried as it is; where that is refused, once more with the
inputs that are parameters (a shape, axes, weights) as initializers.

Usage: tflite_worker.py suite|golden|old FIRST STEP SKIP
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter

from tests.conformance.node_worker import Case, difference, golden, plain, suite
from tests.convert.lower.tflite.run import profile, run_here

PARAMETERS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BatchNormalization": (1, 2, 3, 4),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Clip": (1, 2),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "Conv": (1, 2),
    "ConvInteger": (1, 2, 3),
    "ConvTranspose": (1, 2),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "DeformConv": (1, 3),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "GRU": (1, 2, 3),
    "Gemm": (1, 2),
    "GroupNormalization": (1, 2),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "InstanceNormalization": (1, 2),
    "LSTM": (1, 2, 3, 7),
    "LayerNormalization": (1, 2),
    "MaxUnpool": (2,),
    "MatMulInteger": (2, 3),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1, 2),
    "PRelu": (1,),
    "Pad": (1, 2, 3),
    "Pow": (1,),
    "QLinearConv": (1, 2, 3, 4, 5, 6, 7, 8),
    "QLinearMatMul": (1, 2, 3, 4, 5, 6, 7),
    "QuantizeLinear": (1, 2),
    "RMSNormalization": (1,),
    "RNN": (1, 2, 3),
    "Range": (0, 1, 2),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "RoiAlign": (1, 2),
    "STFT": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""Inputs that a deployed model has as constants."""


OLD = (17, 13, 11, 9, 7)
"""Versions of the operator set that cases are taken back to."""


def cases_of(source: str) -> list[Case]:
    """The cases of a source: ``suite``, ``golden`` or ``old``."""
    if source == "old":
        return [*_recorded(), *_taken_back()]
    return suite() if source == "suite" else golden()


def _recorded() -> Iterator[Case]:
    """Models that old exporters wrote, as the onnx package has them."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ("pytorch-operator", "pytorch-converted", "simple"):
        for path in sorted((folder / kind).glob("*/model.onnx")):
            model = onnx.load(path)
            given, made = _counts(model)
            sets: list[tuple[Sequence[Any], Sequence[Any]]] = [
                (_values(one, "input", given), _values(one, "output", made))
                for one in sorted(path.parent.glob("test_data_set_*"))
            ]
            if sets and all(None not in part for one in sets for part in one):
                yield f"{kind}/{path.parent.name}", model, sets, 1e-3, 1e-5


def _counts(model: onnx.ModelProto) -> tuple[int, int]:
    return len(given_names(model)), len(model.graph.output)


def _values(folder: Path, what: str, count: int) -> list[onnx.TensorProto | None]:
    found: list[onnx.TensorProto | None] = []
    for index in range(count):
        path = folder / f"{what}_{index}.pb"
        try:
            found.append(onnx.load_tensor(path))
        except Exception:
            # A sequence or nothing at all.
            found.append(None)
    return found


def _taken_back() -> Iterator[Case]:
    """The first case of each operator in every older version that onnx can write it in."""
    seen: set[tuple[str, int]] = set()
    for name, model, sets, rtol, atol in suite():
        nodes = model.graph.node
        if len(nodes) != 1 or nodes[0].domain or len(sets) != 1:
            continue
        newest = next(o.version for o in model.opset_import if not o.domain)
        for version in OLD:
            if version >= newest:
                continue
            schema = _schema(nodes[0].op_type, version)
            if schema is None or (nodes[0].op_type, schema.since_version) in seen:
                continue
            try:
                older = onnx.version_converter.convert_version(model, version)
                onnx.checker.check_model(older, full_check=True)
            except Exception:
                # There is no way back for this one.
                continue
            seen.add((nodes[0].op_type, schema.since_version))
            yield f"{name}@{version}", older, sets, rtol, atol


def _schema(op: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(op, version)
    except onnx.defs.SchemaError:
        return None


def parameters(model: onnx.ModelProto) -> set[str]:
    """Names of the graph inputs that some node takes as a parameter."""
    given = {i.name for i in model.graph.input}
    return {
        node.input[index]
        for node in model.graph.node
        for index in PARAMETERS.get(node.op_type, ())
        if index < len(node.input) and node.input[index] in given
    }


def given_names(model: onnx.ModelProto) -> list[str]:
    """Inputs without a value in the model; old models list the others too."""
    known = {i.name for i in model.graph.initializer}
    return [i.name for i in model.graph.input if i.name not in known]


def freeze(model: onnx.ModelProto, values: dict[str, Any]) -> onnx.ModelProto:
    """Return the model with these inputs as initializers."""
    frozen = onnx.ModelProto()
    frozen.CopyFrom(model)
    kept = [i for i in model.graph.input if i.name not in values]
    del frozen.graph.input[:]
    frozen.graph.input.extend(kept)
    frozen.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()
    )
    return frozen


def outcome(case: Case) -> tuple[str, bool]:
    """Return ``right``, ``refused: REASON: ...``, ``wrong: ...``, ... and whether frozen."""
    _, model, data_sets, rtol, atol = case
    first = _try(model, data_sets, rtol, atol)
    named = parameters(model)
    # Several data sets of a case share one model, so one that is frozen has one set.
    if not first.startswith("refused") or not named or len(data_sets) > 1:
        return first, False
    names = given_names(model)
    inputs, outputs = data_sets[0]
    feeds = {n: plain(v) for n, v in zip(names, inputs, strict=False)}
    fixed = {n: v for n, v in feeds.items() if n in named and v is not None}
    if any(isinstance(v, list) for v in fixed.values()):
        return first, False
    rest = [v for n, v in feeds.items() if n not in fixed]
    second = _try(freeze(model, fixed), [(rest, outputs)], rtol, atol)
    return second, True


def _try(model: onnx.ModelProto, data_sets: Any, rtol: float, atol: float) -> str:
    from edgeinfer.errors import EdgeInferError, UnsupportedError

    try:
        content = _lower(model)
    except UnsupportedError as e:
        return f"refused: {e.problems[0].reason}: {_line(e.problems[0])}"
    except EdgeInferError as e:
        return f"refused: {type(e).__name__}: {_line(e)}"
    except Exception as e:
        return f"error: {type(e).__name__}: {_line(e)}"
    for inputs, outputs in data_sets:
        feeds = {n: plain(v) for n, v in zip(given_names(model), inputs, strict=False)}
        for xnnpack in (True, False):
            try:
                got = run_here(content, feeds, xnnpack, 1)
            except Exception as e:
                return f"unrunnable: xnnpack={xnnpack}: {_line(e)}"
            found = list(_differences(model, outputs, got, rtol, atol))
            if found:
                return f"wrong: xnnpack={xnnpack}: {found[0]}"
    return "right"


def _lower(model: onnx.ModelProto) -> bytes:
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.lower.tflite.target import TfliteTarget
    from edgeinfer.convert.passes import normalise
    from edgeinfer.convert.sources import read

    normal = normalise(read(model).model).model
    with tempfile.TemporaryDirectory() as folder:
        made = TfliteTarget().lower(normal, profile(), LowerOptions(), Path(folder))
        return made.files[0].read_bytes()


def _differences(
    model: onnx.ModelProto, outputs: Any, got: dict[str, Any], rtol: float, atol: float
) -> Iterator[str]:
    names = [o.name for o in model.graph.output]
    if list(got) != names:
        yield f"outputs {list(got)}, expected {names}"
        return
    for name, expected in zip(names, outputs, strict=True):
        right = plain(expected)
        if found := difference(right, got[name], rtol, max(atol, _noise(right))):
            yield f"{name}: {found}"


def _noise(expected: Any) -> float:
    """What sums leave of terms that cancel, for values as large as these."""
    array = np.asarray(expected) if isinstance(expected, np.ndarray) else np.zeros(0)
    # Those of 8 and 11 bits are as wide as the last of them.
    share = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 2**-7}.get(array.dtype.name, 0.0)
    array = array.astype(np.float32) if share else array
    if not share or not np.isfinite(array).any():
        return 0.0
    return share * float(np.abs(array[np.isfinite(array)]).max())


def _line(error: Any) -> str:
    return " ".join(str(error).split())[:300]


def main(source: str, first: int, step: int, skip: int) -> None:
    """Run every ``step``-th case from ``first``, leaving out the first ``skip`` of those."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    # LiteRT writes to stdout now and then.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for case in cases_of(source)[first::step][skip:]:
        print(json.dumps({"start": case[0]}), file=answers, flush=True)
        ours, frozen = outcome(case)
        done = {"name": case[0], "ours": ours, "frozen": frozen}
        print(json.dumps(done), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *(int(a) for a in sys.argv[2:5]))
