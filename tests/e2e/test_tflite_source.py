"""TFLite files made by others: read, compared with LiteRT on the file, and written again.

The file that is written again gives the numbers of the first one, on LiteRT's kernels, without more
operators and without more transposes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import edgeinfer
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.litert.backend import LitertBackend
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.lower.tflite.target import TfliteTarget
from edgeinfer.convert.lower.tflite.writer import schema
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.sources import read
from edgeinfer.convert.verify.locate import save_for_engines
from edgeinfer.convert.verify.witness import LiteRtInPieces
from edgeinfer.metrics import budget_for, check, compare
from tests.convert.lower.tflite.run import profile
from tests.zoo import assets, fetch

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]

CUSTOM = ("face-landmark-attention.tflite", "selfie-landscape.tflite", "selfie-segmentation.tflite")
"""Files with operators that LiteRT lacks."""

FILES = sorted(n for n in assets() if n.endswith(".tflite") and n not in CUSTOM)

SIZES = {"wake-melspectrogram.tflite": (1, 16000)}
"""Sizes that a run decides and that are not 1."""

STORED = frozenset({"DEQUANTIZE", "DENSIFY"})
"""Operators that only say how constants are stored."""

THIN = 2
"""A convolution with few channels is written as a wider one between a PAD and a RESHAPE: faster by
more than they cost."""

SINGLE = 1e-6
REFERENCE = 1e-4
REORDERED = {"basic-pitch.tflite": 2e-4}
"""Files whose sums are computed in another order (a loop over parts became one convolution); the
logarithm of a near silence makes most of the difference."""


def feeds_of(model: Any, name: str) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    made = {}
    for value in model.graph.inputs:
        shape = [d if isinstance(d, int) else 1 for d in value.shape]
        made[value.name] = rng.standard_normal(SIZES.get(name, shape)).astype(np.float32)
    return made


def litert(path: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """What LiteRT's own kernels compute, without a delegate."""
    executable = LitertBackend().load(Artifact("tflite", path, (), ()), LoadOptions(optimize=False))
    try:
        return executable.run(feeds)
    finally:
        executable.close()


def operators(path: Path) -> Counter[str]:
    """Count the operators of all graphs, in files of any age."""
    s = schema()
    model = s.Model.GetRootAs(path.read_bytes(), 0)
    names = {v: k for k, v in vars(s.BuiltinOperator).items() if not k.startswith("_")}
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    found: Counter[str] = Counter()
    for graph in (model.Subgraphs(i) for i in range(model.SubgraphsLength())):
        for op in (graph.Operators(i) for i in range(graph.OperatorsLength())):
            code = codes[op.OpcodeIndex()]
            found[names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]] += 1
    return found


def worst(got: dict[str, Any], want: dict[str, Any]) -> float:
    """The largest difference, relative to each output's largest value."""
    assert list(got) == list(want)
    return max(float(np.abs(got[n] - want[n]).max() / np.abs(want[n]).max()) for n in want)


@pytest.mark.parametrize("name", FILES)
def test_read_and_written_again(name: str, tmp_path: Path) -> None:
    path = fetch(name)
    source = read(path)
    feeds = feeds_of(source.model, name)
    want = litert(path, feeds)

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        str(save_for_engines(source.model, tmp_path)), options, providers=["CPUExecutionProvider"]
    )
    graph = dict(zip(want, session.run(list(want), feeds), strict=True))
    budget = budget_for("fp32")
    assert [b for n in want for b in check(compare(want[n], graph[n]), budget)] == []

    normal = normalise(source.model).model
    again = TfliteTarget().lower(normal, profile(), LowerOptions(), tmp_path).files[0]
    assert worst(litert(again, feeds), want) <= REORDERED.get(name, SINGLE)

    before, after = operators(path), operators(again)
    stored = sum(before[k] for k in STORED)
    thin = THIN if name.startswith("pose") else 0
    assert after.total() <= before.total() - stored + thin
    assert after["TRANSPOSE"] <= before["TRANSPOSE"]


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_operators_become_builtin_ones(name: str, tmp_path: Path) -> None:
    """LiteRT then runs the whole; its reference kernels, which judge, sum in another order."""
    source = read(fetch(name))
    assert source.original is not None
    assert source.original.custom
    feeds = feeds_of(source.model, name)
    want = LiteRtInPieces(source.original, tmp_path).run(feeds)
    normal = normalise(source.model).model
    again = TfliteTarget().lower(normal, profile(), LowerOptions(), tmp_path).files[0]
    assert worst(litert(again, feeds), want) <= REFERENCE
    after = operators(again)
    assert after["CUSTOM"] == 0
    assert after["TRANSPOSE"] == 0


@pytest.mark.parametrize("name", ["face-detection-front.tflite", "wake-hey-jarvis.tflite"])
def test_a_file_becomes_a_bundle_for_three_engines(name: str, tmp_path: Path) -> None:
    path = fetch(name)
    targets = ("cpu", "openvino", "rpi5")
    made = edgeinfer.export(path, tmp_path / "m.edge", targets=targets)
    assert {v.format for v in made.manifest.variants} >= {"onnx", "openvino_ir", "tflite"}
    assert made.manifest.source.format == "tflite"
    assert made.report.expected is not None
    assert made.report.expected is not None
    answers = made.report.expected.answers
    assert {a.oracle for a in answers} == {"litert"}
    assert all(a.agreed[0] == "litert" and len(a.agreed) == 2 for a in answers)
    feeds = feeds_of(read(path).model, name)
    want = litert(path, feeds)
    with edgeinfer.load(made.path) as session:
        assert worst(session.run(feeds), want) < 1e-4
