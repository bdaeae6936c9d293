"""Conversions between element types."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.convert.lower.tflite.single import agree, f32
from tests.convert.lower.tflite.together import rows

TYPES = [
    *(np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64),
    *(np.uint8, np.uint16, np.uint32, np.bool_),
]


@rows("target", TYPES)
def test_every_pair_of_types(target: Any) -> None:
    for source in TYPES:
        x: Any = np.array([0, 1, 3, 100, 0.7] if source not in (np.bool_,) else [0, 1]).astype(
            source
        )
        to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))
        agree("Cast", x, to=to, types=[target], want={"y0": x.astype(target)}, both=False)


def test_integers_wrap_around() -> None:
    x = np.array([300, -1, 2**31 + 5, -(2**40) - 3], np.int64)
    for target in (np.int8, np.uint8, np.int32, np.uint32):
        to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))
        agree("Cast", x, to=to, types=[target], want={"y0": x.astype(target)})


def test_no_number_is_true() -> None:
    agree("Cast", f32(np.nan, 0, -0.0, 0.3), to=9, types=[np.bool_])


def test_like_another() -> None:
    agree("CastLike", f32(1.7, -2.5), np.zeros(3, np.int32), types=[np.int32])


@rows("dtype", [np.float32, np.float16])
@rows("negative", [0, 1])
@rows("positive", [0, 1])
def test_special_values(dtype: Any, negative: int, positive: int) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1, 6e4], dtype)
    agree("IsNaN", x, types=[np.bool_])
    options: dict[str, Any] = {"detect_negative": negative, "detect_positive": positive}
    agree("IsInf", x, types=[np.bool_], like="reference", **options)
