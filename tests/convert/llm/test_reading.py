from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from edgeinfer.convert.llm import reading
from edgeinfer.convert.llm.reading import Reading, fastest

USUAL = Reading((1, 2, 4), (8, 4, 1), (1024, 1024, 3072))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path))
    return tmp_path


def chosen(taken: dict[tuple[int, int], float], monkeypatch: pytest.MonkeyPatch) -> Reading:
    """What is fastest where steps take so long."""

    def measured(folders: Sequence[Path]) -> list[float]:
        choices = [f.name.split("_") for f in folders]
        return [taken.get((int(streams), int(ahead)), 1.0) for streams, ahead in choices]

    monkeypatch.setattr(reading, "measured", measured)
    return fastest(USUAL, "kernels", lambda choice: Path("_".join(map(str, choice.of(1)))))


def test_the_fastest_is_taken_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen({(1, 4096): 0.7, (2, 4096): 0.8}, monkeypatch)
    # Wider products never read from more places than one token does, and then as far ahead.
    assert found == Reading((1, 2, 4), (1, 1, 1), (4096, 4096, 3072))
    monkeypatch.setattr(reading, "measured", None)
    assert fastest(USUAL, "kernels", lambda _: Path()) == found


def test_a_little_is_no_reason_to_leave_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen({(1, 4096): 0.98}, monkeypatch) == USUAL


def test_a_damaged_file_is_measured_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen({}, monkeypatch)
    (path,) = folder.rglob("reading-*.json")
    path.write_text("{")
    assert chosen({(4, 1024): 0.5}, monkeypatch).of(1) == (4, 1024)
