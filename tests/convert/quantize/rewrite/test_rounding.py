"""Weights that are rounded so that their products stay right."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.quantize.calibrate.moments import product_of, sum_up
from edgeinfer.convert.quantize.calibration import Quantizer, Settings
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite.gptq import product_error, round_weights
from edgeinfer.convert.quantize.rewrite.rounding import Grid, fit, kept_apart, output_error, thinned
from edgeinfer.convert.quantize.rewrite.weights import store, store_blocks
from edgeinfer.media.samples import open_data
from edgeinfer.types import TensorSpec
from tests.convert.quantize.conftest import LIMITS, graph

RNG = np.random.default_rng(0)


def test_what_is_known_of_two_inputs() -> None:
    """Two inputs that are always equal: only the sum of their weights matters.

    0.4 and 0.4 become 0 and 0 to the nearest, an error of 0.8; the second makes up for the first.
    """
    weights = np.array([[[0.4, 0.4]]])
    moments = np.array([[[1.0, 1.0], [1.0, 1.0]]])
    found = round_weights(weights, moments, lambda values, at: np.rint(values))
    assert found.tolist() == [[[0.0, 1.0]]]
    assert product_error(found - weights, moments) == pytest.approx(0.04)
    assert product_error(np.rint(weights) - weights, moments) == pytest.approx(0.64)


def test_inputs_without_correlation_are_rounded_to_the_nearest() -> None:
    weights = RNG.normal(size=(1, 5, 300)) * 3
    found = round_weights(weights, np.eye(300)[None], lambda values, at: np.rint(values))
    np.testing.assert_array_equal(found, np.rint(weights))


def product(n: int = 48, k: int = 100) -> tuple[ir.Model, np.ndarray]:
    """A product whose inputs are correlated."""
    mixed = RNG.normal(size=(k, k)) * np.exp(-np.arange(k) / 15)[:, None]
    samples = (RNG.normal(size=(64, 8, k)) @ mixed + 0.3).astype(np.float32)
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        g (float[8,{k}] x) => (float[8,{n}] y) <float[{k},{n}] w> {{ y = MatMul(x, w) }}""",
        w=RNG.normal(size=(k, n)).astype(np.float32),
    )
    return model, samples


@pytest.mark.parametrize("grid", [Grid(), Grid(32), Grid(32, positive=True), Grid(16)], ids=str)
def test_products_are_nearer_on_samples_kept_apart(grid: Grid) -> None:
    model, samples = product()
    node = model.graph[0]
    found = fit(model, {node.name or ""}, grid, lambda: iter([{"x": s} for s in samples]))
    weights = np.asarray(node.inputs[1].const_value.numpy())  # type: ignore[union-attr]
    rounded = found.weights[node.name or ""]
    if grid.block:
        old = store_blocks(weights, grid.block, positive=grid.positive)
        new = store_blocks(rounded.astype(np.float32), grid.block, positive=grid.positive)
        # The same scales: whoever rounds these floats gets the integers that were meant.
        np.testing.assert_array_equal(old.scale, new.scale)
        before, after = old.floats() - weights, new.floats() - weights
    else:
        plain, fresh = store(weights, 1), store(rounded.astype(np.float32), 1)
        np.testing.assert_array_equal(plain.scale, fresh.scale)
        before, after = plain.floats() - weights, fresh.floats() - weights
    apart = samples[3::4].astype(np.float64)
    gained = np.square(apart @ after).sum() / np.square(apart @ before).sum()
    assert gained == pytest.approx(found.after / found.before, rel=1e-3)
    assert gained < 0.4
    assert found.line().startswith("weights of 1 of 1 layers are rounded so that")


