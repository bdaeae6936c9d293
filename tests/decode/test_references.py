"""What is read from outputs of networks on a photo equals what their own packages read.

``references.py`` made the files, with Ultralytics 8.4.190 and transformers 5.24.
"""

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.decode.boxes import detect
from edgeinfer.decode.masks import depth
from edgeinfer.heads import (
    Depth,
    Detect,
    DetectGrid,
    DetectQueries,
    DetectRows,
    Extra,
    Keypoints,
    Prototypes,
    Rotated,
)
from edgeinfer.media.geometry import ImagePlacement, steps
from edgeinfer.results import Detection
from edgeinfer.types import Array, ImageInput

GOLDEN = Path(__file__).parent / "golden"
SOURCE, SQUARE, SIZE = (640, 427), (427, 427), (96, 96)
THRESHOLD = 0.15

STRETCHED = ImagePlacement((96 / 640, 96 / 427), (0.0, 0.0), SOURCE, SIZE)


def golden(name: str) -> dict[str, Array]:
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


def source(name: str) -> tuple[int, int]:
    return SQUARE if name == "yolo26-seg" else SOURCE


def yolo(name: str) -> tuple[list[Detection], dict[str, Array]]:
    expected, task = golden(name), name.partition("-")[2]
    extras: dict[str, Extra] = {
        "seg": Prototypes("output1"),
        "pose": Keypoints(17),
        "obb": Rotated(),
    }
    head: Detect
    if name.startswith(("yolov10", "yolo26")):
        head = DetectRows(
            "output0",
            "xywh" if task == "obb" else "xyxy",
            threshold=THRESHOLD,
            most=100,
            extra=extras.get(task),
        )
    else:
        said = {"channels_first": True, "threshold": THRESHOLD, "extra": extras.get(task)}
        head = DetectGrid("output0", **said)  # type: ignore[arg-type]
    placement = steps(source(name), ImageInput(*SIZE, resize="letterbox")).placement
    return detect(expected, head, placement, ("a", "b", "c")), expected


YOLOS = sorted(p.stem for p in GOLDEN.glob("yolo*.npz"))


def test_every_family_and_task_is_there() -> None:
    assert YOLOS == [
        "yolo11-pose",
        "yolo12-obb",
        "yolo26",
        "yolo26-obb",
        "yolo26-pose",
        "yolo26-seg",
        "yolov10",
        "yolov8-seg",
        "yolov9",
    ]


def objects(name: str) -> tuple[list[Detection], dict[str, Array]]:
    """Return what is found and what is expected, the best first."""
    found, expected = yolo(name)
    order = (-expected["scores"]).argsort(kind="stable")
    told = {k: v[order] for k, v in expected.items() if not k.startswith("output")}
    # Objects without a pixel are left out there.
    return [d for d in found if d.mask is None or d.mask.pixels.any()], told


def inside(points: Array, size: tuple[int, int] = SOURCE) -> Array:
    """Cut points (..., 2) at the edge of the image, as Ultralytics does."""
    return points.clip(0.0, np.asarray(size))


@pytest.mark.parametrize("name", YOLOS)
def test_yolo_finds_what_ultralytics_finds(name: str) -> None:
    found, expected = objects(name)
    assert len(found) == len(expected["scores"]) >= 7
    np.testing.assert_allclose([d.score for d in found], expected["scores"], rtol=1e-6)
    assert [d.index for d in found] == expected["classes"].tolist()
    boxes = np.array([d.box for d in found]).reshape(-1, 2, 2)
    # A rotated box's sides are scaled there as if upright, by factors that differ by 0.08 %.
    far = 0.6 if "obb" in name else 1e-3
    told = expected["boxes"].reshape(-1, 2, 2)
    size = source(name)
    np.testing.assert_allclose(inside(boxes, size), inside(told, size), rtol=2e-3, atol=far)


