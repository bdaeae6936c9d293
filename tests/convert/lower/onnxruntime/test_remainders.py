"""Remainders of integers beyond 2^53, also of the least one by -1."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.convert.lower.running import lower, model


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_remainders_with_the_sign_of_the_dividend_are_exact(kind: str, tmp_path: Path) -> None:
    lowered = lower(
        model(f"g ({kind}[N] a, {kind}[N] b) => ({kind}[N] y) {{ y = Mod<fmod=1>(a, b) }}"),
        tmp_path,
    )
    # An engine that computes it itself may do so in float64.
    assert not any(
        node.op_type == "Mod" and any(a.name == "fmod" and a.i for a in node.attribute)
        for node in onnx.load(lowered.files[0]).graph.node
    )
    ends = np.iinfo(kind)
    whole = [ends.min, ends.min + 1, 7, 8, 2**53 + 1, 2**62 + 3, ends.max - 1, ends.max]
    values = np.array([*whole, *(() if kind == "uint64" else (-8, -7, -1))], kind)
    a, b = (v.ravel() for v in np.meshgrid(values, values[values != 0], indexing="ij"))
    session = onnxruntime.InferenceSession(
        str(lowered.files[0]), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"a": a, "b": b})
    # NumPy takes the least integer by -1 as an overflow on some processors.
    exact = [
        abs(x) % abs(y) * (-1 if x < 0 else 1) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(found, np.array(exact, kind))


@pytest.mark.parametrize("op", ["Div", "Mod", "Mod<fmod=1>"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_the_least_integer_by_minus_one_is_a_number(op: str, kind: str, tmp_path: Path) -> None:
    lowered = lower(
        model(f"g ({kind}[N] a, {kind}[N] b) => ({kind}[N] y) {{ y = {op}(a, b) }}"), tmp_path
    )
    # Whether an engine ends the process differs by version and processor; the file does not.
    # Remainders of 64 bits with the sign of the dividend are taken by the divisor without its own.
    assert {"Where", "Abs"} & {n.op_type for n in onnx.load(lowered.files[0]).graph.node}
    least = np.iinfo(kind).min
    a = np.array([least, least, 7, -7, 7, -7, 0], kind)
    b = np.array([-1, 1, -1, -1, 2, 2, -1], kind)
    session = onnxruntime.InferenceSession(
        str(lowered.files[0]), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"a": a, "b": b})
    want = {
        "Div": [least, least, -7, 7, 3, -3, 0],
        "Mod": [0, 0, 0, 0, 1, 1, 0],
        "Mod<fmod=1>": [0, 0, 0, 0, 1, -1, 0],
    }[op]
    np.testing.assert_array_equal(found, np.array(want, kind))


def test_a_divisor_that_is_known_stays(tmp_path: Path) -> None:
    lowered = lower(
        model("g (int64[N] a) => (int64[N] y) { c = Constant<value_int = 2>() y = Div(a, c) }"),
        tmp_path,
    )
    assert "Where" not in {n.op_type for n in onnx.load(lowered.files[0]).graph.node}
