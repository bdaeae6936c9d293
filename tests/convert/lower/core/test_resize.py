"""Resizes mean the same for every target, in forms that one of them once took otherwise."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.core.named import MalformedRefusal
from edgeinfer.convert.lower.core.resize import of_node
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array
from tests.conformance.everywhere import ORACLE, lacking, run

CROP = 'coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=3.0'
REGION = "roi"
FORMS = {
    "scales that keep the size": ('mode="linear"', "x, , parts"),
    "nearest scales that keep the size": ('nearest_mode="floor"', "x, , parts"),
    "a crop": (f'mode="linear", {CROP}', f"x, {REGION}, , up"),
    "a cubic crop": (f'mode="cubic", {CROP}', f"x, {REGION}, , up"),
    "a crop by whole scales": (CROP, f"x, {REGION}, twice"),
    "weights of the inside": ('mode="linear", antialias=1, exclude_outside=1', "x, , , down"),
    "cubic weights of the inside": ('mode="cubic", exclude_outside=1', "x, , , up"),
    "antialias": ('mode="cubic", antialias=1', "x, , , down"),
    "symmetric": (
        'mode="linear", coordinate_transformation_mode="half_pixel_symmetric"',
        "x, , part",
    ),
    "not larger": ('mode="linear", keep_aspect_ratio_policy="not_larger"', "x, , , up"),
    "nearest, not smaller": ('keep_aspect_ratio_policy="not_smaller"', "x, , , up"),
}


def _model() -> onnx.ModelProto:
    lines = [
        f"y{i} = Resize<{how}, axes=[2, 3]>({given})"
        for i, (how, given) in enumerate(FORMS.values())
    ]
    outputs = ", ".join(f"float[1,2,a{i},b{i}] y{i}" for i in range(len(FORMS)))
    known = (
        "float[2] parts = {1.2, 1}, float[2] part = {1.7, 0.6}, float[2] twice = {2, 2}, "
        "float[4] roi = {0.1, 0.2, 0.9, 1.3}, int64[2] up = {7, 9}, int64[2] down = {3, 2}"
    )
    text = f"g (float[1,2,4,5] x) => ({outputs}) <{known}> {{ {' '.join(lines)} }}"
    model = ir.to_proto(ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> {text}'))
    for node in model.graph.node:
        node.name = node.output[0]
    return model


@pytest.fixture(scope="module")
def right() -> dict[str, Array]:
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 5)).astype(np.float32)
    return {"x": x, **run(ORACLE, _model(), {"x": x}).outputs}


@pytest.mark.parametrize("place", ["litert", "coreml", "coreai", "tvm", "openvino", "onnxruntime"])
def test_every_target_resizes(place: str, right: dict[str, Array]) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    found = run(place, _model(), {"x": right["x"]}).outputs
    assert len(found) == len(FORMS)
    for name, form in zip(found, FORMS, strict=True):
        np.testing.assert_allclose(found[name], right[name], rtol=1e-5, atol=1e-5, err_msg=form)


def test_a_crop_of_axes_of_one_element() -> None:
    """Core AI's runtime takes columns for rows behind two transposed products of one element."""
    if reason := lacking("coreai"):
        pytest.skip(reason)
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1,1,4,4] x) => (float[1,1,3,3] y) '
        "<float[8] r = {0.5, 0.3, 0.1, 0, 1, 1, 0.9, 1}, int64[4] z = {1, 1, 3, 3}> "
        f'{{ y = Resize<mode="linear", {CROP}>(x, r, , z) }}'
    )
    model = ir.to_proto(ir.from_onnx_text(text))
    x = np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)
    found, want = (run(p, model, {"x": x}).outputs["y"] for p in ("coreai", ORACLE))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def _node(how: str, given: str, sizes: str = "4,5") -> ir.Node:
    text = (
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[1,2,{sizes}] x) => (y) '
        "<float[2] s = {1.2, 1}, int64[2] z = {7, 9}, float[4] r = {0, 0, 1, 1}> "
        f"{{ y = Resize<{how}, axes=[2, 3]>({given}) }}"
    )
    return next(iter(ir.from_onnx_text(text).graph))


def test_a_plan_lists_what_happens() -> None:
    plan = of_node(_node('mode="linear"', "x, , s"))
    assert plan is not None
    assert [(a.index, a.size, a.out, a.times) for a in plan.axes] == [(2, 4, 4, None)]
    kept = of_node(_node('keep_aspect_ratio_policy="not_smaller"', "x, , , z"))
    assert kept is not None
    assert [a.out for a in kept.axes] == [7, 9]
    assert of_node(_node('mode="linear"', "x, , , z", "h,w")) is None


@pytest.mark.parametrize(
    ("given", "sizes", "message"),
    [
        ({"s": "nan, 1"}, "4,5", "scales=.*not all finite"),
        ({"s": "inf, 1"}, "4,5", "scales=.*not all finite"),
        ({"s": "-2, 1"}, "4,5", "scales=.*not all above zero"),
        ({"s": "1, 1e-30"}, "4,100000", "axis 3 of 100000 elements gets 0"),
        ({"s": "1e30, 1"}, "4,5", "axis 2 of 4 elements gets [0-9]{30}"),
        ({"s": "1"}, "4,5", "scales of 1 numbers, where it takes 2"),
        ({"z": "7"}, "4,5", "1 sizes, where it takes 2"),
        ({"z": "7, -9"}, "4,5", "axis 3 of 5 elements gets -9"),
        ({"z": "7, 4611686018427387904"}, "4,5", "axis 3 of 5 elements gets 46116"),
        ({"r": "0.5, 0, 0"}, "4,5", "roi of 3 numbers, where it takes 4"),
        ({"r": "0.5, 0, nan, 1"}, "4,5", "roi=.*not all finite"),
    ],
)
@pytest.mark.parametrize("policy", ["stretch", "not_larger"])
def test_numbers_without_a_meaning_are_refused(
    given: dict[str, str], sizes: str, message: str, policy: str
) -> None:
    how = f'mode="linear", antialias=1, keep_aspect_ratio_policy="{policy}"'
    if "r" in given:
        how += ', coordinate_transformation_mode="tf_crop_and_resize"'
    node = _node(how, f"x, {'r' if 'r' in given else ''}, {'s' if 's' in given else ', z'}", sizes)
    for value in node.inputs:
        if value is not None and value.name in given:
            kind = np.int64 if value.name == "z" else np.float32
            numbers = [kind(each) for each in given[value.name].split(",")]
            value.const_value = ir.tensor(np.array(numbers, kind))
    with pytest.raises(MalformedRefusal, match=message):
        of_node(node)


@pytest.mark.parametrize("transform", ["align_corners", "tf_crop_and_resize"])
def test_corners_of_parts_are_refused(transform: str) -> None:
    how = f'mode="linear", coordinate_transformation_mode="{transform}"'
    with pytest.raises(Refusal, match="no whole size"):
        of_node(_node(how, "x, , s"))


def test_a_crop_beyond_any_tensor_is_refused_without_a_warning() -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1,2,4,5] x) => (y) '
        "<float[4] r = {0, 0, 3.0e38, 1}, int64[2] z = {7, 9}> "
        f'{{ y = Resize<mode="linear", {CROP}, axes=[2, 3]>(x, r, , z) }}'
    )
    plan = of_node(next(iter(ir.from_onnx_text(text).graph)))
    assert plan is not None
    with pytest.raises(Refusal, match="beyond any tensor"):
        plan.taps(plan.axes[0])
