"""The library of functions around models: for which targets, and what is said without it."""

import importlib.util
import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.convert.lower.tvm.machines import Machine, machine
from edgeinfer.convert.machine_code import functions
from edgeinfer.errors import NotAvailableError
from edgeinfer.profiles import load as load_profile
from edgeinfer.types import ImageInput, SpectrogramInput, StateInput

PICTURE = {"x": ImageInput(8, 8)}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take note of what would be made."""
    asked: list[str] = []

    def library(
        wanted: Machine, *, pictures: bool, spectrograms: tuple[SpectrogramInput, ...]
    ) -> Path:
        kinds = ["pictures"] * pictures + [f"spectrograms {s.fft}" for s in spectrograms]
        asked.append(" ".join([wanted.name, *kinds]))
        return Path(f"{wanted.name}.so")

    monkeypatch.setattr(functions, "library", library)
    return asked


def test_each_architecture_of_the_targets_has_one(made: list[str]) -> None:
    profiles = [load_profile(n) for n in ("rpi4", "rpi5", "jetson-orin", "onnxruntime")]
    found, notes = functions.libraries(profiles, PICTURE)
    assert found == {
        "code/aarch64.so": Path("cortex-a72.so"),
        "code/x86_64.so": Path("x86-64-v3.so"),
    }
    assert notes == []


def test_the_machine_that_converts_has_its_own_alone(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert list(functions.libraries([load_profile("cpu")], PICTURE)[0]) == ["code/aarch64.so"]


def test_systems_without_such_libraries_have_none(made: list[str]) -> None:
    for name in ("android", "ios", "macos"):
        assert functions.libraries([load_profile(name)], PICTURE) == ({}, [])
    assert made == []


def test_models_without_pictures_have_none(made: list[str]) -> None:
    assert functions.libraries([load_profile("rpi4")], {"x": StateInput("y")}) == ({}, [])
    assert made == []


def test_models_that_take_spectrograms_have_a_function_a_record(made: list[str]) -> None:
    record = SpectrogramInput(16000, 512, 160, 40)
    records = {
        "a": record,
        "b": replace(record, mean=1.0),
        "c": replace(record, fft=400),
        "d": replace(record, fft=257),
    }
    found, notes = functions.libraries([load_profile("rpi4")], records)
    assert list(found) == ["code/aarch64.so"]
    assert made == ["cortex-a72 spectrograms 512 spectrograms 400"]
    assert notes == [
        "spectrograms by NumPy: no code for transforms of 257 samples: a factor of it is too large"
    ]
    functions.libraries([load_profile("rpi4")], {**PICTURE, "s": record})
    assert made[1:] == ["cortex-a72 pictures spectrograms 512"]
    assert functions.libraries([load_profile("rpi4")], {"d": records["d"]}) == ({}, notes)


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, without: Any) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    chosen = [load_profile("rpi4")]
    if importlib.util.find_spec("tvm") is not None:
        for refused in (
            lambda: functions.check_able(chosen),
            lambda: functions.libraries(chosen, PICTURE),
        ):
            with pytest.raises(NotAvailableError, match="apt-get install gcc-aarch64-linux-gnu"):
                refused()
    functions.check_able([load_profile("ios")])
    without("tvm")
    with pytest.raises(NotAvailableError, match=r"pip install 'edgeinfer\[tvm\]'"):
        functions.library(machine("cortex-a72"))


def test_a_compiler_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("tvm") is None or shutil.which("gcc") is None:
        pytest.skip("needs TVM and gcc")
    monkeypatch.setattr(functions, "_MODULE", "edgeinfer.convert.no_such_module")
    with pytest.raises(NotAvailableError, match="the compiler's process ended"):
        functions.library(machine("x86-64-v3"))
