"""Ranges of other calibrators, from what was seen once."""

import numpy as np
import pytest

from edgeinfer.convert import passes
from edgeinfer.convert.quantize.calibration import Quantizer, Settings
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.media.samples import open_data
from tests.convert.quantize.conftest import LIMITS, graph


@pytest.fixture(scope="module")
def quantizer() -> Quantizer:
    rng = np.random.default_rng(0)
    model = passes.normalise(
        graph(
            """<ir_version: 10, opset_import: ["" : 24]>
            net (float[1,64] x) => (float[1,8] y) <float[64,64] v, float[64,8] w>
            { a = MatMul(x, v) s = Sigmoid(a) y = MatMul(s, w) }""",
            v=rng.normal(size=(64, 64)).astype(np.float32),
            w=rng.normal(size=(64, 8)).astype(np.float32),
        )
    ).model
    specs = passes.input_specs(model)
    feeds = [{"x": rng.standard_t(2, size=(1, 64)).astype(np.float32)} for _ in range(64)]
    made = Quantizer(model, recipe("static_wi8_ai8"), Settings(force=True))
    made.calibrate(open_data(feeds, specs), [LIMITS], specs)
    return made


def width(quantizer: Quantizer, name: str) -> float:
    return quantizer.ranges[name].width


def test_what_was_asked_for_is_the_same_object(quantizer: Quantizer) -> None:
    assert quantizer.by("") is quantizer
    assert quantizer.by("mse") is quantizer


def test_each_calibrator_has_its_own_ranges(quantizer: Quantizer) -> None:
    whole = quantizer.by("minmax")
    assert whole.settings.method == "minmax"
    assert width(quantizer.by("entropy"), "x") < 0.9 * width(whole, "x")


def test_narrower_ranges_leave_those_with_known_ends_alone(quantizer: Quantizer) -> None:
    half = quantizer.by("mse*0.5")
    assert width(half, "x") == pytest.approx(0.5 * width(quantizer, "x"))
    assert width(half, "s") == width(quantizer, "s")
