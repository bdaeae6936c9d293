"""Numbers that mean nothing are refused in words, by `check` and `convert`, for every target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.errors import SourceError

CROP = 'mode="linear", coordinate_transformation_mode="tf_crop_and_resize"'
LINEAR = 'mode="linear"'
NO_NUMBER = [0, 0, 0, np.nan, 1, 1, 1, 1]

FLOATS: dict[str, tuple[str, str, list[float], str]] = {
    "no number": (f"Resize<{LINEAR}>", "x, , v", [1, 1, np.nan, 1], "not all finite"),
    "no end": (f"Resize<{LINEAR}>", "x, , v", [1, 1, np.inf, 1], "not all finite"),
    "nothing left": (f"Resize<{LINEAR}, antialias=1>", "x, , v", [1, 1, 1, 1e-30], "5 elements"),
    "too many": ("Resize", "x, , v", [1, 1, 1, 3e38], "5 elements gets"),
    "negative": ("Resize", "x, , v", [1, 1, -2, 1], "not all above zero"),
    "zero": (f"Resize<{LINEAR}>", "x, , v", [1, 1, 0, 1], "not all above zero"),
    "a scale too many": ("Resize<axes=[2, 3]>", "x, , v", [2, 2, 2], "3 numbers, where it takes 2"),
    "an axis twice": (f"Resize<{LINEAR}, axes=[3, -1]>", "x, , v", [2, 2], "name one twice"),
    "no such axis": (f"Resize<{LINEAR}, axes=[4]>", "x, , v", [2], "of a tensor of rank 4"),
    "region of three": (f"Resize<{CROP}>", "x, v, s", [0.5, 0, 0], "3 numbers, where it takes 8"),
    "region of no number": (f"Resize<{CROP}>", "x, v, s", NO_NUMBER, "not all finite"),
}
INTEGERS = {
    "negative size": (f"Resize<{LINEAR}>", "x, , , v", [1, 1, -7, 5], "4 elements gets -7"),
    "size too few": (f"Resize<{LINEAR}>", "x, , , v", [1, 2, 7], "3 sizes, where it takes 4"),
    "cut twice": ("Slice", "x, two, four, v", [3, -1], "name one twice"),
    "cut nowhere": ("Slice", "x, two, four, v", [2, 7], "of a tensor of rank 4"),
    "no step": ("Slice", "x, two, four, two, v", [0, 1], "none may be zero"),
    "cut too few": ("Slice", "x, two, v", [3], "of different lengths"),
    "padded twice": ("Pad", "x, pads, , v", [3, -1], "name one twice"),
    "pads of three": ("Pad", "x, v", [1, 1, 1], "3 pads, where it takes 8"),
}
FORMS = {**FLOATS, **INTEGERS}


def written(folder: Path) -> Path:
    known = {
        "s": np.array([1, 1, 2, 2], np.float32),
        "two": np.array([1, 2]),
        "four": np.array([3, 4]),
        "pads": np.array([1, 1, 1, 1]),
    }
    lines = list[str]()
    for i, (name, (how, operands, numbers, _)) in enumerate(FORMS.items()):
        known[f"v{i}"] = np.array(numbers, np.float32 if name in FLOATS else np.int64)
        lines.append(f"y{i} = {how}({operands.replace('v', f'v{i}')})")
    outputs = ", ".join(f"float[a{i},b{i},c{i},d{i}] y{i}" for i in range(len(lines)))
    text = f"g (float[1,2,4,5] x) => ({outputs}) {{ {' '.join(lines)} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in known.items())
    for node, name in zip(model.graph.node, FORMS, strict=True):
        node.name = name
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


TARGETS = ["openvino", "cpu", "rpi5", "ios", "tvm-x86-64-v3", "jetson-orin"]


@pytest.mark.parametrize("command", ["check", "export"])
def test_all_of_them_are_listed(command: str, tmp_path: Path) -> None:
    model = written(tmp_path)
    more = {"output": tmp_path / "m.edge"} if command == "export" else {}
    with pytest.raises(SourceError) as caught:
        getattr(edgeinfer, command)(model, targets=TARGETS, **more)
    said = {part.split("'")[1]: part for part in str(caught.value).split("; ") if "'" in part}
    assert said.keys() == FORMS.keys()
    for name, (*_, words) in FORMS.items():
        assert words in said[name]
    assert not (tmp_path / "m.edge").exists()


HOSTILE = {
    "a huge sum": ("LRN<size=4611686018427387904>(x)", "size=4611686018427387904, expected 1 to"),
    "a sum of none": ("LRN<size=-1>(x)", "size=-1, expected 1 to"),
    "no such axis": ("Unique<axis=4611686018427387904>(x)", "of a tensor of rank 4"),
    "few points": ("DFT(x, low)", "operand 1=-4611686018427387904, expected 1 to"),
    "many points": ("DFT(x, high)", "operand 1=33554433, expected 1 to"),
    "few bins": ("MelWeightMatrix(low, n, n, f, g)", "operand 0=-4611686018427387904, expected"),
    "long bins": ("MelWeightMatrix(n, high, n, f, g)", "operand 1=33554433, expected"),
    "many samples": (
        "RoiAlign<sampling_ratio=4611686018427387904>(x, rois, batch)",
        "sampling_ratio=4611686018427387904, expected 0 to 4096",
    ),
    "large regions": (
        "RoiAlign<output_height=8192>(x, rois, batch)",
        "output_height=8192, expected 0 to 4096",
    ),
}


def test_counts_that_nobody_means_are_refused_together(tmp_path: Path) -> None:
    """Some were a bug, one took all the time there is, one ended the process."""
    named = [f"y{i} = {how}" for i, (how, _) in enumerate(HOSTILE.values())]
    outputs = ", ".join(f"float y{i}" for i in range(len(named)))
    text = (
        f"g (float[1,4,8,2] x, float[2,4] rois, int64[2] batch) => ({outputs}) "
        "<int64 low = {-4611686018427387904}, int64 high = {33554433}, int64 n = {16}, "
        f"float f = {{0.0}}, float g = {{8.0}}> {{ {' '.join(named)} }}"
    )
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    for node, name in zip(model.graph.node, HOSTILE, strict=True):
        node.name = name
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(SourceError) as caught:
        edgeinfer.check(tmp_path / "m.onnx", targets=["cpu", "openvino"])
    said = {part.split("'")[1]: part for part in str(caught.value).split("; ") if "'" in part}
    assert said.keys() == HOSTILE.keys()
    for name, (_, reason) in HOSTILE.items():
        assert reason in said[name]
