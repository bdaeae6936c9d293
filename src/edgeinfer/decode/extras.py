"""What detectors tell of an object besides its box: points, a mask, its rotation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from edgeinfer.decode.masks import object_mask
from edgeinfer.decode.rotated_boxes import cornered
from edgeinfer.errors import RunError
from edgeinfer.heads import (
    Detect,
    DetectAnchors,
    DetectGrid,
    DetectQueries,
    DetectRows,
    Extra,
    Keypoints,
    Prototypes,
    Rotated,
)
from edgeinfer.media.geometry import ImagePlacement
from edgeinfer.results import Mask
from edgeinfer.types import Array


def extra_of(head: Detect) -> Extra | str | None:
    """Say what follows the scores of a head's objects; an output of masks by its name."""
    match head:
        case DetectAnchors():
            return Keypoints(head.keypoints, scored=False)
        case DetectGrid() | DetectRows():
            return head.extra
        case DetectQueries():
            return head.masks
        case _:
            return None


def numbers_of(extra: Extra | None, outputs: Mapping[str, Array]) -> int:
    """Return how many numbers it has for each object.

    Raises:
        RunError: prototypes are not of their shape.
    """
    match extra:
        case Keypoints():
            return extra.count * (3 if extra.scored else 2)
        case Prototypes():
            return len(_prototypes(extra, outputs))
        case Rotated():
            return 1
        case None:
            return 0


def described(
    corners: Array,
    extra: Array,
    kind: Extra | str | None,
    outputs: Mapping[str, Array],
    placement: ImagePlacement,
) -> list[dict[str, Any]]:
    """Return the fields of ``Detection`` that each object has besides, in pixels of the source.

    Args:
        corners: (n, 4): boxes in pixels of the input.
        extra: (n, numbers).
        kind: what the numbers are.
        outputs: by name.
        placement: Placement of the image in the model's input.

    Raises:
        RunError: an output is not of the shape that the head says.
    """
    match kind:
        case Keypoints():
            return _keypoints(extra, kind, placement)
        case Rotated():
            rotated = placement.to_source(cornered(corners, extra[:, 0]))
            return [_rotated(points) for points in rotated]
        case Prototypes():
            prototypes = _prototypes(kind, outputs)
            boxes = placement.to_source(corners.reshape(-1, 2, 2)).reshape(-1, 4)
            return _masked(
                object_mask(np.tensordot(weights, prototypes, 1), placement, box)
                for weights, box in zip(extra, boxes, strict=True)
            )
        case str():
            masks = np.asarray(outputs[kind], np.float32)
            if masks.ndim != 4 or len(masks) != 1:
                raise RunError(f"head: expected masks of one image, received {list(masks.shape)}")
            return _masked(object_mask(masks[0, int(n)], placement) for n in extra[:, 0])
        case None:
            return [{}] * len(corners)


def _masked(masks: Iterable[Mask]) -> list[dict[str, Any]]:
    """Return the masks, which may each be as large as the image.

    Raises:
        RunError: they have more pixels than images of objects have.
    """
    found: list[dict[str, Any]] = []
    pixels = runs = 0
    for mask in masks:
        pixels += mask.pixels.size
        runs += int(np.count_nonzero(mask.pixels[:, 1:] != mask.pixels[:, :-1]))
        runs += len(mask.pixels)
        if pixels > _MOST_MASKED or runs > _MOST_RUNS:
            what = f"{pixels} pixels in {runs} runs"
            raise RunError(f"head: the masks of {len(found) + 1} objects have {what}")
        found.append({"mask": mask})
    return found


_MOST_MASKED, _MOST_RUNS = 1 << 27, 1 << 20


def _keypoints(extra: Array, kind: Keypoints, placement: ImagePlacement) -> list[dict[str, Any]]:
    numbers = extra.reshape(len(extra), kind.count, 3 if kind.scored else 2)
    points = placement.to_source(numbers[..., :2])
    return [
        {
            "keypoints": tuple((float(x), float(y)) for x, y in positions),
            "sureness": tuple(map(float, sure)) if kind.scored else (),
        }
        for positions, sure in zip(points, numbers[..., -1], strict=True)
    ]


def _rotated(points: Array) -> dict[str, Any]:
    low, high = points.min(axis=0), points.max(axis=0)
    corners = tuple((float(x), float(y)) for x, y in points)
    return {"box": (*map(float, low), *map(float, high)), "corners": corners}


def _prototypes(extra: Prototypes, outputs: Mapping[str, Array]) -> Array:
    """Return prototypes (weights, height, width)."""
    given = np.asarray(outputs[extra.output], np.float32)
    if given.ndim != 4 or len(given) != 1:
        raise RunError(f"head: expected prototypes of one image, received {list(given.shape)}")
    return np.asarray(given[0].transpose(2, 0, 1) if extra.channels_last else given[0])
