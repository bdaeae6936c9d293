"""What custom operators are given in place of an options table.

Two forms are in use: a struct of C as it lies in memory, and a flexbuffer. Both are read into plain
records here; what the operators compute stands elsewhere.

Source: mediapipe/util/tflite/operations, tensorflow/lite/core/c/builtin_op_data.h and
tensorflow/lite/delegates/gpu/common/mediapipe.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.records import dataclass

_SAME, _VALID = 1, 2
"""As the structs count them, in which 0 means that nothing is known."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PoolingWindows:
    """Windows over height and width.

    Attributes:
        same: padded so that each element of the data is in one; else not padded.
        strides: Strides of height and width.
        kernel: likewise; of convolutions it stands in the weights.
        activation: the schema's number.
    """

    same: bool
    strides: Pair
    kernel: Pair = (1, 1)
    activation: int = 0

    def padded(self, sizes: tuple[int, int], counts: tuple[int, int]) -> Pair:
        """Elements padded in front of data that ``counts`` windows lie on."""
        first, second = (
            max((n - 1) * s + k - size, 0) // 2
            for size, n, s, k in zip(sizes, counts, self.strides, self.kernel, strict=True)
        )
        return first, second


@dataclass(frozen=True, slots=True)
class LandmarkCrop:
    """How landmarks say where an image is cut out.

    Attributes:
        left: the landmark that ends a line to the left.
        right: the one that ends it to the right.
        subset: landmarks that must be inside.
        scale: Scale of the box around them, along x and y.
        size: height and width of what is cut out.
        angle: direction of the line in radians.
    """

    left: int
    right: int
    subset: tuple[int, ...]
    scale: tuple[float, float]
    size: Pair
    angle: float


@dataclass(frozen=True, slots=True)
class Detecting:
    """How boxes are read and chosen.

    Attributes:
        most: boxes at most.
        classes: without the background.
        labels: classes given for each box, where all classes are suppressed at once.
        per_class: boxes of each class at most, where each is suppressed by itself; else 0.
        threshold: the least score.
        overlap: Overlap of areas, above which the weaker box is left out.
        scale: Scale of y, x, height and width as they are encoded.
    """

    most: int
    classes: int
    labels: int
    per_class: int
    threshold: float
    overlap: float
    scale: tuple[float, float, float, float]


_WINDOW = 256
_PICTURE = 1 << 22
_BOXES = 1 << 16
"""Beyond these a table in the graph would be larger than any model's that is known."""

_LARGEST = 3.4e38
"""Of single precision."""

_PER_CLASS = 100
"""Boxes of a class unless the options say more or fewer."""


def deconvolution(raw: bytes) -> PoolingWindows:
    """``TfLiteTransposeConvParams``: padding, stride of the width, stride of the height."""
    padding, width, height = _integers(raw, 3)
    return PoolingWindows(_is_same(padding), (height, width))


def pool(raw: bytes) -> PoolingWindows:
    """``TfLitePoolParams``: padding, strides, sizes, activation; what follows is computed."""
    padding, right, down, width, height, activation = _integers(raw, 6)
    if min(right, down, width, height) < 1:
        raise ValueError(f"strides {[down, right]}, windows of {[height, width]}")
    if width * height > _WINDOW:
        raise Refusal(f"windows of {width * height} elements; {_WINDOW} are the most")
    return PoolingWindows(_is_same(padding), (down, right), (height, width), activation)


def placing(raw: bytes) -> LandmarkCrop:
    """The flexbuffer of the second version of ``Landmarks2TransformMatrix``."""
    fields = flexbuffer(raw)
    made = LandmarkCrop(
        int(fields["left_rotation_idx"]),
        int(fields["right_rotation_idx"]),
        tuple(int(i) for i in fields["subset_idxs"]),
        (float(fields["scale_x"]), float(fields["scale_y"])),
        (int(fields["output_height"]), int(fields["output_width"])),
        float(fields["target_rotation_radians"]),
    )
    if min(made.left, made.right, *made.subset) < 0 or not made.subset:
        raise ValueError("landmarks that are not there")
    _check_finite(*made.scale, made.angle)
    if min(*made.size, *made.scale) <= 0:
        raise ValueError(f"size {list(made.size)}, scale {list(made.scale)}")
    return made


def cut_size(raw: bytes) -> Pair:
    """The flexbuffer of the second version of ``TransformTensorBilinear``: height and width."""
    fields = flexbuffer(raw)
    height, width = int(fields["output_height"]), int(fields["output_width"])
    if min(height, width) < 1:
        raise ValueError(f"an image of {[height, width]}")
    if height * width > _PICTURE:
        raise Refusal(f"an image of {height * width} elements; {_PICTURE} are the most")
    return height, width


def detecting(raw: bytes) -> Detecting:
    """The flexbuffer of ``TFLite_Detection_PostProcess``."""
    fields = flexbuffer(raw)
    regular = bool(fields.get("use_regular_nms", False))
    y, x, height, width = (float(fields[f"{axis}_scale"]) for axis in "yxhw")
    made = Detecting(
        int(fields["max_detections"]),
        int(fields["num_classes"]),
        1 if regular else int(fields["max_classes_per_detection"]),
        int(fields.get("detections_per_class", _PER_CLASS)) if regular else 0,
        float(fields["nms_score_threshold"]),
        float(fields["nms_iou_threshold"]),
        (y, x, height, width),
    )
    if min(made.most, made.classes, made.labels) < 1 or made.per_class < int(regular):
        raise ValueError(f"at most {made.most} boxes of {made.classes} classes")
    if regular and int(fields["max_classes_per_detection"]) != 1:
        raise Refusal("several classes for each box, where each class is suppressed by itself")
    _check_finite(*made.scale, made.threshold, made.overlap)
    if made.most * made.labels > _BOXES:
        raise Refusal(f"{made.most * made.labels} boxes; {_BOXES} are the most")
    if not 0 < made.overlap <= 1 or not all(made.scale):
        raise ValueError(f"overlap {made.overlap}, scale {list(made.scale)}")
    return made


def flexbuffer(raw: bytes) -> Mapping[str, Any]:
    """Read a map.

    Raises:
        ValueError: it is damaged.
        TypeError: it is something else.
    """
    from flatbuffers import flexbuffers

    try:
        read = flexbuffers.Loads(raw)
    # Offsets in it lead anywhere, so that a wrong one raises anything.
    except Exception as error:
        raise ValueError(f"its options are damaged ({error})") from error
    if not isinstance(read, dict):
        raise TypeError("its options are no map")
    return read


def _integers(raw: bytes, count: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(f"<{count}i", raw)
    except struct.error as error:
        raise ValueError(f"{len(raw)} bytes of options, {4 * count} are the least") from error


def _check_finite(*numbers: float) -> None:
    if not all(abs(n) <= _LARGEST for n in numbers):
        raise ValueError(f"numbers {list(numbers)}")


def _is_same(padding: int) -> bool:
    if padding not in (_SAME, _VALID):
        raise Refusal(f"padding {padding}, known are 1 (SAME) and 2 (VALID)")
    return padding == _SAME