@pytest.mark.parametrize(
    ("attributes", "shape", "channels"),
    [
        ("pads=[1,1,1,1]", (6, 4, 3, 3), 4),
        ("pads=[1,0,2,1], strides=[2,1], dilations=[1,2]", (6, 4, 3, 2), 4),
        ("group=4, pads=[1,1,1,1]", (8, 1, 3, 3), 4),
        ("group=2", (6, 2, 1, 1), 4),
    ],
)
def test_convolutions_are_products_of_windows(
    attributes: str, shape: tuple[int, ...], channels: int
) -> None:
    """The windows times the weights are what ONNX Runtime computes."""
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]> g (float[2,{channels},7,9] x) => (float[*] y)
        <float[{",".join(map(str, shape))}] w> {{ y = Conv<{attributes}>(x, w) }}""".replace(
            "float[*] y", "y"
        ),
        w=RNG.normal(size=shape).astype(np.float32),
    )
    from edgeinfer.convert.verify.evaluate import Evaluator

    x = RNG.normal(size=(2, channels, 7, 9)).astype(np.float32)
    expected = Evaluator(model, wide=True).run({"x": x})["y"]
    layer = product_of(model.graph[0])
    assert layer is not None
    weights = np.asarray(model.graph[0].inputs[1].const_value.numpy())  # type: ignore[union-attr]
    y = layer.rows(x) @ np.swapaxes(layer.matrices(weights), 1, 2)
    y = np.moveaxis(y, 0, 1).reshape(2, *expected.shape[2:], shape[0])
    np.testing.assert_allclose(np.moveaxis(y, -1, 1), expected, atol=1e-5)
    np.testing.assert_array_equal(layer.restored(layer.matrices(weights), shape), weights)


def test_memory_does_not_grow_with_the_samples() -> None:
    model, samples = product(8, 40)
    layer = product_of(model.graph[0])
    assert layer is not None

    def data() -> Iterator[dict[str, np.ndarray]]:
        return iter([{"x": s} for s in samples])

    ((_, moments),) = sum_up(model, [layer], data)
    assert moments.fitted.shape == moments.judged.shape == (1, 40, 40)
    wide = samples.astype(np.float64).reshape(16, 4, 8, 40)
    exact = np.einsum("nri,nrj->ij", wide[:, 3], wide[:, 3])
    # Samples are multiplied in single precision and added up in double.
    np.testing.assert_allclose(moments.judged[0], exact, rtol=0, atol=1e-6 * exact.max())


def test_layers_with_one_operand_share_its_sums_and_the_dearest_are_left_out() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        g (float[8,40] x) => (float[8,6] a, float[8,7] b, float[8,9] c)
        <float[40,6] u, float[40,7] v, float[6,9] w>
        { a = MatMul(x, u)  b = MatMul(x, v)  c = MatMul(a, w) }""",
        u=RNG.normal(size=(40, 6)).astype(np.float32),
        v=RNG.normal(size=(40, 7)).astype(np.float32),
        w=RNG.normal(size=(6, 9)).astype(np.float32),
    )
    layers = [product_of(n) for n in model.graph]
    assert all(y is not None for y in layers)
    samples = [{"x": RNG.normal(size=(8, 40)).astype(np.float32)} for _ in range(16)]
    found = list(sum_up(model, [y for y in layers if y], lambda: iter(samples)))
    assert [p.node.outputs[0].name for p, _ in found] == ["a", "b", "c"]
    assert found[0][1] is found[1][1]
    assert found[0][1] is not found[2][1]
    names = {n.name or "" for n in model.graph}
    cheapest = fit(model, names, Grid(), lambda: iter(samples), samples=16, most_work=1e6)
    assert cheapest.tried == 1


def test_many_samples_are_thinned() -> None:
    data, total = thinned(lambda: iter([{"x": np.array(i)} for i in range(300)]), 300)
    taken = [int(f["x"]) for f in data()]
    assert taken == list(range(0, 300, 3))
    assert total == len(taken)
    same, count = thinned(data, 100)
    assert (same, count) == (data, 100)


@pytest.mark.parametrize("name", ["weight_only_wi4b32_afp32", "weight_only_wi8_afp32"])
def test_weights_alone_gain_too(name: str) -> None:
    model, samples = product(48, 96)
    spec = TensorSpec("x", "float32", (8, 96))
    data = open_data([{"x": s} for s in samples], [spec])
    errors = []
    for by_data in (False, True):
        quantizer = Quantizer(model, recipe(name), Settings(force=True, round_weights=by_data))
        quantizer.calibrate(data, [LIMITS], [spec])
        written = quantizer.write(LIMITS).model
        errors += output_error(model, [written], [{"x": s} for s in samples[3::4]])
    assert errors[1] < 0.5 * errors[0]
    assert any("error of the outputs with these weights" in line for line in quantizer.notes)
    assert quantizer.to_json()["rounded_by_data"] == 1


def test_layers_that_stay_float_have_their_own_weights() -> None:
    model, samples = product(48, 96)
    spec = TensorSpec("x", "float32", (8, 96))
    data = open_data([{"x": s} for s in samples], [spec])
    quantizer = Quantizer(model, recipe("weight_only_wi4b32_afp32"), Settings(force=True))
    quantizer.calibrate(data, [LIMITS], [spec])
    name = model.graph[0].name or ""
    kept = quantizer.write(LIMITS, kept=frozenset({name})).model
    (error,) = output_error(model, [kept], [{"x": samples[0]}])
    assert error == 0.0


def test_samples_kept_apart_are_those_that_nothing_was_fitted_to() -> None:
    found = kept_apart(lambda: iter([{"x": np.array(i)} for i in range(64)]), 64, 4)
    places = [int(f["x"]) for f in found]
    assert places == [3, 19, 35, 51]
    assert all(p % 4 == 3 for p in places)
