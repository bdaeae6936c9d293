from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import OPSET
from edgeinfer.convert.passes.opset import OLDEST, RaiseOpset
from edgeinfer.convert.passes.opset_steps import COMPATIBLE, STEPS
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import Feeds, check, check_left_alone, f32, ops, parse, run

RNG = np.random.default_rng(0)
PASSES = [InferShapes(), RaiseOpset(OPSET)]


def x_of(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# --- the tables are complete ---------------------------------------------------------------------


def _signature(schema: onnx.defs.OpSchema) -> tuple[Any, ...]:
    def default(a: Any) -> Any:
        return onnx.helper.get_attribute_value(a.default_value) if a.default_value.type else None

    attributes = {n: (a.type, a.required, default(a)) for n, a in schema.attributes.items()}
    ports = [
        [(p.option, p.is_homogeneous, p.min_arity) for p in side]
        for side in (schema.inputs, schema.outputs)
    ]
    return attributes, ports, schema.deprecated


def _changes() -> Iterator[tuple[str, int]]:
    """Operators and versions whose attributes, inputs, outputs or defaults changed."""
    history: dict[str, dict[int, onnx.defs.OpSchema]] = defaultdict(dict)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history[schema.name][schema.since_version] = schema
    for op, versions in history.items():
        old = [v for v in sorted(versions) if v <= OLDEST][-1:]
        order = old + [v for v in sorted(versions) if OLDEST < v <= OPSET]
        for before, after in pairwise(order):
            if _signature(versions[before]) != _signature(versions[after]):
                yield op, after


def test_every_change_of_a_schema_has_a_step_or_a_reason_to_need_none() -> None:
    missing = [c for c in _changes() if c not in STEPS and c not in COMPATIBLE]
    assert missing == []


def test_no_reason_is_given_for_what_did_not_change() -> None:
    assert set(COMPATIBLE) - set(_changes()) == set()
    assert set(COMPATIBLE) & set(STEPS) == set()


# --- one test a step: the form after, and the numbers --------------------------------------------

CASES = {
    "squeeze": (11, "g (float[1,3] x) => (float[3] y) { y = Squeeze<axes=[0]>(x) }", "Squeeze"),
    "squeeze_all": (11, "g (float[1,3] x) => (float[3] y) { y = Squeeze(x) }", "Squeeze"),
    "unsqueeze": (
        11,
        "g (float[1,3] x) => (float[1,1,3] y) { y = Unsqueeze<axes=[-2]>(x) }",
        "Unsqueeze",
    ),
    "reduce_sum": (
        11,
        "g (float[2,3] x) => (float[2] y) { y = ReduceSum<axes=[1], keepdims=0>(x) }",
        "ReduceSum",
    ),
    "reduce_mean": (
        13,
        "g (float[2,3] x) => (float[1,3] y) { y = ReduceMean<axes=[-2]>(x) }",
        "ReduceMean",
    ),
    "reduce_all": (13, "g (float[2,3] x) => (float[1,1] y) { y = ReduceMax(x) }", "ReduceMax"),
    "slice": (
        9,
        "g (float[4,5] x) => (float[2,5] y) { y = Slice<starts=[-3], ends=[3], axes=[0]>(x) }",
        "Slice",
    ),
    "pad": (
        10,
        "g (float[2,3] x) => (float[2,5] y) { y = Pad<pads=[0,1,0,1], value=2.5>(x) }",
        "Pad",
    ),
    "pad_negative": (
        7,
        'g (float[2,3] x) => (float[2,3] y) { y = Pad<pads=[0,1,0,-1], mode="reflect">(x) }',
        "Pad",
    ),
    "clip": (7, "g (float[2,3] x) => (float[2,3] y) { y = Clip<min=-0.5>(x) }", "Clip"),
    "clip_limits": (10, "g (float[2,3] x) => (float[2,3] y) { y = Clip(x) }", "Clip"),
    "split": (
        11,
        "g (float[5,3] x) => (float[2,3] y, float[3,3] z) { y, z = Split<split=[2,3]>(x) }",
        "Split",
    ),
    "split_equal": (
        11,
        "g (float[2,4] x) => (float[2,2] y, float[2,2] z) { y, z = Split<axis=1>(x) }",
        "Split",
    ),
    "dropout": (
        9,
        "g (float[2,3] x) => (float[2,3] y) { a = Dropout<ratio=0.7>(x) y = Neg(a) }",
        "Dropout",
    ),
    "batch_norm": (
        7,
        "g (float[1,2,3] x) => (float[1,2,3] y) <float[2] s={1,2}, float[2] b={3,4},"
        " float[2] m={5,6}, float[2] v={7,8}>"
        " { y = BatchNormalization<epsilon=0.1>(x, s, b, m, v) }",
        "BatchNormalization",
    ),
    "scatter": (
        10,
        "g (float[2,3] x) => (float[2,3] y) <int64[1,2] i={1,0}, float[1,2] u={7,8}>"
        " { y = Scatter<axis=1>(x, i, u) }",
        "ScatterElements",
    ),
    "grid_sample": (
        16,
        "g (float[1,1,3,3] x) => (float[1,1,1,2] y) <float[1,1,2,2] g={-0.3,0.2,0.9,1.1}>"
        ' { y = GridSample<mode="bicubic">(x, g) }',
        "GridSample",
    ),
    "upsample_7": (
        7,
        "g (float[1,1,2,3] x) => (float[1,1,4,7] y)"
        ' { y = Upsample<scales=[1.0,1.0,2.0,2.5], mode="nearest">(x) }',
        "Resize",
    ),
    "upsample_9": (
        9,
        "g (float[1,1,2,3] x) => (float[1,1,4,6] y) <float[4] s={1,1,2,2}>"
        ' { y = Upsample<mode="linear">(x, s) }',
        "Resize",
    ),
    "resize_10": (
        10,
        "g (float[1,1,6,6] x) => (float[1,1,4,3] y) <float[4] s={1,1,0.7,0.5}>"
        ' { y = Resize<mode="nearest">(x, s) }',
        "Resize",
    ),
    "resize_tf": (
        11,
        "g (float[1,1,6,6] x) => (float[1,1,4,9] y) <float[4] s={1,1,0.7,1.5}, float[0] r={}>"
        ' { y = Resize<mode="nearest", nearest_mode="floor",'
        ' coordinate_transformation_mode="tf_half_pixel_for_nn">(x, r, s) }',
        "Resize",
    ),
    "dft": (
        17,
        "g (float[1,4,1] x) => (float[1,4,2] y) { y = DFT(x) }",
        "DFT",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_raised_node_gives_the_same_numbers(case: str) -> None:
    opset, text, op = CASES[case]
    model = parse(text, opset)
    shape = [int(d) for d in model.graph.inputs[0].shape or () if isinstance(d, int)]
    remaining = {n.op_type: 1 for n in model.graph} | {op: 1}
    for old in ("Upsample", "Scatter"):
        remaining.pop(old, None)
    check(model, PASSES, remaining, {"x": x_of(*shape)})
    assert model.opset_imports[""] == OPSET


def test_growing_and_shrinking_in_one_resize_becomes_two() -> None:
    model = parse(
        "g (float[1,1,6,6] x) => (float[1,1,3,9] y) <float[4] s={1,1,0.5,1.5}>"
        ' { y = Resize<mode="nearest">(x, s) }',
        10,
    )
    check(model, PASSES, {"Resize": 2}, {"x": x_of(1, 1, 6, 6)})


@pytest.mark.parametrize(("opset", "mask"), [(7, "float"), (10, "bool")])
def test_a_dropouts_mask_keeps_its_type_and_values(opset: int, mask: str) -> None:
    text = f"g (float[2,3] x) => (float[2,3] y, {mask}[2,3] m) {{ y, m = Dropout(x) }}"
    wanted = {"Dropout": 1, "Not": 1} | ({"Cast": 1} if opset == 7 else {})
    check(parse(text, opset), PASSES, wanted, {"x": x_of(2, 3)})


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(
    ("shape", "axis", "plain"),
    [
        ((2, 3, 4), 1, False),
        ((2, 3, 4), -1, True),
        ((2, 3, 4), 0, False),
        ((2, 3, 1, 1), 1, True),
        ((1, 1), 1, True),
    ],
)
def test_a_softmax_over_several_axes_is_flattened(
    op: str, shape: tuple[int, ...], axis: int, plain: bool
) -> None:
    dims = ",".join(map(str, shape))
    model = parse(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = {op}<axis={axis}>(x) }}", 12)
    wanted = {op: 1} if plain else {op: 1, "Flatten": 1, "Reshape": 1, "Shape": 1}
    check(model, PASSES, wanted, {"x": x_of(*shape)})


def test_a_softmax_of_unknown_rank_is_flattened() -> None:
    model = parse("g (float[] x) => (float[] y) { y = Softmax(x) }", 11)
    model.graph.inputs[0].shape = None
    model.graph.outputs[0].shape = None
    RaiseOpset(OPSET)(model)
    assert "Flatten" in ops(model)


def test_a_scale_per_group_becomes_one_per_channel() -> None:
    text = (
        "g (float[1,C,2] x) => (float[1,C,2] y) <float[2] s={1,2}, float[2] b={3,4}>"
        " { y = GroupNormalization<num_groups=2>(x, s, b) }"
    )
    x = x_of(1, 4, 2)
    grouped = x.reshape(1, 2, 2, 2)
    mean, var = grouped.mean((2, 3), keepdims=True), grouped.var((2, 3), keepdims=True)
    normal = (grouped - mean) / np.sqrt(var + 1e-5)
    expected = normal * f32([1, 2]).reshape(1, 2, 1, 1)
    expected = (expected + f32([3, 4]).reshape(1, 2, 1, 1)).reshape(1, 4, 2)
    for channels in ("C", "4"):
        model = parse(text.replace("C", channels), 18)
        for step in PASSES:
            step(model)
        np.testing.assert_allclose(run(model, {"x": x})[0], expected, rtol=1e-5, atol=1e-5)


def test_statistics_per_element_become_arithmetic() -> None:
    text = (
        "g (float[1,2,2] x) => (float[1,2,2] y) <float[2,2] s={1,2,3,4}, float[2,2] b={5,6,7,8},"
        " float[2,2] m={1,1,2,2}, float[2,2] v={1,2,3,4}>"
        " { y = BatchNormalization<spatial=0>(x, s, b, m, v) }"
    )
    model, x = parse(text, 7), x_of(1, 2, 2)
    for step in PASSES:
        step(model)
    scale, bias = f32([[1, 2], [3, 4]]), f32([[5, 6], [7, 8]])
    mean, var = f32([[1, 1], [2, 2]]), f32([[1, 2], [3, 4]])
    expected = (x - mean) / np.sqrt(var + 1e-5) * scale + bias
    np.testing.assert_allclose(run(model, {"x": x})[0], expected, rtol=1e-5)
    assert "BatchNormalization" not in ops(model)


def test_bodies_are_raised_too() -> None:
    model = parse(
        "g (bool c, float[1,3] x) => (float[N] y) { y = If(c) <"
        "then_branch = t () => (float[3] o) { o = Squeeze<axes=[0]>(x) },"
        "else_branch = e () => (float[1] p) { p = ReduceSum<axes=[1], keepdims=0>(x) }> }",
        11,
    )
    feeds: Feeds = {"c": np.asarray(False), "x": x_of(1, 3)}
    check(model, PASSES, {"If": 1, "Squeeze": 1, "ReduceSum": 1}, feeds)


# --- what is left alone --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opset", "text", "why"),
    [
        (
            9,
            "g (float[1,2] x) => (float[1,2] y, float[2] m) <float[2] s={1,2}>"
            " { y, m, v, sm, sv = BatchNormalization(x, s, s, s, s) }",
            "training",
        ),
        (6, "g (float[3] x) => (float[3] y) { y = Relu(x) }", "opset 6"),
        (25, "g (float[3] x) => (float[3] y) { y = Relu(x) }", ""),
        (24, "g (float[3] x) => (float[3] y) { y = Relu(x) }", ""),
    ],
)
def test_a_model_that_cannot_be_raised_stays_whole(opset: int, text: str, why: str) -> None:
    model = parse(text, opset)
    result = RaiseOpset(OPSET).call(model)
    assert why in " ".join(result.notes)
    check_left_alone(model, RaiseOpset(OPSET))
    assert model.opset_imports[""] == opset


def test_the_other_name_of_the_default_domain_is_understood() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["ai.onnx": 11]>'
            "g (float[1,3] x) => (float[3] y) { y = Squeeze<axes=[0]>(x) }"
        )
    )
    assert RaiseOpset(OPSET)(model).modified
    assert dict(model.opset_imports) == {"": OPSET}
