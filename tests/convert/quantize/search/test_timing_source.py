"""Whether times that are taken here say anything of a device."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Backend, Capabilities, Probe
from edgeinfer.backends.process import emulator
from edgeinfer.convert.quantize.search import timing_source, trial
from edgeinfer.convert.quantize.search.layers import Point
from edgeinfer.convert.quantize.search.timing_source import clock_for
from edgeinfer.convert.quantize.search.trial import CandidateTrials, Samples
from edgeinfer.machine.host import MachineHost


class Engine:
    def __init__(self, name: str, keeps_time: bool = True) -> None:
        self.name, self._keeps_time = name, keeps_time

    def probe(self) -> Probe:
        return Probe(self.name, "1.0")

    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset(), frozenset(), keeps_time=self._keeps_time)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "emulated", lambda: "")
    monkeypatch.setattr(timing_source, "host", lambda: MachineHost("Zen 4", "x86_64", "linux", 2))


def made(profile: str, engine: Engine, *engines: str) -> timing_source.TimingSource:
    return clock_for(profiles.load(profile), engines or (engine.name,), cast(Backend, engine))


def test_times_of_the_device_itself_count() -> None:
    found = made("cpu", Engine("onnxruntime"))
    assert (found.counts, found.is_device) == (True, True)
    assert found.line == "times are of onnxruntime 1.0 on Zen 4 (x86_64, linux)"


@pytest.mark.parametrize("profile", ["rpi4", "android"])
def test_the_same_engine_on_another_machine_counts_and_is_told(profile: str) -> None:
    found = made(profile, Engine("litert"))
    assert (found.counts, found.is_device) == (True, False)
    system = "android" if profile == "android" else "linux"
    assert found.line.endswith(f"on the device ({found.device})")
    assert found.device.endswith(system)


def test_an_evaluator_a_stand_in_and_an_emulator_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = made("ios", Engine("coreml-reference", False), "coreml", "coreml-reference")
    assert "coreml-reference evaluates" in found.why_not
    assert found.integers[0] == "A17 Pro"
    found = made("jetson", Engine("onnxruntime"), "onnxruntime-tensorrt", "onnxruntime")
    assert "onnxruntime stands in" in found.why_not
    assert found.integers == ("all",)
    monkeypatch.setattr(
        timing_source, "host", lambda: MachineHost("Cortex-A72", "aarch64", "linux", 4)
    )
    assert made("rpi4", Engine("litert")).is_device
    monkeypatch.setattr(emulator, "emulated", lambda: "x86_64")
    found = made("rpi4", Engine("litert"))
    assert "this machine (x86_64) emulates" in found.why_not
    assert not found.is_device


def test_evaluators_keep_no_time() -> None:
    kept = {n: registry.get(n).capabilities().keeps_time for n in registry.BUILT_IN}
    assert {n for n, keeps in kept.items() if not keeps} == {"reference", "coreml-reference"}


@pytest.mark.parametrize(
    ("mine", "files", "found"),
    [
        ("aarch64", {"/proc/sys/kernel/arch": "x86_64"}, "x86_64"),
        ("armv7l", {"/proc/sys/kernel/arch": "aarch64"}, ""),
        ("i686", {"/proc/sys/kernel/arch": "x86_64"}, ""),
        ("x86_64", {"/proc/sys/kernel/arch": "x86_64"}, ""),
        # Kernels before 6.1 have no such file.
        ("aarch64", {"/proc/self/status": "Name:\tqemu-aarch64-st"}, "another"),
        ("aarch64", {"/proc/self/status": "Name:\tpython3"}, ""),
        ("arm64", {}, ""),
    ],
)
def test_a_process_knows_that_it_is_emulated(
    monkeypatch: pytest.MonkeyPatch, mine: str, files: dict[str, str], found: str
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(platform, "machine", lambda: mine)
    monkeypatch.setattr(emulator, "text", lambda path: files.get(Path(path).as_posix(), ""))
    assert emulator.emulated() == found


def test_nothing_is_timed_where_times_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Executable:
        def run(self, feeds: Any) -> Any:
            return feeds

    def never(*_: object) -> float:
        raise AssertionError("timed")

    monkeypatch.setattr(trial, "_once", never)
    monkeypatch.setattr(trial, "_size", lambda lowered: 7)
    trials = CandidateTrials(cast(Any, SimpleNamespace(model=None)), cast(Any, None), (), ())
    trials._clock = timing_source.TimingSource("e", "m", "it evaluates")
    monkeypatch.setattr(CandidateTrials, "_load", lambda *_: (Executable(), None))
    points = [Point((), 0.0, 0.0, 1.0, 0.0, 5)]
    before, raced = trials.race(Samples(), points)
    assert (before.latency_ms, before.size_bytes, raced) == (0.0, 7, points)
