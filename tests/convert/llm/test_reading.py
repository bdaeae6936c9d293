from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from edgeinfer.convert.llm import reading
from edgeinfer.convert.llm.reading import CHOICES, Reading, fastest

USUAL = Reading((1, 2, 3, 4, 8), (8, 4, 2, 2, 1), (1024, 1024, 3072, 3072, 3072))
KERNELS = [f"product_{size}_w{width}" for size in ("small", "large") for width in USUAL.widths]

Taken = Mapping[str, Mapping[tuple[int, int], float]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path))
    return tmp_path


def chosen(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """What is fastest where kernels take so long, and one microsecond otherwise."""
    written: list[Reading] = []

    def write(choices: Sequence[Reading]) -> list[Path]:
        written[:] = choices
        return [Path(str(at)) for at in range(len(choices))]

    def measured(folders: Sequence[Path], widths: Sequence[int]) -> list[dict[str, float]]:
        assert len(folders) == len(written)
        return [
            {
                name: taken.get(name, {}).get(each.of(width), 1.0)
                for name in KERNELS
                if (width := int(name.rpartition("_w")[2])) in widths
            }
            for each in written
        ]

    monkeypatch.setattr(reading, "measured", measured)
    return fastest(USUAL, KERNELS, "machine", write)


def test_each_matrix_and_width_gets_what_is_fastest_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = chosen(
        {
            "product_small_w1": {(1, 4096): 0.7, (2, 4096): 0.8},
            "product_large_w1": {(4, 1024): 0.5},
            "product_large_w4": {(1, 4096): 0.6},
        },
        monkeypatch,
    )
    assert found.of(1, "product_small_w1") == (1, 4096)
    assert found.of(1, "product_large_w1") == (4, 1024)
    assert found.of(4, "product_large_w4") == (1, 4096)
    # Three tokens are as near to four as to the table.
    assert found.of(3, "product_large_w3") == (1, 4096)
    for name, width in (("product_small_w2", 2), ("product_small_w3", 3), ("product_large_w8", 8)):
        assert found.of(width, name) == USUAL.of(width)


def test_what_was_measured_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen({"product_small_w1": {(1, 4096): 0.7}}, monkeypatch)
    monkeypatch.setattr(reading, "measured", None)
    assert fastest(USUAL, KERNELS, "machine", lambda _: []) == found
    assert str(found) == "width 1: 1 x 4096 (1)"


def test_a_little_is_no_reason_to_leave_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen({"product_small_w1": {(1, 4096): 0.98}}, monkeypatch)
    assert found == USUAL
    assert str(found) == "as usual"


def test_a_damaged_file_is_measured_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen({}, monkeypatch)
    (path,) = folder.rglob("reading-*.json")
    path.write_text("{")
    found = chosen({"product_large_w2": {(2, 4096): 0.5}}, monkeypatch)
    assert found.of(2, "product_large_w2") == (2, 4096)


def test_trials_try_every_choice_of_every_width() -> None:
    trials = [USUAL.trial(number) for number in range(max(map(len, CHOICES.values())))]
    for width, choices in CHOICES.items():
        assert {trial.of(width) for trial in trials} >= set(choices)
    assert {trial.of(8) for trial in trials} == {USUAL.of(8)}
