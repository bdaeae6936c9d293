import pytest

from edgeinfer.convert.lower.openvino.pooling import Edge, overhangs
from tests.convert.lower.running import model


@pytest.mark.parametrize(
    ("size", "attributes", "axis"),
    [
        ("7", "kernel_shape = [2], strides = [2], ceil_mode = 1", Edge(False, True)),
        ("8", "kernel_shape = [2], strides = [2], ceil_mode = 1", Edge(False, False)),
        ("2", "kernel_shape = [1], strides = [2], ceil_mode = 1", Edge(True, True)),
        ("9", "kernel_shape = [7], strides = [3], pads = [3,3], ceil_mode = 1", Edge(False, True)),
        ("W", "kernel_shape = [3], strides = [2], pads = [1,1], ceil_mode = 1", Edge(False, None)),
        ("W", "kernel_shape = [1], strides = [2], ceil_mode = 1", Edge(None, None)),
        ("W", "kernel_shape = [2], strides = [3], dilations=[3], ceil_mode=1", Edge(False, None)),
    ],
)  # fmt: skip
def test_place_of_the_last_window(size: str, attributes: str, axis: Edge) -> None:
    whole = model(f"g (float[1,1,{size}] x) => (float[1,1,B] y) {{ y = MaxPool<{attributes}>(x) }}")
    assert overhangs(whole.graph[0]) == (axis,)


@pytest.mark.parametrize(
    "attributes", ["kernel_shape = [2]", 'kernel_shape = [2], ceil_mode = 1, auto_pad = "VALID"']
)
def test_other_poolings_have_none(attributes: str) -> None:
    whole = model(f"g (float[1,1,7] x) => (float[1,1,B] y) {{ y = MaxPool<{attributes}>(x) }}")
    assert overhangs(whole.graph[0]) == ()
