from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.coreml_reference.backend import (
    CoreMLReferenceBackend,
    CoreMLReferenceExecutable,
)
from edgeinfer.convert.lower.coreml.deployment import DEPLOYMENTS, deployment
from edgeinfer.convert.lower.coreml.options import CoreMLOptions
from edgeinfer.convert.lower.target import Lowered
from edgeinfer.errors import RunError, UnsupportedError, UsageError
from edgeinfer.types import ImageInput
from tests.convert.lower.coreml.run import check, evaluate, floats, lower, refusal

ADDING = (
    "g (float[1,4] x, float[1,4] state) => (float[1,4] y, float[1,4] stateN) "
    "{stateN = Add(x, state) y = Relu(stateN)}"
)


def opened(made: Lowered) -> CoreMLReferenceExecutable:
    """The package as others see it, without the bundle's description."""
    artifact = Artifact(made.format, made.files[0], (), ())
    return CoreMLReferenceBackend().load(artifact, LoadOptions())


@pytest.mark.parametrize("one", DEPLOYMENTS)
def test_every_deployment_target_writes_its_specification(one: object, tmp_path: Path) -> None:
    from edgeinfer.backends.coreml_reference.package import open_package

    text = "g (float[1,2,4,4] x) => (float[1,2,4,4] y) {a = Relu(x) y = Softmax(a)}"
    made = lower(text, tmp_path, options=CoreMLOptions(one))  # type: ignore[arg-type]
    assert open_package(made.files[0]).version == one.specification  # type: ignore[attr-defined]
    x = floats(1, 2, 4, 4)
    relu = np.maximum(x, 0)
    want = np.exp(relu) / np.exp(relu).sum(-1, keepdims=True)
    np.testing.assert_allclose(evaluate(text, made, {"x": x})["y"], want, rtol=1e-5)


def test_deployment_targets_go_by_the_names_of_both_systems() -> None:
    assert deployment("ios17") is deployment("macOS14")
    with pytest.raises(UsageError, match="iOS13"):
        deployment("iOS13")


def test_a_newer_operator_names_the_target_that_has_it(tmp_path: Path) -> None:
    old = CoreMLOptions(deployment("iOS15"), states={"state": "stateN"})
    with pytest.raises(Exception, match="read_state") as caught:
        lower(ADDING, tmp_path, options=old)
    assert "iOS18" in str(getattr(caught.value, "hint", caught.value))


def test_a_picture_is_given_as_pixels(tmp_path: Path) -> None:
    text = "g (float[1,3,4,5] x) => (float[1,3] y) {p = GlobalAveragePool(x) y = Flatten(p)}"
    image = ImageInput(5, 4, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    made = lower(text, tmp_path, options=CoreMLOptions(images={"x": image}))
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 4, 5)).astype(np.float32)
    mean, std = (np.reshape(v, (1, 3, 1, 1)) for v in (image.mean, image.std))
    want = ((pixels * image.scale - mean) / std).mean(axis=(2, 3))
    np.testing.assert_allclose(evaluate(text, made, {"x": pixels})["y"], want, atol=2e-6)


def test_a_picture_needs_its_channels(tmp_path: Path) -> None:
    text = "g (float[1,2,4,5] x) => (float[1,2,4,5] y) {y = Relu(x)}"
    with pytest.raises(UsageError, match="3 channels"):
        lower(text, tmp_path, options=CoreMLOptions(images={"x": ImageInput(5, 4)}))


def test_states_are_kept_between_runs(tmp_path: Path) -> None:
    options = CoreMLOptions(deployment("iOS18"), states={"state": "stateN"})
    executable = opened(lower(ADDING, tmp_path, options=options))
    assert [i.name for i in executable.inputs] == ["x"]
    assert [o.name for o in executable.outputs] == ["y"]
    state = executable.make_state()
    x = np.array([[1, -2, 0.5, 3]], np.float32)
    for turn in (1, 2, 3):
        np.testing.assert_array_equal(executable.run({"x": x}, state)["y"], np.maximum(turn * x, 0))


