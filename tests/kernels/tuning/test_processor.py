"""Names of processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.kernels.tuning import processor


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "model name\t: AMD EPYC\ncpu family\t: 25\nmodel\t\t: 17\n\n"
            "model name\t: other\nmodel\t: 3\n",
            "AMD EPYC, family 25 model 17",
        ),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd08\n", "0x41 0xd08"),
    ],
)
def test_name(text: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    monkeypatch.setattr(processor, "_CPUINFO", file)
    assert processor.name() == name


def test_without_a_list_of_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "none")
    assert processor.name()


def test_kin() -> None:
    assert processor.is_kin("AMD A, family 25 model 17", "AMD B x, family 25 model 17")
    assert not processor.is_kin("AMD A, family 25 model 17", "AMD A, family 25 model 1")
    assert not processor.is_kin("AMD A, family 6 model 7", "Intel A, family 6 model 7")
    assert processor.is_kin("Pi 5", "Pi 5")
    assert not processor.is_kin("Pi 5", "Pi 4")
    assert not processor.is_kin("", "Pi 4")
    assert not processor.is_kin(", family 25 model 17", "AMD A, family 25 model 17")
