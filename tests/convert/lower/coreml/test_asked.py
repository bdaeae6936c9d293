"""What is asked of a conversion reaches the package on disk, which a session then runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.backends.coreml_reference.package import Package, open_package
from edgeinfer.bundle.archive import Bundle
from edgeinfer.errors import RunError, UnsupportedError, UsageError
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.types import ImageInput

HEADER = '<ir_version: 10, opset_import: ["" : 20]> '
MIXED = (
    "g (float[N,3,T] x, float[N,T] m) => (float[N,T] y) "
    "{a = Constant<value_ints=[1]>() s = ReduceSum<keepdims=0>(x, a) t = Tanh(s) y = Mul(t, m)}"
)
PICTURE = (
    "g (float[1,3,4,5] image) => (float[1,3] scores) "
    "{p = GlobalAveragePool(image) f = Flatten(p) scores = Softmax(f)}"
)
FILTER = (
    "g (float[1,4] state, float[1,4] x) => (float[1,4] y, float[1,4] next) "
    "<float half = {0.5}> {a = Mul(state, half) next = Add(a, x) y = Relu(next)}"
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ProfileDB]:
    with ProfileDB(tmp_path / "history.sqlite") as history:
        yield history


def export(text: str, folder: Path, **more: Any) -> Path:
    model = onnx.parser.parse_model(HEADER + text)
    more = {"targets": ["ios"], **more}
    return edgeinfer.export(model, folder / "m.edge", **more).path


def package(path: Path) -> Package:
    bundle = Bundle.open(path)
    return open_package(bundle.paths(bundle.manifest.variants[0])[0])


def session(path: Path, db: ProfileDB, backend: str = "coreml-reference") -> edgeinfer.Session:
    return edgeinfer.load(path, backend=backend, history=db)


def test_ranges_bound_equal_sizes_alike_and_are_checked_at_both_ends(
    tmp_path: Path, db: ProfileDB
) -> None:
    path = export(MIXED, tmp_path, input_shapes={"x": (range(2, 4), 3, range(5, 41))})
    x, m = package(path).description().inputs
    assert x.ranges == ((2, 3), (3, 3), (5, 40))
    assert m.ranges == ((2, 3), (5, 40))
    checked = {f["x"].shape for f, _ in Bundle.open(path).vectors()}
    assert {(2, 3, 5), (3, 3, 40)} <= checked
    with session(path, db) as s:
        y = s(np.ones((2, 3, 17), np.float32), np.ones((2, 17), np.float32))
        assert np.shape(y) == (2, 17)
        with pytest.raises(RunError, match="outside"):
            s(np.ones((2, 3, 41), np.float32), np.ones((2, 41), np.float32))


@pytest.mark.parametrize(
    ("shapes", "fault"),
    [
        ({"x": (None, range(1, 5), None)}, "axis 1 has the fixed size 3"),
        ({"z": (range(1, 5),)}, "no axis 0 of an input 'z'|no input 'z'"),
        ({"x": (range(5, 5), 3, None)}, "no sizes"),
        ({"x": (range(1, 9, 2), 3, None)}, "no sizes"),
    ],
)
def test_bounds_that_cannot_be_held(shapes: Any, fault: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=fault):
        export(MIXED, tmp_path, input_shapes=shapes)


SETS = {"x": ((1, 3, 5), (2, 3, 8))}


def test_several_shapes_are_the_only_ones_of_every_input(tmp_path: Path, db: ProfileDB) -> None:
    path = export(MIXED, tmp_path, input_shapes=SETS, deployment="iOS18")
    x, m = package(path).description().inputs
    assert set(x.shapes) == {(1, 3, 5), (2, 3, 8)}
    assert set(m.shapes) == {(1, 5), (2, 8)}
    with session(path, db) as s:
        y = s(np.ones((2, 3, 8), np.float32), np.ones((2, 8), np.float32))
        assert np.shape(y) == (2, 8)
        with pytest.raises(RunError, match="not one of"):
            s(np.ones((1, 3, 8), np.float32), np.ones((1, 8), np.float32))


def test_older_systems_list_the_shapes_of_one_input(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="iOS18") as caught:
        export(MIXED, tmp_path, input_shapes=SETS, deployment="iOS17")
    assert caught.value.problems[0].reason == "dynamic_shape"


RECORD = ImageInput(5, 4, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def test_a_picture_is_taken_as_pixels_by_every_variant(tmp_path: Path, db: ProfileDB) -> None:
    path = export(
        PICTURE,
        tmp_path,
        targets=["ios", "onnxruntime"],
        preprocessing={"image": RECORD},
        image_inputs=["image"],
    )
    (image,) = package(path).description().inputs
    assert (image.kind, image.image, image.shape) == ("image", "RGB", (1, 3, 4, 5))
    record = Bundle.open(path).manifest.preprocessing["image"]
    assert isinstance(record, ImageInput)
    assert (record.scale, record.mean, record.std) == (1.0, (0.0,), (1.0,))
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 4, 5)).astype(np.float32)
    mean, std = (np.reshape(v, (3, 1, 1)) for v in (RECORD.mean, RECORD.std))
    sums = ((pixels / 255 - mean) / std).mean(axis=(2, 3))
    want = np.exp(sums) / np.exp(sums).sum()
    for backend in ("coreml-reference", "onnxruntime"):
        with session(path, db, backend) as s:
            np.testing.assert_allclose(s(pixels), want, atol=1e-6)
    for feeds, _ in Bundle.open(path).vectors():
        assert (feeds["image"] == np.clip(np.rint(feeds["image"]), 0, 255)).all()


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"image_inputs": ["image"]}, "--preprocessing must say"),
        ({"image_inputs": ["other"], "preprocessing": {"image": RECORD}}, "there are 'image'"),
        (
            {"image_inputs": ["image"], "preprocessing": {"image": ImageInput(5, 4, color="GRAY")}},
            r"expected floats \[1, 1, height, width\] for GRAY",
        ),
        (
            {
                "image_inputs": ["image"],
                "preprocessing": {"image": ImageInput(5, 4, layout="NHWC")},
            },
            "use --channels-first",
        ),
    ],
)
def test_images_that_cannot_be(asked: Any, fault: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=fault):
        export(PICTURE, tmp_path, **asked)


NAMES = ("zebra", "ant", "moth")


def test_a_classifier_keeps_the_order_of_its_classes(tmp_path: Path, db: ProfileDB) -> None:
    path = export(PICTURE, tmp_path, labels=NAMES, classifier=True)
    made = package(path)
    kinds = {f.name: f.kind for f in made.description().outputs}
    assert kinds == {"classLabel": "label", "classLabel_probs": "dictionary"}
    assert json.loads(made.metadata["edgeinfer.names"])["outputs"] == {"classLabel_probs": "scores"}
    x = np.random.default_rng(0).random((1, 3, 4, 5), np.float32)
    sums = np.exp(x.mean(axis=(2, 3)))
    with session(path, db) as s:
        np.testing.assert_allclose(s(x), sums / sums.sum(), rtol=1e-6)
        assert np.shape(s(x)) == (1, 3)


@pytest.mark.parametrize(
    ("labels", "fault"), [(("a", "b"), "no output has 2 floats"), (("a", "b", "a"), "'a' stands")]
)
def test_classes_that_cannot_be(labels: tuple[str, ...], fault: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=fault):
        export(PICTURE, tmp_path, labels=labels, classifier=True)


def test_states_are_inside_and_checked_from_outside(tmp_path: Path, db: ProfileDB) -> None:
    path = export(
        FILTER,
        tmp_path,
        targets=["ios", "onnxruntime"],
        states={"state": "next"},
        deployment="iOS18",
    )
    described = package(path).description()
    assert [f.name for f in described.inputs] == ["x"]
    assert [f.name for f in described.states] == ["state_"]
    manifest = Bundle.open(path).manifest
    assert [(s.input, s.output) for s in manifest.states] == [("state", "next")]
    assert manifest.variants[0].precision == "fp16+fp32"
    assert set(manifest.variants[0].accuracy) == {"y", "next"}
    x = np.array([[1, -2, 0.5, 4]], np.float32)
    for backend in ("coreml-reference", "onnxruntime"):
        with session(path, db, backend) as s:
            for turn in range(3):
                factor = 2 - 0.5**turn
                np.testing.assert_array_equal(s(x), np.maximum(factor * x, 0))
            s.reset()
            np.testing.assert_array_equal(s(x), np.maximum(x, 0))
            both = s.run({"x": x, "state": x})
            np.testing.assert_array_equal(both["next"], 1.5 * x)


def test_states_need_a_system_that_keeps_them(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        export(FILTER, tmp_path, states={"state": "next"})
    assert "iOS18" in caught.value.problems[0].hint


@pytest.mark.parametrize(
    ("states", "fault"),
    [({"h": "next"}, "no input 'h'"), ({"state": "z"}, "no output 'z'; there are 'y', 'next'")],
)
def test_states_that_cannot_be(states: dict[str, str], fault: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=fault):
        export(FILTER, tmp_path, states=states, deployment="iOS18")


def test_a_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    text = (
        "g (float[4] h, float[4] x) => (float[2,4] y) {a = Concat<axis=0>(h, x) s = "
        "Constant<value_ints=[2,4]>() y = Reshape(a, s)}"
    )
    with pytest.raises(UsageError, match=r"h:y: the input is FLOAT\[4\], the output FLOAT\[2,4\]"):
        export(text, tmp_path, states={"h": "y"}, deployment="iOS18")
