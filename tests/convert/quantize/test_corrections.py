"""Each correction has the value that is known, and helps the net that needs it."""

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.quantize import calibration
from edgeinfer.convert.quantize.calibrate.histogram import ChannelStats
from edgeinfer.convert.quantize.calibration import Quantizer, Settings
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite.correct import corrected_biases
from edgeinfer.convert.quantize.rewrite.equalise import equalise_layers, smooth
from edgeinfer.convert.quantize.rewrite.rounding import output_error
from edgeinfer.convert.quantize.units import array_of, lay_out
from edgeinfer.media.samples import open_data
from edgeinfer.types import TensorSpec
from tests.convert.quantize.conftest import LIMITS, graph

HEAD = '<ir_version: 10, opset_import: ["" : 24]> '


def error(model: ir.Model, samples: list[dict[str, np.ndarray]], **settings: bool) -> float:
    """Calibrate, write, and return the squared error of the outputs over their squares."""
    specs = [TensorSpec(n, "float32", a.shape) for n, a in samples[0].items()]
    asked = Settings(force=True, **{"round_weights": False, **settings})  # type: ignore[arg-type]
    quantizer = Quantizer(model, recipe("static_wi8_ai8"), asked)
    quantizer.calibrate(open_data(samples, specs), [LIMITS], specs)
    return output_error(model, [quantizer.write(LIMITS).model], samples[:16])[0]


def depthwise(channels: int = 8) -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """A convolution whose channels differ a hundred times; the next one makes up for it."""
    rng = np.random.default_rng(0)
    unlike = np.logspace(-1.5, 1.5, channels).reshape(-1, 1, 1, 1)
    model = graph(
        f"""{HEAD} net (float[1,3,12,12] x) => (float[1,4,12,12] y)
        <float[{channels},3,1,1] w1, float[{channels}] b1, float[{channels},1,3,3] w2,
         float[{channels}] b2, float[4,{channels},1,1] w3> {{
          a = Conv(x, w1, b1)
          r = Relu(a)
          d = Conv<group={channels}, pads=[1,1,1,1]>(r, w2, b2)
          y = Conv(d, w3)
        }}""",
        w1=(rng.normal(size=(channels, 3, 1, 1)) * unlike).astype(np.float32),
        b1=(rng.normal(size=channels) * unlike.ravel()).astype(np.float32),
        w2=(rng.normal(size=(channels, 1, 3, 3)) / unlike).astype(np.float32),
        b2=np.zeros(channels, np.float32),
        w3=rng.normal(size=(4, channels, 1, 1)).astype(np.float32),
    )
    return model, [{"x": rng.normal(size=(1, 3, 12, 12)).astype(np.float32)} for _ in range(32)]


def test_two_layers_meet_in_the_middle() -> None:
    """Both get the square root of the product of their ranges, channel by channel."""
    w1 = np.array([8.0, 2.0, 0.5], np.float32).reshape(3, 1, 1, 1)
    w2 = np.array([[2.0, 2.0, 32.0]], np.float32).reshape(1, 3, 1, 1)
    model = graph(
        f"""{HEAD} net (float[1,1,2,2] x) => (float[1,1,2,2] y)
        <float[3,1,1,1] w1, float[3] b, float[1,3,1,1] w2> {{
          a = Conv(x, w1, b)
          y = Conv(a, w2)
        }}""",
        w1=w1,
        w2=w2,
        b=np.array([4.0, 2.0, 1.0], np.float32),
    )
    assert equalise_layers(model) == 1
    first, second = (n for n in model.graph if n.op_type == "Conv")
    np.testing.assert_allclose(array_of(first.inputs[1]).ravel(), [4, 2, 4], rtol=1e-6)
    np.testing.assert_allclose(array_of(second.inputs[1]).ravel(), [4, 2, 4], rtol=1e-6)
    np.testing.assert_allclose(array_of(first.inputs[2]), [2, 2, 8], rtol=1e-6)


def test_a_depthwise_net_with_unlike_channels_needs_it() -> None:
    model, samples = depthwise()
    without, with_it = (error(model, samples, equalise=on) for on in (False, True))
    assert with_it < without / 10
    assert with_it < 1e-3


def transformer() -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """A normalisation that gives two channels a hundred times the size of the others."""
    rng = np.random.default_rng(0)
    gain = np.ones(32, np.float32)
    gain[[3, 20]] = 100.0
    weights = rng.normal(size=(32, 16)).astype(np.float32)
    weights[[3, 20]] /= 100.0
    model = graph(
        f"""{HEAD} net (float[1,6,32] x) => (float[1,6,16] y)
        <float[32] g, float[32] s, float[32,16] w> {{
          a = LayerNormalization<axis=-1>(x, g, s)
          y = MatMul(a, w)
        }}""",
        g=gain,
        s=np.zeros(32, np.float32),
        w=weights,
    )
    return model, [{"x": rng.normal(size=(1, 6, 32)).astype(np.float32)} for _ in range(32)]


