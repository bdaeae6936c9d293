"""Operators that are written once, as definitions, on every target that lowers operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.types import Array
from tests.conformance.everywhere import lacking, run
from tests.convert.lower.running import run as run_onnx

PLACES = ("litert", "litert-without-xnnpack", "coreml", "coreai", "tvm")
TRAINING = "ai.onnx.preview.training"
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model_of(
    op: str, given: dict[str, Array], results: int, domain: str = "", **about: object
) -> onnx.ModelProto:
    helper = onnx.helper
    node = helper.make_node(
        op, list(given), [f"o{i}" for i in range(results)], "o0", domain=domain, **about
    )
    inputs = [
        helper.make_tensor_value_info(n, INT64 if a.dtype == np.int64 else FLOAT, a.shape)
        for n, a in given.items()
    ]
    outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in node.output]
    sets = [helper.make_opsetid("", 21), helper.make_opsetid(TRAINING, 1)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=sets, ir_version=10)
    )


def agree(place: str, model: onnx.ModelProto, given: dict[str, Array], right: list[Array]) -> None:
    found = run(place, model, given).outputs
    assert list(found) == [f"o{i}" for i in range(len(right))]
    for name, want in zip(found, right, strict=True):
        np.testing.assert_allclose(found[name], want, rtol=2e-5, atol=1e-6)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if reason := lacking(name):
        pytest.skip(reason)
    return name


def test_max_roi_pool(place: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 9)).astype(np.float32)
    # Of one pixel, halves to be rounded, beyond the image, and of more bins than pixels.
    rois = [[0, 4, 4, 4, 4], [1, 1, 1, 13, 21], [1, 3, 5, 30, 40], [0, -9, -9, 3, 2]]
    given = {"x": x, "rois": np.array(rois, np.float32)}
    model = model_of("MaxRoiPool", given, 1, pooled_shape=[4, 3], spatial_scale=0.5)
    agree(place, model, given, run_onnx(ir.from_proto(model), given))


def _state(kinds: int, count: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    sizes = [(3, 4), (5,)][:count]
    names = [(f"{kind}{i}", size) for kind in "xgvh"[:kinds] for i, size in enumerate(sizes)]
    made = {n: rng.uniform(0.1, 1, size).astype(np.float32) for n, size in names}
    return {"r": np.array(0.1, np.float32), "t": np.array(3, np.int64), **made}


@pytest.mark.sample(each=("place", "count"))
@pytest.mark.parametrize("count", [1, 2])
def test_adagrad(place: str, count: int) -> None:
    given, results = _state(3, count), 2 * count
    about = {"decay_factor": 0.1, "epsilon": 1e-5, "norm_coefficient": 0.01}
    right = [np.zeros(0)] * results
    for i in range(count):
        x, g, h = (given[f"{kind}{i}"].astype(np.float64) for kind in "xgv")
        gradient = 0.01 * x + g
        h = h + gradient**2
        right[i] = x - 0.1 / (1 + 3 * 0.1) * gradient / (np.sqrt(h) + 1e-5)
        right[count + i] = h
    agree(place, model_of("Adagrad", given, results, TRAINING, **about), given, right)


@pytest.mark.sample(each=("place", "mode", "steps"))
@pytest.mark.parametrize("mode", ["standard", "nesterov"])
@pytest.mark.parametrize("steps", [0, 3])
def test_momentum(place: str, mode: str, steps: int) -> None:
    given = {**_state(3, 1), "t": np.array(steps, np.int64)}
    about = {"alpha": 0.9, "beta": 0.2, "norm_coefficient": 0.01, "mode": mode}
    x, g, v = (given[name].astype(np.float64) for name in ("x0", "g0", "v0"))
    gradient = 0.01 * x + g
    speed = 0.9 * v + (0.2 if steps else 1.0) * gradient
    ahead = speed if mode == "standard" else gradient + 0.9 * speed
    agree(place, model_of("Momentum", given, 2, TRAINING, **about), given, [x - 0.1 * ahead, speed])


@pytest.mark.sample(each=("place", "steps"))
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_adam(place: str, steps: int) -> None:
    given = {**_state(4, 1), "t": np.array(steps, np.int64)}
    about = {"alpha": 0.95, "beta": 0.9999, "epsilon": 1e-7, "norm_coefficient": 0.01}
    x, g, v, h = (given[name].astype(np.float64) for name in ("x0", "g0", "v0", "h0"))
    gradient = 0.01 * x + g
    v, h = 0.95 * v + 0.05 * gradient, 0.9999 * h + 0.0001 * gradient**2
    rate = 0.1 * np.sqrt(1 - 0.9999**steps) / (1 - 0.95**steps) if steps else 0.1
    moved = 0.98 * (x - rate * v / (np.sqrt(h) + 1e-7))
    model = model_of("Adam", given, 3, TRAINING, norm_coefficient_post=0.02, **about)
    agree(place, model, given, [moved, v, h])
