"""Padding of windows as numbers: what a run can change stays, and every target gives the same."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.settle_padding import SettlePadding
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run_each
from tests.convert.passes.rewriting import check_left_alone, f32, parse

X = f32(np.random.default_rng(0).standard_normal((1, 2, 7, 6)))
W = f32(np.random.default_rng(1).standard_normal((2, 2, 3, 2)))
KNOWN, OPEN = "1,2,7,6", "N,2,H,W"


def graph(node: str, sizes: str = KNOWN) -> str:
    inputs = "x" if "Pool" in node else "x, w"
    weights = ", ".join(str(v) for v in W.ravel())
    return (
        f"g (float[{sizes}] x) => (float[A,B,C,D] y) <float[2,2,3,2] w = {{{weights}}}>"
        f" {{ [y] y = {node}({inputs}) }}"
    )


def evaluated(model: str | ir.Model) -> list[Array]:
    return list(
        Evaluator(parse(model) if isinstance(model, str) else model, wide=True)
        .run({"x": X})
        .values()
    )


def settled(text: str) -> dict[str, Any]:
    model = parse(text)
    InferShapes()(model)
    assert SettlePadding()(model).modified
    onnx.checker.check_model(ir.to_proto(model))
    # ONNX Runtime takes no dilations with automatic padding.
    for old, new in zip(evaluated(text), evaluated(model), strict=True):
        np.testing.assert_array_equal(old, new)
    found = {n: a.value for n, a in model.graph[0].attributes.items() if n != "kernel_shape"}
    return {n: list(v) if isinstance(v, tuple) else v for n, v in found.items()}


@pytest.mark.parametrize(
    ("node", "attributes"),
    [
        (
            "Conv<auto_pad='SAME_UPPER', dilations=[2,1]>",
            {"dilations": [2, 1], "pads": [2, 0, 2, 1]},
        ),
        ("Conv<auto_pad='SAME_LOWER', strides=[2,2]>", {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
        ("MaxPool<auto_pad='SAME_LOWER', kernel_shape=[3,2], ceil_mode=1>", {"pads": [1, 1, 1, 0]}),
        (
            "ConvTranspose<auto_pad='SAME_UPPER', strides=[2,1], output_padding=[1,0]>",
            {"strides": [2, 1], "output_padding": [1, 0], "pads": [1, 0, 1, 1]},
        ),
        (
            "ConvTranspose<output_shape=[14,12], strides=[2,2]>",
            {"strides": [2, 2], "pads": [1, 0, 0, 0]},
        ),
        (
            "ConvTranspose<output_shape=[14,11], strides=[2,2], auto_pad='SAME_UPPER'>",
            {"strides": [2, 2], "pads": [0, 0, 1, 1]},
        ),
        # One window more than rounding down gives; one that would start behind is left out.
        (
            "MaxPool<kernel_shape=[3,2], strides=[3,4], ceil_mode=1>",
            {"strides": [3, 4], "pads": [0, 0, 2, 0]},
        ),
        (
            "AveragePool<kernel_shape=[1,2], strides=[4,3], ceil_mode=1, auto_pad='VALID',"
            " count_include_pad=1>",
            {"strides": [4, 3], "pads": [0, 0, 0, 0]},
        ),
    ],
)
def test_padding_is_numbers(node: str, attributes: dict[str, Any]) -> None:
    assert settled(graph(node.replace("'", '"'))) == attributes


def test_open_sizes_settle_what_they_do_not_change() -> None:
    assert settled(graph('Conv<auto_pad="SAME_UPPER", dilations=[2,1]>', OPEN)) == {
        "dilations": [2, 1],
        "pads": [2, 0, 2, 1],
    }
    assert settled(graph('ConvTranspose<auto_pad="SAME_LOWER", strides=[2,2]>', OPEN)) == {
        "strides": [2, 2],
        "pads": [1, 0, 0, 0],
    }
    pool = graph(
        'MaxPool<auto_pad="SAME_UPPER", kernel_shape=[3,2], strides=[2,2], ceil_mode=1>', OPEN
    )
    assert settled(pool) == {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
    mean = "AveragePool<kernel_shape=[3,2], strides=[2,2], ceil_mode=1, count_include_pad=1>"
    assert settled(graph(mean, OPEN)) == {"strides": [2, 2], "ceil_mode": 1}


@pytest.mark.parametrize(
    "node",
    [
        "Conv<pads=[1,1,1,1]>",
        "MaxPool<kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,0]>",
        # What ceil_mode adds is no padding, and padding counts.
        "AveragePool<kernel_shape=[3,2], strides=[3,2], pads=[1,0,0,0], ceil_mode=1,"
        " count_include_pad=1>",
        "ConvTranspose<pads=[1,0,1,0], strides=[2,2], output_padding=[1,0]>",
    ],
)
def test_leaves_alone(node: str) -> None:
    check_left_alone(parse(graph(node)), SettlePadding())
    sized = "ConvTranspose<output_shape=[14,12], strides=[2,2]>"
    check_left_alone(parse(graph(sized, OPEN)), SettlePadding())


FORMS = [
    (sizes, node)
    for sizes in (KNOWN, OPEN, "N,2,7,6")
    for node in (
        'ConvTranspose<auto_pad="SAME_UPPER">',
        'ConvTranspose<auto_pad="SAME_LOWER", strides=[2,2]>',
        'ConvTranspose<auto_pad="SAME_UPPER", strides=[2,1], output_padding=[1,0]>',
        'Conv<auto_pad="SAME_LOWER", dilations=[2,2]>',
        'MaxPool<auto_pad="SAME_UPPER", kernel_shape=[3,2], dilations=[2,1]>',
        'MaxPool<auto_pad="VALID", kernel_shape=[3,2], strides=[3,3], ceil_mode=1>',
        'AveragePool<auto_pad="SAME_LOWER", kernel_shape=[3,2], ceil_mode=1, count_include_pad=1>',
        "AveragePool<kernel_shape=[3,2], strides=[1,3], ceil_mode=1, count_include_pad=1>",
    )
] + [
    (sizes, node)
    for sizes in (KNOWN, "N,2,7,6")
    for node in (
        "ConvTranspose<output_shape=[14,12], strides=[2,2]>",
        'ConvTranspose<output_shape=[14,12], strides=[2,2], auto_pad="SAME_UPPER">',
        "ConvTranspose<output_shape=[16,12], strides=[2,2]>",
        "LpPool<kernel_shape=[3,2], strides=[3,3], ceil_mode=1>",
        "AveragePool<kernel_shape=[1,4], strides=[3,4], ceil_mode=1, pads=[0,0,0,1],"
        " count_include_pad=1>",
    )
]


@pytest.mark.parametrize("place", PLACES)
def test_every_target_gives_the_definition(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    texts = {f"{sizes}: {node}": graph(node, sizes) for sizes, node in FORMS}
    cases = {n: (onnx_model(text), {"x": X}) for n, text in texts.items()}
    wrong = {}
    for name, answers in run_each(place, cases).items():
        (right,) = evaluated(texts[name])
        got = answers.outputs.get("y")
        # Where the rank of what comes out is all that is known, formats may refuse.
        if got is None and OPEN in name and "size" in answers.refused["y"]:
            continue
        if got is None or got.shape != right.shape or not np.allclose(got, right, 1e-4, 1e-5):
            wrong[name] = answers.refused or (None if got is None else got.shape)
    assert not wrong


def onnx_model(text: str) -> onnx.ModelProto:
    made: onnx.ModelProto = ir.to_proto(parse(text))
    return made


def test_means_of_powers_judge_rounding_up() -> None:
    # ONNX's own reference takes the mean of what is there times the whole window.
    text = graph("LpPool<kernel_shape=[3,2], strides=[3,3], ceil_mode=1>")
    (got,) = evaluated(text)
    rows = [X[:, :, a : a + 3, b : b + 2] for a in (0, 3, 6) for b in (0, 3)]
    right = np.stack([np.sqrt((r.astype(float) ** 2).sum((2, 3))) for r in rows], -1)
    np.testing.assert_allclose(got.reshape(1, 2, 6), right, 1e-9)
