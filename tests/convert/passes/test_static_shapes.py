import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.passes.static_shapes import BindShapes
from edgeinfer.errors import UsageError
from tests.convert.passes.rewriting import check, check_left_alone, parse

TEXT = (
    "g (float[N,3,H] x, float[N,4] box) => (float[N,3,H] y, float[N,4] z)"
    " { y = Relu(x) z = Neg(box) }"
)


def test_a_named_size_is_bound_everywhere() -> None:
    model = parse(TEXT)
    feeds = {"x": np.ones((2, 3, 5), np.float32), "box": np.ones((2, 4), np.float32)}
    check(model, [BindShapes({"x": (2, 3, 5)}), InferShapes()], {"Relu": 1, "Neg": 1}, feeds)
    shapes = [str(v.shape) for v in (*model.graph.inputs, *model.graph.outputs)]
    assert shapes == ["[2,3,5]", "[2,4]", "[2,3,5]", "[2,4]"]


def test_a_size_may_stay_open() -> None:
    model = parse(TEXT)
    BindShapes({"x": (2, None, None)})(model)
    assert [str(v.shape) for v in model.graph.inputs] == ["[2,3,H]", "[2,4]"]


@pytest.mark.parametrize("sizes", [[-1, 3, -1], ["?", 3, "?"]])
def test_what_exporters_write_for_an_open_size_is_open(sizes: list[int | str]) -> None:
    model = parse("g (float[A,3,B] x) => (float[A,3,B] y) { y = Relu(x) }")
    model.graph.inputs[0].shape = ir.Shape(sizes)
    assert BindShapes({"x": (2, 3, 5)})(model).modified
    assert str(model.graph.inputs[0].shape) == "[2,3,5]"


def test_an_input_of_unknown_rank_takes_a_whole_shape() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    model.graph.inputs[0].shape = None
    BindShapes({"x": (2, 3)})(model)
    assert str(model.graph.inputs[0].shape) == "[2,3]"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"image": (1, 3, 5)}, "no input 'image' to give a shape; the inputs are: 'x', 'box'"),
        ({"x": (1, 3)}, "input 'x': expected 3 sizes for [N,3,H], received [1,3]"),
        ({"x": (1, 4, 5)}, "input 'x': axis 1 has the fixed size 3, received 4"),
        ({"x": (0, 3, 5)}, "input 'x': axis 0: expected a positive size, received 0"),
        (
            {"x": (1, 3, 5), "box": (2, 4)},
            "input 'box': axis 0 is 'N', which input 'x' makes 1, received 2",
        ),
    ],
)
def test_a_contradiction_is_a_usage_error_and_changes_nothing(
    shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    model = parse(TEXT)
    with pytest.raises(UsageError) as caught:
        BindShapes(shapes)(model)
    assert str(caught.value) == message
    assert str(model.graph.inputs[0].shape) == "[N,3,H]"


def test_no_shapes_change_nothing() -> None:
    check_left_alone(parse(TEXT), BindShapes({}))