def test_outliers_are_shared_between_activations_and_weights() -> None:
    """The factor is the root of the activation's range over the root of the weights'."""
    model, _ = transformer()
    before = array_of(model.graph[1].inputs[1]).copy()
    stats = ChannelStats(np.where(np.isin(np.arange(32), [3, 20]), 400.0, 4.0), np.zeros(32), 1)
    assert smooth(model, {"a": stats}) == 1
    largest = np.abs(before).max(axis=1)
    factor = np.sqrt(stats.largest / largest)
    factor /= np.median(factor)
    np.testing.assert_allclose(
        array_of(model.graph[1].inputs[1]), before * factor[:, None], rtol=1e-5
    )
    np.testing.assert_allclose(
        array_of(model.graph[0].inputs[1])[[3, 20]], (100.0 / factor)[[3, 20]], rtol=1e-5
    )


def test_a_transformer_with_outlier_channels_needs_it() -> None:
    model, samples = transformer()
    without, with_it = (error(model, samples, equalise=on) for on in (False, True))
    assert with_it < without / 20


@pytest.mark.parametrize(("after", "taken"), [(0.1, True), (0.3, False), (0.2, False)])
@pytest.mark.parametrize("made", ["depthwise", "transformer"])
def test_models_are_only_rewritten_where_the_outputs_gain(
    made: str, after: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, samples = {"depthwise": depthwise, "transformer": transformer}[made]()
    monkeypatch.setattr(calibration, "output_error", lambda *_: [0.2, after])
    specs = [TensorSpec(n, "float32", a.shape) for n, a in samples[0].items()]
    settings = Settings(force=True, round_weights=False)
    quantizer = Quantizer(model, recipe("static_wi8_ai8"), settings)
    quantizer.calibrate(open_data(samples, specs), [LIMITS], specs)
    assert (quantizer.model is not model) == taken
    notes = " ".join(quantizer.notes)
    assert f"error of the outputs {after} of their energy, 0.2 without" in notes
    assert ("not done, for it does not pay" in notes) != taken


def test_a_bias_takes_back_what_rounded_weights_add() -> None:
    """Weights of 127, 0.5 and 1.5 round to 127, 0 and 2: inputs of mean 2 and 4 are 1 too much."""
    model = graph(
        f"""{HEAD} net (float[1,3] x) => (float[1,1] y) <float[3,1] w, float[1] b> {{
          y = Gemm(x, w, b)
        }}""",
        w=np.array([[127.0], [0.5], [1.5]], np.float32),
        b=np.array([10.0], np.float32),
    )
    stats = ChannelStats(np.ones(3), np.array([7.0, 2.0, 4.0]), 1)
    found = corrected_biases(lay_out(model, LIMITS).units, {"x": stats}, LIMITS)
    (bias,) = found.values()
    assert bias == pytest.approx([10.0 + 0.5 * 2.0 - 0.5 * 4.0])
    # Weights that are rounded otherwise are corrected for what they really are.
    name = model.graph[0].name or ""
    other = {name: np.array([[127.0], [1.0], [1.0]], np.float32)}
    found = corrected_biases(lay_out(model, LIMITS).units, {"x": stats}, LIMITS, other)
    assert found[name] == pytest.approx([10.0 - 0.5 * 2.0 + 0.5 * 4.0])


def test_small_weights_and_inputs_of_one_sign_need_the_bias() -> None:
    """Pictures behind a Relu: all inputs are positive, so what is rounded does not cancel out."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 64, 1, 1)) * 0.02
    weights[:, 0] = 4.0
    model = graph(
        f"""{HEAD} net (float[1,64,4,4] x) => (float[1,4,4,4] y) <float[4,64,1,1] w, float[4] b> {{
          y = Conv(x, w, b)
        }}""",
        w=weights.astype(np.float32),
        b=np.zeros(4, np.float32),
    )
    levels = rng.uniform(0, 4, (64, 1, 1))
    levels[0] = 0.0
    samples = [
        {"x": (levels + rng.uniform(0, 0.1, (1, 64, 4, 4))).astype(np.float32)} for _ in range(32)
    ]
    without, with_it = (error(model, samples, correct_bias=on) for on in (False, True))
    assert with_it < without / 3
