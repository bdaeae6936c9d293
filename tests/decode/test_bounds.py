"""What a head says of a stranger's model takes neither time nor memory without end."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgeinfer.bundle import headrules
from edgeinfer.decode import boxes, extras, regions, rotated_boxes
from edgeinfer.decode.boxes import detect, from_anchors
from edgeinfer.decode.masks import depth, object_mask, segment
from edgeinfer.decode.notes import hear_notes
from edgeinfer.decode.regions import find_text
from edgeinfer.errors import RunError
from edgeinfer.heads import (
    AnchorLayer,
    Classify,
    Depth,
    DetectAnchors,
    DetectBoxes,
    DetectGrid,
    FindText,
    Head,
    Keypoints,
    Notes,
    Rotated,
    Segment,
)
from edgeinfer.media.geometry import ImagePlacement
from edgeinfer.media.spectrogram import mel_spectrogram
from edgeinfer.types import SpectrogramInput

SQUARE = ImagePlacement((1.0, 1.0), (0.0, 0.0), (64, 64), (64, 64))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (Notes("a", "b", 256, threshold=-1.0), "threshold: expected above 0"),
        (Notes("a", "b", 256, threshold=0.0), "threshold: expected above 0"),
        (Notes("a", "b", 256, gap_frames=129), "gap_frames: expected at most 128"),
        (Notes("a", "b", 256, least_frames=129), "least_frames: expected at most 128"),
        (DetectGrid(most=1 << 40), "most: expected at most 3000"),
        (FindText(most=1 << 40), "most: expected at most 3000"),
        (Classify(top=1 << 40), "top: expected at most 10000"),
        (DetectGrid(extra=Keypoints(513)), "extra.count: expected 1 to 512"),
        (DetectGrid(unit="cells", strides=(1,) * 65), "strides: expected at most 64"),
        (DetectAnchors(("b",), ("s",), (AnchorLayer(1, (1.0,)),) * 65), "layers: expected 1 to 64"),
        (DetectAnchors(("b",), ("s",), (AnchorLayer(1, (1.0,) * 65),)), "at most 64 widths"),
    ],
)
def test_numbers_of_heads_have_bounds(record: Head, said: str) -> None:
    (problem,) = headrules.head(record)
    assert said in problem


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fft": 32768, "hop": 63}, "hop: expected at least 64 for fft = 32768"),
        ({"fft": 65536, "hop": 65536, "mels": 4096}, "mels, fft: expected a product of at most"),
        ({"fft": 512, "hop": 1, "mels": 17}, "mels: expected at most 16 for hop = 1"),
        (
            {"fft": 4096, "hop": 8, "mels": 16, "samples": 90, "step": 10},
            "a sample is read more than 4096 times",
        ),
    ],
)
def test_products_of_spectrograms_have_bounds(changes: dict[str, Any], said: str) -> None:
    given = {"sample_rate": 16000, "fft": 400, "hop": 160, "mels": 80} | changes
    (problem,) = headrules.input_record(SpectrogramInput(**given))
    assert said in problem
    whisper = SpectrogramInput(sample_rate=16000, fft=400, hop=160, mels=128)
    assert not list(headrules.input_record(whisper))


def peak_mb(act: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_rotated_boxes_are_compared_in_blocks() -> None:
    count = boxes.MOST_ROTATED
    corners = np.zeros((count, 4), np.float32)
    corners[:, 0] = np.arange(count) * 10
    corners[:, 2:] = corners[:, :2] + 5
    kept: list[int] = []

    def thin() -> None:
        angles, classes = np.zeros(count, np.float32), np.zeros(count, int)
        kept.extend(rotated_boxes.thinned(corners, angles, classes, 0.5))

    assert peak_mb(thin) < 60
    assert kept == [*range(count)]


def test_a_spectrogram_is_made_in_blocks() -> None:
    record = SpectrogramInput(sample_rate=16000, fft=4096, hop=8, mels=16)
    signal = np.random.default_rng(0).standard_normal(30_000).astype(np.float32)
    mel_spectrogram(signal, record)
    assert peak_mb(lambda: mel_spectrogram(signal, record)) < 60


def test_notes_that_are_left_are_found_in_one_pass() -> None:
    """Each was searched for in all frames: minutes for a recording of three."""
    sounding = np.random.default_rng(0).random((9_000, 88))
    head = Notes("a", "b", 256, threshold=0.5, least_frames=1, gap_frames=1)
    begun = time.process_time()
    found = hear_notes(np.zeros((9_000, 88)), sounding, head, np.arange(9_000.0))
    assert time.process_time() - begun < 15
    assert len(found) > 1000


def test_anchors_are_counted_before_they_are_made() -> None:
    head = DetectAnchors(("b",), ("s",), (AnchorLayer(1, (1.0,) * 10_000),))
    outputs = {"b": np.zeros((1, 1, 4)), "s": np.zeros((1, 1, 1))}

    def fails() -> None:
        with pytest.raises(RunError, match="40960000 anchors, but the model gives 1 boxes"):
            from_anchors(outputs, head, (64, 64))

    assert peak_mb(fails) < 5
    grid = DetectGrid(unit="cells", strides=(1,) * 6000)

    def fails_too() -> None:
        with pytest.raises(RunError, match="24576000 cells, but the model gives 1 boxes"):
            detect({"o": np.ones((1, 1, 5), np.float32)}, grid, SQUARE, ())

    assert peak_mb(fails_too) < 5


def _side_by_side(count: int, numbers: int) -> Any:
    rows = np.ones((1, count, numbers), np.float32)
    rows[0, :, 0] = rows[0, :, 1] = np.arange(count) * 2
    rows[0, :, 2:4] = rows[0, :, :2] + 1
    return rows


def test_the_best_boxes_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "MOST_CANDIDATES", 20)
    monkeypatch.setattr(boxes, "MOST_ROTATED", 10)
    rows = _side_by_side(50, 5)
    rows[0, :, 4] = np.linspace(0.5, 1.0, 50)
    found = detect({"o": rows}, DetectGrid(box="xyxy", most=3000), SQUARE, ())
    assert len(found) == 20
    assert found[0].score == pytest.approx(1.0)
    head = DetectGrid(extra=Rotated(), most=3000)
    turned = np.concatenate([rows, np.zeros((1, 50, 1), np.float32)], axis=2)
    assert len(detect({"o": turned}, head, SQUARE, ())) <= 10


def test_the_best_boxes_of_a_model_that_groups_its_own_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boxes, "MOST_OBJECTS", 7)
    outputs = {"b": _side_by_side(50, 4)[0], "s": np.linspace(0.5, 1.0, 50)}
    assert len(detect(outputs, DetectBoxes("b", "s"), SQUARE, ())) == 7


def test_a_map_of_stripes_is_no_text() -> None:
    stripes = np.zeros((1, 1, 1000, 1000), np.float32)
    stripes[..., ::2] = 1
    with pytest.raises(RunError, match="the map has 500000 runs of pixels"):
        find_text(stripes, FindText(), SQUARE)


def test_regions_in_each_other_are_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The box of each is nearly the whole map."""
    monkeypatch.setattr(regions, "_MOST_LOOKS", 4)
    corners = np.zeros((1, 1, 200, 200), np.float32)
    for start in range(0, 100, 4):
        corners[0, 0, start, start:] = corners[0, 0, start:, start] = 1
    with pytest.raises(RunError, match="lie in each other"):
        find_text(corners, FindText(box_threshold=0.0), SQUARE)