def test_an_rt_detr_of_ultralytics_is_read_as_there() -> None:
    expected = golden("rtdetr")
    head = DetectRows("output0", "xywh", unit="share", threshold=THRESHOLD, most=100)
    found = detect(expected, head, STRETCHED, ("a", "b", "c"))
    assert len(found) == len(expected["scores"]) >= 7
    np.testing.assert_allclose([d.score for d in found], expected["scores"], rtol=1e-6)
    assert [d.index for d in found] == expected["classes"].tolist()
    assert len({d.index for d in found}) > 1
    boxes = np.array([d.box for d in found]).reshape(-1, 2, 2)
    told = expected["boxes"].reshape(-1, 2, 2)
    np.testing.assert_allclose(inside(boxes), inside(told), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", ["yolo11-pose", "yolo26-pose"])
def test_keypoints_are_where_ultralytics_has_them(name: str) -> None:
    found, expected = objects(name)
    points = np.array([d.keypoints for d in found])
    np.testing.assert_allclose(inside(points), expected["points"][..., :2], atol=1e-3)
    sureness = [d.sureness for d in found]
    np.testing.assert_allclose(sureness, expected["points"][..., 2], rtol=1e-5)


@pytest.mark.parametrize("name", ["yolo12-obb", "yolo26-obb"])
def test_corners_of_turned_boxes_are_those_of_ultralytics(name: str) -> None:
    found, expected = objects(name)
    # Theirs begin at the third of ours and go the other way round.
    corners = np.array([d.corners for d in found])[:, [2, 1, 0, 3]]
    np.testing.assert_allclose(corners, expected["corners"], rtol=2e-3, atol=0.6)


@pytest.mark.parametrize(
    ("name", "least", "mean"), [("yolov8-seg", 0.9, 0.975), ("yolo26-seg", 0.999, 0.9999)]
)
def test_masks_cover_what_ultralytics_covers(name: str, least: float, mean: float) -> None:
    """Equal where the photo fills the input; in a letterbox they interpolate twice."""
    found, expected = objects(name)
    size = source(name)
    masks = np.unpackbits(expected["masks"], axis=-1)[..., : size[0]].astype(bool)
    shares = []
    for detection, mask in zip(found, masks, strict=True):
        assert detection.mask is not None
        ours = detection.mask.whole(*size)
        shares.append((ours & mask).sum() / (ours | mask).sum())
    assert min(shares) >= least
    assert np.mean(shares) >= mean


@pytest.mark.parametrize("name", ["rt-detr", "d-fine", "detr"])
def test_queries_are_read_as_by_transformers(name: str) -> None:
    expected = golden(name)
    activation = "softmax" if name == "detr" else "sigmoid"
    head = DetectQueries("boxes_out", "logits", activation=activation, threshold=0.4)  # type: ignore[arg-type]
    found = detect(expected, head, STRETCHED, ())
    order = (-expected["scores"]).argsort(kind="stable")
    assert len(found) == len(order) > 10
    np.testing.assert_allclose([d.score for d in found], expected["scores"][order], rtol=1e-5)
    assert [d.index for d in found] == expected["classes"][order].tolist()
    np.testing.assert_allclose([d.box for d in found], expected["boxes"][order], atol=1e-2)


def test_masks_of_queries_are_those_of_rf_detr() -> None:
    expected = golden("rf-detr-masks")
    head = DetectQueries("boxes_out", "logits", "masks_out", threshold=0.4)
    found = detect(expected, head, STRETCHED, ())
    assert [d.index for d in found] == expected["classes"].tolist()
    np.testing.assert_allclose([d.score for d in found], expected["scores"], atol=1e-6)
    masks = np.unpackbits(expected["masks"], axis=-1)[..., : SOURCE[0]].astype(bool)
    for detection, mask in zip(found, masks, strict=True):
        assert detection.mask is not None
        assert (detection.mask.whole(*SOURCE) != mask).sum() <= 2, "borderline pixels alone"


def test_depth_is_that_of_depth_anything() -> None:
    expected = golden("depth-anything")
    placement = ImagePlacement((98 / 640, 98 / 427), (0.0, 0.0), SOURCE, (98, 98))
    found = depth(expected["output"], Depth(), placement)
    assert found.values.shape == SOURCE[::-1]
    assert found.nearer_is_larger
    sampled = found.values[::7, ::7]
    np.testing.assert_allclose(sampled, expected["sampled"], atol=2e-6)
    linear = depth(expected["output"], Depth(interpolation="bilinear"), placement)
    assert np.abs(linear.values[::7, ::7] - expected["sampled"]).max() > 1e-3