def test_a_state_needs_its_output(tmp_path: Path) -> None:
    options = CoreMLOptions(deployment("iOS18"), states={"state": "nothing"})
    with pytest.raises(UsageError, match="nothing"):
        lower(ADDING, tmp_path, options=options)


def test_labels_make_a_classifier(tmp_path: Path) -> None:
    text = "g (float[1,4] x) => (float[1,4] p) {p = Softmax(x)}"
    made = lower(text, tmp_path, options=CoreMLOptions(labels=("a", "b", "c", "d")))
    got = opened(made).run({"x": np.array([[1, -2, 0.5, 3]], np.float32)})
    assert got["classLabel"].item() == "d"


OPEN = "g (float[1,3,H,W] x) => (float[1,3,H,W] y) {y = Relu(x)}"


def test_enumerated_shapes_are_the_only_ones(tmp_path: Path) -> None:
    shapes = {"x": ((1, 3, 4, 4), (1, 3, 8, 8))}
    executable = opened(lower(OPEN, tmp_path, options=CoreMLOptions(shapes=shapes)))
    assert executable.run({"x": floats(1, 3, 8, 8)})["y"].shape == (1, 3, 8, 8)
    with pytest.raises(RunError, match="not one of"):
        executable.run({"x": floats(1, 3, 5, 8)})


def test_ranges_bound_the_sizes_that_have_names(tmp_path: Path) -> None:
    executable = opened(lower(OPEN, tmp_path, options=CoreMLOptions(ranges={"H": (2, 6)})))
    assert executable.run({"x": floats(1, 3, 6, 9)})["y"].shape == (1, 3, 6, 9)
    with pytest.raises(RunError, match="outside"):
        executable.run({"x": floats(1, 3, 7, 9)})


NAMED = "g (float[2] {0}) => (float[2] {1}) {{{1} = Relu({0})}}"


@pytest.mark.parametrize(("given", "result"), [("state", "bool"), ("any", "tensor")])
def test_names_that_core_ml_refuses_survive(given: str, result: str) -> None:
    check(NAMED.format(given, result), {given: floats(2)})


def test_input_that_is_an_output_and_outputs_that_are_one() -> None:
    check(
        "g (float[2] x) => (float[2] y, float[2] z) {y = Identity(x) z = Identity(x)}",
        {"x": floats(2)},
    )


def test_scalars_and_truth_values_at_the_border() -> None:
    text = "g (float x, bool[2] b) => (float y, bool[2] n) {y = Neg(x) n = Not(b)}"
    check(text, {"x": np.array(3, np.float32), "b": np.array([True, False])})


def test_half_precision_at_the_border() -> None:
    check("g (float16[3] x) => (float16[3] y) {y = Add(x, x)}", {"x": floats(3).astype(np.float16)})


def test_types_that_core_ml_lacks_are_refused() -> None:
    problems = refusal("g (double[3] x) => (double[3] y) {y = Relu(x)}")
    assert {p.reason for p in problems} == {"unsupported_dtype"}
    assert issubclass(UnsupportedError, Exception)


@pytest.mark.parametrize(
    ("op", "oldest", "needed"),
    [
        ("pixel_unshuffle", "iOS15", "iOS16/macOS13"),
        ("constexpr_lut_to_dense", "macOS12", "iOS16/macOS13"),
        ("quantize", "iOS16", "iOS17/macOS14"),
        ("read_state", "iOS17", "iOS18/macOS15"),
        ("scaled_dot_product_attention", "macOS14", "iOS18/macOS15"),
    ],
)
def test_every_border_between_systems_names_the_one_that_is_needed(
    op: str, oldest: str, needed: str
) -> None:
    from edgeinfer.backends.engines import import_coremltools
    from edgeinfer.convert.lower.coreml.emitter import Emitter
    from edgeinfer.convert.lower.registry import Refusal

    import_coremltools()
    with pytest.raises(Refusal) as caught:
        Emitter(deployment(oldest)).require(op)
    assert caught.value.hint == f"deployment target {needed} or newer"
    Emitter(deployment(needed.split("/")[0])).require(op)
    Emitter(DEPLOYMENTS[-1]).require(op)
