"""Node cases of ONNX, our golden ones, cases in older versions; and when an outcome is right."""

from __future__ import annotations

import json
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.version_converter

COMPUTED = Path(__file__).parents[2] / "build" / "node-cases"
"""Folder of what the onnx package computes for five seconds, for the next process."""


class Case(NamedTuple):
    """A model with inputs, what it is to give for each of them, and how near."""

    name: str
    model: onnx.ModelProto
    data_sets: list[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


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


def suite() -> list[Case]:
    """Return the node cases of the installed onnx package, computed once for its version."""
    versions = [sys.implementation.cache_tag, *map(version, ("onnx", "numpy", "ml_dtypes"))]
    file = COMPUTED / f"{'-'.join(versions)}.pickle"
    with suppress(OSError):
        return [Case(*fields) for fields in pickle.loads(file.read_bytes())]
    cases = _computed()
    with suppress(OSError):
        COMPUTED.mkdir(parents=True, exist_ok=True)
        own = file.with_suffix(f".{os.getpid()}")
        own.write_bytes(pickle.dumps([tuple(case) for case in cases]))
        own.replace(file)
    return cases


def _computed() -> list[Case]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return [Case(c.name, c.model, c.data_sets, c.rtol, c.atol) for c in cases]


def golden() -> list[Case]:
    """Return the cases of ``tests/golden``: awkward ones, agreed on by several engines."""
    folder = Path(__file__).parent.parent / "golden"
    index = json.loads((folder / "index.json").read_text("utf-8"))
    cases: list[Case] = []
    for entry in index:
        model = onnx.load(folder / f"{entry['id']}.onnx")
        with np.load(folder / f"{entry['id']}.npz") as arrays:
            inputs = [arrays[f"in_{v.name}"] for v in model.graph.input]
            outputs = [arrays[f"out_{v.name}"] for v in model.graph.output]
        # Half precision keeps eleven bits.
        half = any(a.dtype == np.float16 for a in (*inputs, *outputs))
        tolerance = (2e-3, 1e-3) if half else (1e-4, 1e-5)
        cases.append(Case(entry["id"], model, [(inputs, outputs)], *tolerance))
    return cases


def plain(value: Any) -> Any:
    """Return a NumPy array (or a list of them) for whatever a case holds."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def difference(expected: Any, got: Any, rtol: float, atol: float) -> str:
    """Return how an output differs; empty when it is right."""
    if isinstance(expected, list):
        if not isinstance(got, list) or len(expected) != len(got):
            return "another length of a sequence"
        return next(
            (d for e, g in zip(expected, got, strict=True) if (d := difference(e, g, rtol, atol))),
            "",
        )
    if expected is None:
        return "" if got is None else "not empty"
    expected, got = np.asarray(expected), np.asarray(got)
    if expected.shape != got.shape:
        return f"shape {got.shape}, expected {expected.shape}"
    if expected.dtype.kind in "OUST":
        return "" if (expected.astype(str) == got.astype(str)).all() else "other text"
    if expected.dtype != got.dtype:
        if expected.dtype.itemsize != got.dtype.itemsize or expected.dtype.kind in "fiub":
            return f"dtype {got.dtype}, expected {expected.dtype}"
        got = got.view(expected.dtype)  # engines hand out the bits of types NumPy lacks
    if expected.dtype.kind not in "fiubc":
        expected, got = expected.astype(np.float32), got.astype(np.float32)
    if np.allclose(got, expected, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    unlike = (np.isfinite(got) != np.isfinite(expected)) | (np.isnan(got) != np.isnan(expected))
    if unlike.any():
        return f"NaN or infinity in one of the two only, {int(unlike.sum())} times"
    both = np.isfinite(got)
    return f"values differ by up to {np.max(np.abs(got[both] - expected[both]), initial=0):.3g}"


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
                yield Case(f"{kind}/{path.parent.name}", model, sets, 1e-3, 1e-5)


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
        for old_version in OLD:
            if old_version >= newest:
                continue
            schema = _schema(nodes[0].op_type, old_version)
            if schema is None or (nodes[0].op_type, schema.since_version) in seen:
                continue
            try:
                older = onnx.version_converter.convert_version(model, old_version)
                onnx.checker.check_model(older, full_check=True)
            except Exception:
                # There is no way back for this one.
                continue
            seen.add((nodes[0].op_type, schema.since_version))
            yield Case(f"{name}@{old_version}", older, sets, rtol, atol)


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


def old() -> list[Case]:
    """Return models of old exporters, and cases of the suite in older versions of operators."""
    return [*_recorded(), *_taken_back()]


SOURCES: Mapping[str, Callable[[], list[Case]]] = {"suite": suite, "golden": golden, "old": old}
"""Where cases come from."""


def operators(case: Case) -> set[str]:
    """Return the operators of a case."""
    return {node.op_type for node in case[1].graph.node}


def line_of(error: object) -> str:
    """Return a message in one line."""
    return " ".join(str(error).split())[:300]


def differences(
    model: onnx.ModelProto, outputs: Any, got: Mapping[str, Any], rtol: float, atol: float
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
