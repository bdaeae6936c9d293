"""What an input is taken for."""

import pytest

from edgeinfer.convert.verify.kinds import guess_kind
from edgeinfer.types import AudioInput, ImageInput, TensorSpec, TokenInput


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (TensorSpec("x", "float32", ("N", 3, None, None)), "image"),
        (TensorSpec("x", "float32", (1, 128, 128, 3)), "image"),
        (TensorSpec("x", "uint8", (1, 300, 300, 3)), "image"),
        (TensorSpec("features", "float32", (1, 64, 20, 20)), "plain"),
        (TensorSpec("attention_bias", "float16", (1, 1, 5, 7)), "plain"),
        (TensorSpec("x", "float32", (None, 43844, 1)), "audio"),
        (TensorSpec("input", "float32", (None, None)), "audio"),
        (TensorSpec("waveform", "float32", (1, 320)), "audio"),
        (TensorSpec("x", "float32", (1, 16, 96)), "plain"),
        (TensorSpec("x", "float32", (1, 8)), "plain"),
        (TensorSpec("state", "float32", (2, None, 128)), "state"),
        (TensorSpec("h0", "float32", (4, 1, 64)), "state"),
        (TensorSpec("past_key_values.0.key", "float32", (1, 4, "past", 64)), "state"),
        (TensorSpec("attention_mask", "int64", ("B", "S")), "mask"),
        (TensorSpec("position_ids", "int64", ("B", "S")), "positions"),
        (TensorSpec("sr", "int64", ()), "sample_rate"),
        (TensorSpec("n", "int64", ()), "plain"),
        (TensorSpec("input_lengths", "int64", ("B",)), "length"),
        (TensorSpec("x_len", "int32", (1,)), "length"),
        (TensorSpec("im_shape", "float32", (None, 2)), "sizes"),
        (TensorSpec("orig_target_sizes", "int64", ("N", 2)), "sizes"),
        (TensorSpec("image_size", "float32", (1,)), "plain"),
        (TensorSpec("scale_factor", "float32", (None, 2)), "factor"),
        (TensorSpec("temperature", "float32", ()), "factor"),
        (TensorSpec("iou_threshold", "float32", (1,)), "share"),
        (TensorSpec("flag", "bool", ()), "mask"),
        (TensorSpec("bytes", "int32", ("N", 2048)), "tokens"),
        (TensorSpec("text", "string", ("N",)), "text"),
    ],
    ids=str,
)
def test_by_looks(spec: TensorSpec, kind: str) -> None:
    assert guess_kind(spec).name == kind


def test_the_record_decides() -> None:
    spec = TensorSpec("x", "float32", (1, 3, 8, 8))
    assert guess_kind(spec, AudioInput(8000)).name == "audio"
    assert guess_kind(spec, ImageInput(8, 8, layout="NHWC")).channel_axis == 3
    assert guess_kind(spec, TokenInput(7)).vocab == 7
