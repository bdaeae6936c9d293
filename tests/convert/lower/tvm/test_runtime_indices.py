"""What depends on values that come with a call: none of them leads out of a tensor or to a trap."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from tests.convert.lower.tvm.run import Array, outputs


def _run(text: str, **feeds: Array) -> Array:
    model = onnx.parser.parse_model(f'<ir_version: 13, opset_import: ["": 24]> g {text}')
    return outputs(model, feeds)["y"]


def test_scattered_far_outside_stays_inside() -> None:
    text = "(float[4,3] x, int64[2,2] i, float[2] u) => (float[4,3] y) { y = ScatterND(x, i, u) }"
    x = np.zeros((4, 3), np.float32)
    places = np.array([[1 << 40, -(1 << 40)], [1, -1]])
    got = _run(text, x=x, i=places, u=np.array([5, 7], np.float32))
    want = x.copy()
    want[3, 0], want[1, 2] = 5, 7
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("mode", "kept"), [("linear", [0, 0, 0, 1]), ("circular", [2, 0, 0, 1])])
def test_a_cache_written_beyond_its_end(mode: str, kept: list[int]) -> None:
    text = (
        "(float[1,4,1] x, float[1,2,1] u, int64[1] i) => (float[1,4,1] y) "
        f'{{ y = TensorScatter<mode="{mode}">(x, u, i) }}'
    )
    update = np.array([1, 2], np.float32).reshape(1, 2, 1)
    got = _run(text, x=np.zeros((1, 4, 1), np.float32), u=update, i=np.array([3]))
    assert got.ravel().tolist() == kept


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_elements_scattered_far_outside_stay_inside(reduction: str) -> None:
    text = (
        "(float[4] x, int64[3] i, float[3] u) => (float[4] y) "
        f'{{ y = ScatterElements<reduction="{reduction}">(x, i, u) }}'
    )
    places, updates = np.array([1 << 40, -(1 << 40), -2]), np.array([5, 7, 9], np.float32)
    got = _run(text, x=np.zeros(4, np.float32), i=places, u=updates)
    assert got.tolist() == [7, 0, 9, 5]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["int8", "int32", "int64"])
@pytest.mark.parametrize("known", [False, True])
def test_a_quotient_that_is_too_large_wraps(kind: str, known: bool) -> None:
    least = np.iinfo(kind).min
    a, b = np.array([7, least, -7, least], kind), np.array([0, -1, -1, 3], kind)
    held = f"<{kind}[4] b = {{0, -1, -1, 3}}>" if known else ""
    given = {"a": a} if known else {"a": a, "b": b}
    taken = ", ".join(f"{kind}[4] {name}" for name in given)
    for op, want in (("Div", [0, least, 7, -(-least // 3)]), ("Mod", [0, 0, 0, least % 3])):
        got = _run(f"({taken}) => ({kind}[4] y) {held} {{ y = {op}(a, b) }}", **given)
        assert got[1:].tolist() == want[1:], op


def test_a_divisor_of_zero_and_of_minus_one() -> None:
    text = "(int32[4] a, int32[4] b) => (int32[4] y) { y = Mod(a, b) }"
    least = np.iinfo(np.int32).min
    got = _run(text, a=np.array([7, least, -7, 7], np.int32), b=np.array([0, -1, 3, -3], np.int32))
    assert got[1:].tolist() == [0, 2, -2]


@pytest.mark.sample(2)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_samples_from_nowhere(padding: str, mode: str) -> None:
    text = (
        "(float[1,1,3,3] x, float[1,1,4,2] g) => (float[1,1,1,4] y) "
        f'{{ y = GridSample<mode="{mode}", padding_mode="{padding}">(x, g) }}'
    )
    places = np.array([[np.nan, 0], [np.inf, 0], [-1e30, 1e30], [0, 0]], np.float32)
    got = _run(text, x=np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3), g=places[None, None])
    assert got[0, 0, 0, 3] == 4
    assert np.abs(got[np.isfinite(got)]).max() < 100


_NAN, _INF = np.nan, np.inf
_ODD = np.array(
    [
        [_NAN] * 6,
        [1, 2, _NAN, 3, 4, 5],
        [_NAN, 1, 5, 2, 3, 4],
        [5, 4, 3, 2, 1, _NAN],
        [-_INF] * 6,
        [_INF, -_INF, _NAN, _NAN, _INF, 0],
    ],
    np.float32,
)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("kind", ["float", pytest.param("double", marks=pytest.mark.slow)])
def test_places_of_the_largest_are_places_where_numbers_are_none(kind: str, largest: int) -> None:
    text = (
        f"({kind}[6,6] x) => (int64[6,4] y) <int64[1] k = {{4}}> "
        f"{{ v, y = TopK<largest={largest}>(x, k) }}"
    )
    x = _ODD.astype("float64" if kind == "double" else "float32")
    # NumPy, too, has NaN behind infinity; equal ones keep their order.
    places = np.argsort(x, axis=1, kind="stable")[:, :4]
    if largest:
        sizes = np.where(
            np.isnan(x), -2.0, np.where(x == _INF, -1.0, np.where(x == -_INF, 9, 6 - x))
        )
        places = np.argsort(sizes, axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(_run(text, x=x), places)


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("ArgMax", 0),
        ("ArgMin", 1),
        pytest.param("ArgMax", 1, marks=pytest.mark.slow),
        pytest.param("ArgMin", 0, marks=pytest.mark.slow),
    ],
)
def test_the_place_of_an_extreme_is_that_of_what_is_no_number(name: str, last: int) -> None:
    text = (
        "(float[6,6] x) => (int64[6] y) "
        f"{{ y = {name}<axis=1, keepdims=0, select_last_index={last}>(x) }}"
    )
    find = np.argmax if name == "ArgMax" else np.argmin
    want = 5 - find(_ODD[:, ::-1], 1) if last else find(_ODD, 1)
    np.testing.assert_array_equal(_run(text, x=_ODD), want)


@pytest.mark.parametrize(
    "far", [1e30, *(pytest.param(x, marks=pytest.mark.slow) for x in (3e9, -1e19))]
)
def test_a_place_reflected_from_far_away_is_between_two_elements(far: float) -> None:
    text = (
        "(float[1,1,4,4] x, float[1,1,2,2] i) => (float[1,1,1,2] y) "
        '{ y = GridSample<align_corners=1, mode="linear", padding_mode="reflection">(x, i) }'
    )
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    places = np.array([far, far, 0.5, far], np.float32).reshape(1, 1, 2, 2)
    got = _run(text, x=x, i=places)
    assert ((got >= 0) & (got <= 15)).all()


@pytest.mark.sample(5)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 300, 1500])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_best_of_a_long_axis(axis: int, count: int, largest: int) -> None:
    shape, made = ("1500,3", f"{count},3") if axis == 0 else ("3,1500", f"3,{count}")
    text = (
        f"(float[{shape}] x) => (int64[{made}] y) <int64[1] k = {{{count}}}>"
        f" {{ v, y = TopK<axis={axis}, largest={largest}>(x, k) }}"
    )
    rng = np.random.default_rng(count)
    # Many are equal, and a few are no numbers.
    x = rng.integers(-200, 200, [int(n) for n in shape.split(",")]).astype(np.float32)
    x.ravel()[rng.integers(0, x.size, 20)] = np.nan
    x.ravel()[rng.integers(0, x.size, 20)] = np.inf
    key = np.where(np.isnan(x), np.float32(1e9), np.where(np.isinf(x), np.float32(1e8), x))
    order = np.argsort(-key if largest else key, axis, kind="stable")
    np.testing.assert_array_equal(_run(text, x=x), np.take(order, range(count), axis))
