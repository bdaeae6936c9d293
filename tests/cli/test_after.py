"""What is to be typed after a conversion."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from edgeinfer import profiles
from edgeinfer.bundle.manifest import FileRecord, Manifest, SourceRecord, Variant
from edgeinfer.cli.after import next_lines
from edgeinfer.machine import host
from edgeinfer.types import AudioInput, TensorSpec


@dataclass
class Made:
    """What the lines are about of a finished conversion."""

    path: Path
    manifest: Manifest
    files: tuple[Path, ...] = ()


def made(*targets: str, path: str = "net.edge", files: tuple[Path, ...] = ()) -> Made:
    file = FileRecord("variants/a", "0" * 64, 1)
    variants = tuple(Variant(t, t, "onnx", "fp32", (file,), ()) for t in targets)
    specs = (TensorSpec("x", "float32", (1,)),)
    source = SourceRecord("onnx", "net.onnx", "0" * 64)
    return Made(Path(path), Manifest("net", specs, specs, variants, (), source), files)


@pytest.fixture(autouse=True)
def pc(monkeypatch: pytest.MonkeyPatch) -> None:
    here = host.MachineHost("Zen 4", "x86_64", "linux", 2)
    monkeypatch.setattr(host, "host", lambda: here)


def lines(result: Made) -> list[str]:
    return list(next_lines(result))  # type: ignore[arg-type] # has all that is read


def test_what_runs_here_is_run_here() -> None:
    assert lines(made("cpu", "openvino")) == [
        "run it here: edgeinfer run net.edge INPUT.npz; time it: edgeinfer bench net.edge",
        "maybe faster here: convert with --machine-code all, which takes longer",
    ]
    assert len(lines(made("openvino"))) == 1


def test_a_language_model_continues_a_text() -> None:
    result = made("openvino")
    variants = (replace(result.manifest.variants[0], format="llm"),)
    (line,) = lines(replace(result, manifest=replace(result.manifest, variants=variants)))
    assert line.startswith('run it here: edgeinfer generate net.edge "Once upon a time"; time it')


def test_code_that_is_there_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = made("cpu")
    variants = (replace(result.manifest.variants[0], format="tvm"),)
    assert len(lines(replace(result, manifest=replace(result.manifest, variants=variants)))) == 1
    mac = host.MachineHost("M4", "aarch64", "macos", 2)
    monkeypatch.setattr(host, "host", lambda: mac)
    assert len(lines(made("cpu"))) == 1


def test_what_runs_elsewhere_is_copied_there() -> None:
    assert lines(made("rpi5", path="out/net.edge")) == [
        "on Raspberry Pi 5: scp out/net.edge DEVICE:; there: edgeinfer verify net.edge && "
        "edgeinfer run net.edge INPUT.npz"
    ]
    (jetson,) = lines(made("jetson-orin"))
    assert "there: edgeinfer build net.edge && edgeinfer verify net.edge" in jetson


def test_apps_take_the_plain_artifact() -> None:
    iphone, android = lines(made("ios", "android"))
    assert "edgeinfer extract net.edge -t ios -o ios/; add the .mlpackage in ios/ios" in iphone
    assert "Xcode (docs/phones.md, iPhone)" in iphone
    assert "edgeinfer extract net.edge -t android -o android/; copy the .tflite" in android


def test_of_a_plain_artifact_only_apps_are_told() -> None:
    artifact = (Path("net.mlpackage"),)
    (line,) = lines(made("ios", path="net.mlpackage", files=artifact))
    assert line.startswith("for iOS and iPadOS: add net.mlpackage to the project")
    assert lines(made("rpi5", path="net.tflite", files=artifact)) == []


def test_sounds_are_named_and_profiles_of_files_are_left_alone() -> None:
    given = made("cpu", "my-own-board")
    given.manifest = replace(given.manifest, preprocessing={"x": AudioInput(16000)})
    line, _ = lines(given)
    assert "edgeinfer run net.edge AUDIO" in line


def test_every_shipped_target_has_a_line() -> None:
    assert [name for name in profiles.names() if not lines(made(name))] == []
