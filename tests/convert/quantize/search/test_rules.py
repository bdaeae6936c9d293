"""What is known against layers before anything is measured."""

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.quantize.calibrate.histogram import Histogram
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.search.rules import apart, layers
from edgeinfer.convert.quantize.units import lay_out
from tests.convert.quantize.conftest import LIMITS, graph

HEAD = '<ir_version: 10, opset_import: ["" : 24]> '


def weights(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def rules(model: ir.Model, **ranges: Range) -> dict[str, str]:
    units = lay_out(model, LIMITS).units
    return {y.name: y.rule for y in layers(units, ranges)}


def chain(activation: str) -> ir.Model:
    return graph(
        f"""{HEAD} net (float[1,4,8,8] x) => (float[1,4,8,8] y)
        <float[4,4,1,1] a, float[4,4,1,1] b, float[4,4,1,1] c> {{
          p = Conv(x, a)
          pr = Relu(p)
          q = Conv(pr, b)
          r = {activation}(q)
          y = Conv(r, c)
        }}""",
        a=weights(4, 4, 1, 1),
        b=weights(4, 4, 1, 1),
        c=weights(4, 4, 1, 1),
    )


@pytest.mark.parametrize("activation", ["HardSwish", "Mish", "Swish", "Gelu"])
def test_a_lobe_among_wide_steps_is_told(activation: str) -> None:
    model = chain(activation)
    found = rules(model, q=Range(-20.0, 40.0))
    assert found["Conv_2"].startswith(f"{activation}'s lobe below zero has ")
    # In a narrow range it has steps enough.
    assert rules(model, q=Range(-2.0, 2.0))["Conv_2"] == ""


def test_plain_activations_have_no_lobe() -> None:
    assert rules(chain("Relu"), q=Range(-200.0, 400.0))["Conv_2"] == ""


def test_first_and_last_are_told() -> None:
    found = rules(chain("Relu"))
    assert found == {
        "Conv_0": "first or last layer with weights",
        "Conv_2": "",
        "Conv_4": "first or last layer with weights",
    }


def test_heads_of_a_detector_and_their_join_are_told() -> None:
    model = graph(
        f"""{HEAD} net (float[1,4,8,8] x) => (float[1,8,64] y)
        <float[4,4,1,1] a, float[4,4,1,1] b, float[4,4,1,1] c> {{
          p = Conv(x, a)
          pr = Relu(p)
          box = Conv(pr, b)
          cls = Conv(pr, c)
          score = Sigmoid(cls)
          both = Concat<axis=1>(box, score)
          shape = Constant<value_ints=[1,8,64]>()
          y = Reshape(both, shape)
        }}""",
        a=weights(4, 4, 1, 1),
        b=weights(4, 4, 1, 1),
        c=weights(4, 4, 1, 1),
    )
    found = rules(model, box=Range(0.0, 640.0), score=Range(0.0, 1.0))
    assert found["Concat_5"] == "joins ranges that differ 640 times: one scale cannot serve both"
    assert found["Conv_2"] == found["Conv_3"] == "head of a detector: joined with others"
    assert found["Sigmoid_4"] == "its ends are below one step"


def test_results_among_few_that_are_far_larger_are_told() -> None:
    rng = np.random.default_rng(0)
    units = lay_out(chain("Relu"), LIMITS).units
    name = next(u.result.name for u in units if u.name == "Conv_2") or ""
    usual, few = Histogram(), Histogram()
    values = rng.normal(size=40_000).astype(np.float32)
    usual.add(values)
    few.add(np.append(values, np.float32(100.0)))
    assert few.usual == pytest.approx(1.1, abs=0.05)
    spans = {name: Range(-4.0, 100.0)}
    told = {y.name: y.rule for y in layers(units, spans, {name: few})}["Conv_2"]
    assert told == "its usual results have 2.7 of 255 steps, a few are far larger"
    spans = {name: Range(-4.0, 4.0)}
    assert {y.name: y.rule for y in layers(units, spans, {name: usual})}["Conv_2"] == ""


@pytest.mark.parametrize(
    ("factors", "times"), [((640, 640, 640, 1), "640"), ((3, 0, 2, 1), ""), ((0.5, 8, 1, 1), "16")]
)
def test_a_product_at_the_end_whose_factors_differ_stays_float(
    factors: tuple[float, ...], times: str
) -> None:
    model = graph(
        f"""{HEAD} net (float[1,4,8,8] x) => (float[1,4,8,8] y)
        <float[4,4,1,1] a, float[1,4,1,1] f> {{ p = Conv(x, a) n = Sigmoid(p) y = Mul(n, f) }}""",
        a=weights(4, 4, 1, 1),
        f=np.reshape(np.array(factors, np.float32), (1, 4, 1, 1)),
    )
    found = apart(lay_out(model, LIMITS).units, {})
    assert [line for line in found.values() if f"its factors differ {times} times" in line] == (
        list(found.values()) if times else []
    )
    assert bool(found) == bool(times)


PARTS = {
    "split": "p, q = Split<axis = 1>(r, sizes)",
    "sliced": "p = Slice(r, zero, four, one) q = Slice(r, four, five, one)",
    "gathered": "t = Transpose<perm = [0,2,3,1]>(r) p = Gather<axis = 3>(t, ids)"
    " q = Gather<axis = 3>(t, four)",
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("between", ["r = Relu(c)", "n = Relu(c) r = Mul(n, f)"])
@pytest.mark.parametrize(("score", "times"), [(1.0, "600"), (400.0, "")])
def test_a_layer_whose_parts_differ_stays_float(
    part: str, between: str, score: float, times: str
) -> None:
    model = graph(
        f"""{HEAD} net (float[1,4,8,8] x) => (p, q)
        <float[5,4,1,1] a, float f, int64[2] sizes = {{4, 1}}, int64[1] zero = {{0}},
        int64[1] one = {{1}}, int64[1] four = {{4}}, int64[1] five = {{5}},
        int64[4] ids = {{0, 1, 2, 3}}> {{ c = Conv(x, a) {between} {PARTS[part]} }}""",
        a=weights(5, 4, 1, 1),
        **({"f": np.ones((), np.float32)} if "f)" in between else {}),
    )
    ranges = {n: Range(0.0, 600.0) for n in ("c", "n", "r", "p")} | {"q": Range(0.0, score)}
    units = lay_out(model, LIMITS).units
    found = apart(units, ranges)
    assert set(found) == ({u.name for u in units if u.kind != "move"} if times else set())
    assert all(f"parts of its result differ {times} times" in line for line in found.values())
