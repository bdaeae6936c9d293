"""Norms, softmax and reductions: kernels over rows where axes lie so, plain loops else."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.testing.cases import graph
from edgeinfer.kernels.defs import norms, rows
from tests.convert.lower.tvm.run import Array, outputs

RNG = np.random.default_rng(0)


def _array(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels over rows that were written."""
    found: list[str] = []
    for module, name in ((norms, "reduced"), (norms, "normalised"), (rows, "softmax")):
        made = getattr(module, name)

        def kept(*given, name=name, made=made, **more):  # type: ignore[no-untyped-def]
            found.append(name)
            return made(*given, **more)

        monkeypatch.setattr(module, name, kept)
    return found


def _normed(x: Array, axes: tuple[int, ...]) -> Array:
    wide = x.astype(np.float64)
    wide = wide - wide.mean(axis=axes, keepdims=True)
    return np.asarray(wide / np.sqrt((wide**2).mean(axis=axes, keepdims=True) + 1e-5))


@pytest.mark.parametrize(("last", "own"), [(5, False), (20, True)])
def test_layer_normalization(last: int, own: bool, calls: list[str]) -> None:
    model = graph(
        f"(float[2,3,{last}] x) => (float[2,3,{last}] y) {{ y = LayerNormalization(x, g, h) }}",
        g=(scale := _array(last)),
        h=(bias := _array(last)),
    )
    x = _array(2, 3, last)
    want = _normed(x, (2,)) * scale + bias
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], want, atol=2e-5)
    assert calls == (["normalised"] if own else [])


@pytest.mark.parametrize("computed", [False, True])
def test_instance_normalization_of_two_pictures(computed: bool, calls: list[str]) -> None:
    given = "InstanceNormalization(x, s, b)" if computed else "InstanceNormalization(x, g, h)"
    step = "s = Neg(z) b = Abs(z) " if computed else ""
    model = graph(
        f"(float[2,3,4,5] x, float[3] z) => (float[2,3,4,5] y) {{ {step}y = {given} }}",
        g=(scale := _array(3)),
        h=(bias := _array(3)),
    )
    x, z = _array(2, 3, 4, 5), _array(3)
    if computed:
        scale, bias = -z, np.abs(z)
    want = _normed(x, (2, 3)) * scale[:, None, None] + bias[:, None, None]
    np.testing.assert_allclose(outputs(model, {"x": x, "z": z})["y"], want, atol=2e-5)
    # What is computed is there once, for two images.
    assert calls == (["reduced"] * 2 if computed else ["normalised"])


def test_softmax_with_a_mask(calls: list[str]) -> None:
    model = graph("(float[3,20] x) => (float[3,20] y) { y = Softmax(x) }")
    x = _array(3, 20)
    x[0, 5:] = -np.inf
    x[1, 3] = np.nan
    with np.errstate(invalid="ignore"):
        power = np.exp(x - x.max(axis=1, keepdims=True))
    want = power / power.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], want, atol=1e-6)
    assert calls == ["softmax"]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("axes", "own"), [((2, 3), True), ((0, 1, 2, 3), True), ((1, 3), False), ((0,), False)]
)
@pytest.mark.parametrize(
    ("op", "exact"),
    [
        ("ReduceMean", np.mean),
        ("ReduceMax", np.max),
        ("ReduceL2", lambda x, axis, keepdims: np.sqrt((x * x).sum(axis=axis, keepdims=keepdims))),
    ],
)
def test_reductions(op: str, exact, axes: tuple[int, ...], own: bool, calls: list[str]) -> None:  # type: ignore[no-untyped-def]
    x = _array(2, 3, 4, 5)
    want = exact(x.astype(np.float64), axis=axes, keepdims=False)
    size = ",".join(map(str, np.shape(want)))
    kind = f"float[{size}]" if size else "float"
    model = graph(
        f"(float[2,3,4,5] x) => ({kind} y) {{ y = {op}<keepdims=0>(x, axes) }}",
        axes=np.array(axes),
    )
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], want, rtol=1e-5, atol=1e-5)
    # A norm divides by the largest element first, so that squares stay within float32.
    assert calls == ["reduced"] * (own * (2 if op == "ReduceL2" else 1))


def test_few_columns() -> None:
    model = graph(
        "(float[3,70] x) => (float[3,1] y) { z = Gemm(x, w, b) y = Sigmoid(z) }",
        w=(w := _array(70, 1)),
        b=(b := _array(1)),
    )
    x = _array(3, 70)
    want = 1 / (1 + np.exp(-(x.astype(np.float64) @ w + b)))
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], want, atol=2e-6)


def test_on_the_virtual_machine(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    monkeypatch.setattr("edgeinfer.convert.lower.tvm.build.DIRECT_UP_TO", 0)
    model = graph(
        "(float[4,20] x) => (float[4,20] y, float[4] m, float[4,20] s, float[4,20] t) "
        "{ y = LayerNormalization(x, g, h) m = ReduceMax<keepdims=0>(x, last) s = Softmax(x) "
        "r = Reshape(x, four) i = GroupNormalization<num_groups=2>(r, one, none) "
        "t = Reshape(i, two) }",
        g=(scale := _array(20)),
        h=(bias := _array(20)),
        last=np.array([1]),
        four=np.array([1, 4, 4, 5]),
        one=np.ones(2, np.float32),
        none=np.zeros(2, np.float32),
        two=np.array([4, 20]),
    )
    x = _array(4, 20)
    got = outputs(model, {"x": x})
    np.testing.assert_allclose(got["y"], _normed(x, (1,)) * scale + bias, atol=2e-5)
    np.testing.assert_array_equal(got["m"], x.max(axis=1))
    power = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got["s"], power / power.sum(axis=1, keepdims=True), atol=1e-6)
    groups = _normed(x.reshape(2, 40), (1,)).reshape(4, 20)
    np.testing.assert_allclose(got["t"], groups, atol=2e-5)
    assert sorted(calls) == ["normalised", "normalised", "reduced", "softmax"]