def test_classes_of_a_row_have_a_bound() -> None:
    placement = ImagePlacement((1.0, 1.0), (0.0, 0.0), (4000, 1), (4000, 1))
    with pytest.raises(RunError, match="100000 classes for each of 4000 pixels of a row"):
        segment(np.zeros((1, 100_000, 1, 1), np.float32), Segment(), placement, ())


@pytest.mark.sample(1)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_wide_map_of_a_narrow_picture_is_read_in_bands(interpolation: Any) -> None:
    placement = ImagePlacement((1.0, 1.0), (0.0, 0.0), (1, 3000), (1, 3000))
    wide = np.ones((1, 2, 200_000), np.float32)
    head = Depth(interpolation=interpolation)
    assert peak_mb(lambda: depth(wide, head, placement)) < 100
    assert peak_mb(lambda: object_mask(wide[0], placement)) < 100
    scores = np.ones((1, 1, 2, 200_000), np.float32)
    assert peak_mb(lambda: segment(scores, Segment(), placement, ())) < 100


def test_runs_of_masks_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask of single pixels is told as three lists of as many numbers."""
    monkeypatch.setattr(extras, "_MOST_RUNS", 1000)
    checked = np.where(np.indices((64, 64)).sum(axis=0) % 2, 1.0, -1.0)[np.newaxis, np.newaxis]
    corners = np.array([[0, 0, 64, 64]], np.float32)
    outputs = {"m": checked.astype(np.float32)}
    with pytest.raises(RunError, match="the masks of 1 objects have 4096 pixels in 4096 runs"):
        extras.described(corners, np.zeros((1, 1)), "m", outputs, SQUARE)


def test_masks_of_all_objects_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_MOST_MASKED", 3 * 64 * 64)
    masks = np.ones((1, 5, 8, 8), np.float32)
    index = np.arange(5.0)[:, np.newaxis]
    corners = np.tile(np.array([0, 0, 64, 64], np.float32), (5, 1))
    assert len(extras.described(corners[:3], index[:3], "m", {"m": masks}, SQUARE)) == 3
    with pytest.raises(RunError, match="the masks of 4 objects have 16384 pixels"):
        extras.described(corners, index, "m", {"m": masks}, SQUARE)
