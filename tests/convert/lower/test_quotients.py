"""Quotients at the ends of integers, and halfway between two of them, on every target."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run

KINDS = ("int8", "int16", "int32", "int64")
FORMS = {"div": "Div({x}, {d})", "mod": "Mod({x}, {d})", "fmod": "Mod<fmod = 1>({x}, {d})"}
DIVISORS = (-1, -1, 2, -1, -1, 3, 1, -3)


def _least(kind: str) -> Array:
    low = np.iinfo(kind).min
    return np.array([low, low + 1, low, -7, 7, 5, low, low], kind)


def _right(form: str, x: Array) -> list[int]:
    """Cut toward zero, wrap around; what is left has the divisor's sign, or the dividend's."""
    found = []
    for a, b in zip(x.tolist(), DIVISORS, strict=True):
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        rest = {"div": quotient, "mod": a - (a // b) * b, "fmod": a - quotient * b}[form]
        low = int(np.iinfo(x.dtype).min)
        found.append((rest - low) % (-2 * low) + low)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_the_least_integer_by_minus_one(place: str) -> None:
    """LiteRT stopped at the largest, and its remainders ended the process."""
    if reason := lacking(place):
        pytest.skip(reason)
    # They refuse what needs more than 32 bits.
    kinds = [k for k in KINDS if k != "int64" or place not in ("openvino", "coreml")]
    known = ", ".join(f"{k}[8] k_{k} = {{{', '.join(map(str, DIVISORS))}}}" for k in kinds)
    nodes, outputs, right = [], [], {}
    for kind in kinds:
        for form, text in FORMS.items():
            for d in ("d", "k"):
                name = f"{form}_{d}_{kind}"
                nodes.append(f"{name} = " + text.format(x=f"x_{kind}", d=f"{d}_{kind}"))
                outputs.append(f"{kind}[8] {name}")
                right[name] = _right(form, _least(kind))
    inputs = ", ".join(f"{k}[8] x_{k}, {k}[8] d_{k}" for k in kinds)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({", ".join(outputs)}) '
        f"<{known}> {{ {' '.join(nodes)} }}"
    )
    feeds = {f"x_{k}": _least(k) for k in kinds}
    answers = run(place, model, feeds | {f"d_{k}": np.array(DIVISORS, k) for k in kinds})
    assert {n: answers.outputs[n].tolist() for n in right if n not in answers.refused} == {
        n: values for n, values in right.items() if n not in answers.refused
    }
    assert not answers.refused


@pytest.mark.parametrize("place", PLACES)
def test_halves_of_a_range_that_a_run_finds(place: str) -> None:
    """OpenVINO added an odd zero point first, and took 255 ranges of a step for its scale."""
    if reason := lacking(place):
        pytest.skip(reason)
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> g (float[N] x)
        => (uint8[N] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }"""
    )
    halves = np.arange(-255, 256) / 2
    nearly = np.array([0, 2, -3, -2.5, 1.34, 0.5])
    rows = (halves, 128), (halves + 64.5, 63), (halves * 0.25, 128), (nearly, 153)
    for x, zero in rows:
        feeds = {"x": x.astype(np.float32)}
        found = run(place, model, feeds).outputs
        scale = np.float32(np.ptp(x) / 255)
        assert found["s"] == scale
        assert found["z"] == zero
        right = np.clip(np.rint(feeds["x"] / scale) + zero, 0, 255)
        np.testing.assert_array_equal(found["y"], right)
