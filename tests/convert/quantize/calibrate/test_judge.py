from collections.abc import Iterator

import numpy as np
import pytest

from edgeinfer.convert.quantize.calibrate.judge import DataVerdict, judge
from edgeinfer.errors import UsageError
from edgeinfer.media.samples import Sample, SampleSet
from edgeinfer.types import ImageInput, TensorSpec

SPEC = TensorSpec("x", "float32", (1, 3, 32, 32))
RECORD = ImageInput(32, 32, scale=1.0, mean=(127.5,), std=(127.5,))


def picture(seed: int) -> np.ndarray:
    """A smooth image in -1..1, as photos are."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(-1.2, 1.2, size=(3, 5, 5))
    x = np.linspace(0, 4, 32)
    low = np.minimum(x.astype(int), 3)
    part = x - low
    rows = coarse[:, low] * (1 - part)[None, :, None] + coarse[:, low + 1] * part[None, :, None]
    both = rows[..., low] * (1 - part) + rows[..., low + 1] * part
    return np.asarray(np.clip(both, -1, 1)[None], np.float32)


def data(arrays: list[np.ndarray], labels: list[int] | None = None) -> SampleSet:
    def samples() -> Iterator[Sample]:
        for i, array in enumerate(arrays):
            yield Sample({"x": array}, f"{i}", () if labels is None else (labels[i],))

    return SampleSet(samples)


def about(verdict: DataVerdict) -> dict[str, str]:
    return {f.about: f.level for f in verdict.findings}


def test_good_data_is_good() -> None:
    verdict = judge(data([picture(i) for i in range(64)]), [SPEC], {"x": RECORD})
    assert (verdict.level, verdict.findings) == ("good", ())
    assert verdict.numbers["samples"] == 64
    verdict.check()


def test_four_pictures_are_refused_and_the_report_says_so_for_ever() -> None:
    few = data([picture(i) for i in range(4)])
    verdict = judge(few, [SPEC])
    assert about(verdict) == {"samples": "refused"}
    with pytest.raises(UsageError, match="4 distinct samples, at least 16 needed"):
        verdict.check()
    forced = judge(few, [SPEC], force=True)
    forced.check()
    assert "REFUSED" in forced.lines()[0]
    assert forced.to_json()["forced"] is True


def test_repeats_do_not_count() -> None:
    verdict = judge(data([picture(i % 8) for i in range(100)]), [SPEC])
    assert verdict.numbers["distinct"] == 8
    assert about(verdict) == {"samples": "refused", "duplicates": "weak"}


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_noise_is_refused(kind: str) -> None:
    rng = np.random.default_rng(0)
    draw = rng.standard_normal if kind == "normal" else rng.random
    noise = [draw((1, 3, 32, 32)).astype(np.float32) for _ in range(64)]
    assert about(judge(data(noise), [SPEC]))["noise"] == "refused"


def test_noise_on_channels_last_is_seen_too() -> None:
    spec = TensorSpec("x", "float32", (1, 32, 32, 3))
    real = [np.moveaxis(picture(i), 1, 3) for i in range(64)]
    assert judge(data(real), [spec]).level == "good"
    rng = np.random.default_rng(0)
    noise = [rng.random((1, 32, 32, 3)).astype(np.float32) for _ in range(64)]
    assert about(judge(data(noise), [spec]))["noise"] == "refused"


def test_wrong_preparation_is_seen_by_the_record() -> None:
    wrong = [(picture(i) + 1) / 2 for i in range(64)]
    assert about(judge(data(wrong), [SPEC], {"x": RECORD})) == {"preparation": "refused"}
    bytes_ = [(picture(i) + 1) * 127.5 for i in range(64)]
    assert about(judge(data(bytes_), [SPEC], {"x": RECORD})) == {"preparation": "refused"}


def test_wrong_preparation_is_seen_by_the_test_inputs() -> None:
    real = [{"x": picture(100 + i)} for i in range(4)]
    right = judge(data([picture(i) for i in range(64)]), [SPEC], vectors=real)
    assert right.level == "good"
    wrong = [(picture(i) + 1) / 2 for i in range(64)]
    verdict = judge(data(wrong), [SPEC], vectors=real)
    assert about(verdict) == {"coverage": "refused"}


def test_constant_and_nan_samples_are_refused() -> None:
    blank = [np.full((1, 3, 32, 32), i / 64, np.float32) for i in range(64)]
    assert about(judge(data(blank), [SPEC]))["constant"] == "refused"
    holed = [picture(i) for i in range(64)]
    holed[5][0, 0, 3, 3] = np.nan
    assert about(judge(data(holed), [SPEC])) == {"nonfinite": "refused"}


def test_a_channel_that_never_changes_is_weak() -> None:
    still = [picture(i) for i in range(64)]
    for array in still:
        array[:, 2] = 0.25
    assert about(judge(data(still), [SPEC])) == {"channels": "weak"}


def test_classes_are_counted() -> None:
    labels = [0] * 60 + [1] * 4
    verdict = judge(data([picture(i) for i in range(64)], labels), [SPEC])
    assert about(verdict) == {"balance": "weak"}
    assert verdict.numbers["classes"] == {"0": 60, "1": 4}


def test_no_sample_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="0 distinct samples"):
        judge(data([]), [SPEC]).check()


def test_integers_are_only_counted() -> None:
    spec = TensorSpec("x", "int64", (1, 8))
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, 1000, (1, 8)) for _ in range(64)]
    assert judge(data(tokens), [spec]).level == "good"


def test_a_state_has_no_neighbours_and_is_no_noise() -> None:
    spec = TensorSpec("x", "float32", (2, 1, 512))
    rng = np.random.default_rng(0)
    states = [rng.normal(size=(2, 1, 512)).astype(np.float32) for _ in range(64)]
    assert about(judge(data(states), [spec]))["noise"] == "refused"
    assert judge(data(states), [spec], media=()).level == "good"
