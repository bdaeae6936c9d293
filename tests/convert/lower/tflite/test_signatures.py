"""One file for several sizes: each set of shapes is a signature, constants are shared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.litert.backend import LitertBackend
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.lower.tflite.target import TfliteTarget
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.errors import InputError, UnsupportedError
from edgeinfer.types import TensorSpec
from tests.convert.lower.tflite.run import expected, model_of, profile

NET = """g (float[N,4,T] x, float[N] k) => (float[N,M] y, float[N,4,T] z) {
    f = Flatten(x) w = Constant<value_float=0.5>() s = Mul(f, w) y = Tanh(s) z = Relu(x)
}"""
# The rank in the middle of this one follows from the sizes.
SQUEEZED = """g (float[N,4,T] x) => (float[a] y) {
    s = Squeeze(x) r = Relu(s) o = Constant<value_ints=[-1]>() y = Reshape(r, o) }"""
SETS = ({"x": (1, 4, 3), "k": (1,)}, {"x": (2, 4, 5), "k": (2,)}, {"x": (2, 4, 3), "k": (2,)})


def made(text: str, sets: tuple[Mapping[str, tuple[int, ...]], ...], folder: Path) -> Lowered:
    options = LowerOptions(shape_sets=sets)
    return TfliteTarget().lower(normalise(model_of(text)).model, profile(), options, folder)


def feeds_of(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}


@pytest.mark.parametrize("described", [True, False])
def test_each_set_of_sizes_runs(described: bool, tmp_path: Path) -> None:
    lowered = made(NET, SETS, tmp_path)
    assert any(
        "3 signatures, one for each set of sizes: serving_default, x_2x4x5__k_2, x_2x4x3__k_2" in n
        for n in lowered.notes
    )
    model = normalise(model_of(NET)).model
    specs = (input_specs(model), output_specs(model)) if described else ((), ())
    run = LitertBackend().load(Artifact("tflite", lowered.files[0], *specs), LoadOptions())
    if not described:
        assert run.inputs == (
            TensorSpec("x", "float32", (None, 4, None)),
            TensorSpec("k", "float32", (None,)),
        )
        assert [o.shape for o in run.outputs] == [(None, None), (None, None, None)]
    for seed in (0, 1):
        for shapes in SETS:
            feeds = feeds_of(shapes, seed)
            got = run.run(feeds)
            for name, want in expected(NET, feeds).items():
                np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        InputError, match=r"signature \(k=1, x=1x4x3; k=2, .* received k=1, x=1x4x5"
    ):
        run.run(feeds_of({"x": (1, 4, 5), "k": (1,)}))
    # A refusal leaves nothing behind.
    assert run.run(feeds_of(SETS[0]))["z"].shape == (1, 4, 3)


def test_buffers_of_any_set_can_be_bound(tmp_path: Path) -> None:
    lowered = made(NET, SETS, tmp_path)
    run = LitertBackend().load(Artifact("tflite", lowered.files[0], (), ()), LoadOptions())
    for shapes in SETS:
        feeds = feeds_of(shapes)
        want = expected(NET, feeds)
        results = {name: np.empty_like(value) for name, value in want.items()}
        run.bind(feeds, results)()
        for name, value in want.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-6)


def test_what_cannot_stay_open_is_written_at_fixed_sizes(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="dynamic_shape"):
        made(SQUEEZED, (), tmp_path)
    sets = ({"x": (1, 4, 3)}, {"x": (2, 4, 1)})
    lowered = made(SQUEEZED, sets, tmp_path)
    run = LitertBackend().load(Artifact("tflite", lowered.files[0], (), ()), LoadOptions())
    for shapes in sets:
        feeds = feeds_of(shapes)
        np.testing.assert_array_equal(run.run(feeds)["y"], np.maximum(feeds["x"], 0).ravel())


def test_weights_are_stored_once(tmp_path: Path) -> None:
    text = "g (float[N,256] x) => (float[N,256] y) <float[256,256] w = {%s}> { y = MatMul(x, w) }"
    numbers = np.random.default_rng(0).normal(size=256 * 256)
    text = text % ", ".join(f"{v:.4f}" for v in numbers)
    (tmp_path / "one").mkdir()
    one = made(text, ({"x": (1, 256)},), tmp_path / "one").files[0].stat().st_size
    two = made(text, ({"x": (1, 256)}, {"x": (8, 256)}), tmp_path).files[0].stat().st_size
    assert one > 4 * 256**2
    assert two < one + 2000
