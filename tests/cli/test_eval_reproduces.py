"""``eval`` on labelled images and speech gives the accuracy that ``auto`` reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.bundle.archive import Bundle
from tests.zoo import fetch

pytestmark = [
    *(pytest.mark.models, pytest.mark.timeout(900)),
    pytest.mark.usefixtures("conversions_apart"),
]

RIGHT = """
import numpy as np

def right(outputs, labels):
    said = [float(np.ravel(next(iter(o.values())))[0]) > 0.5 for o in outputs]
    return float(np.mean([a == bool(b) for a, b in zip(said, labels)]))
"""


ACCEPTED = """
import numpy as np

def right(outputs, labels):
    said = [int(np.ravel(next(iter(o.values()))).argmax()) for o in outputs]
    return float(np.mean([a in np.ravel(b) for a, b in zip(said, labels)]))
"""


def reproduced(cli: Any, model: Path, data: Path, metric: str, *targets: str) -> list[float]:
    """Convert within a budget of accuracy, and hold what is reported against ``eval``."""
    bundle = data.with_name("auto.edge")
    asked = [word for target in targets for word in ("-t", target)]
    options = ["--precision", "auto", "--max-drop", "2%", "--metric", metric, "--calibration", data]
    result = cli("convert", model, *asked, *options, "-o", bundle)
    assert result.code == 0, result.err
    with Bundle.open(str(bundle)) as opened:
        report = opened.report() or {}
        formats = {v.id: v.format for v in opened.manifest.variants}
    searches = report["quantization"]["search"]
    reported = {where.rpartition("(")[2].rstrip(")"): s for where, s in searches.items()}
    told = json.loads(cli("eval", bundle, data, "--metric", metric, "--json").out)
    found = []
    for row in told["rows"]:
        search = reported[formats[row["variant"]]]
        assert search["samples"] == told["samples"]
        # One answer may turn where the engine that searched fused otherwise.
        assert row["quality"] == pytest.approx(
            search["chosen"]["quality"], abs=1.01 / told["samples"]
        )
        found.append(row["quality"])
    return found


def test_of_handwritten_digits(cli: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.precision_data import opencv_digits

    case = opencv_digits(tmp_path)
    pictures = np.concatenate([feeds["x"] for feeds in case.tests[:500]])
    np.savez(tmp_path / "digits.npz", x=pictures, labels=np.asarray(case.answers[:500]))
    found = reproduced(
        cli, case.model, tmp_path / "digits.npz", "top1", "onnxruntime", "openvino", "rpi5"
    )
    assert len(found) >= 3
    assert min(found) > 0.9


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "rpi5"])
def test_of_photos(target: str, cli: Any, tmp_path: Path) -> None:
    """EfficientNet-lite0 on cut-outs, where more than one class of ImageNet may be right."""
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    from benchmarks.precision_data import efficientnet_lite0

    case = efficientnet_lite0(tmp_path)
    (name,) = case.tests[0]
    widest = max(map(len, case.answers))
    accepted = [[*classes, *[-1] * (widest - len(classes))] for classes in case.answers]
    photos = np.concatenate([feeds[name] for feeds in case.tests])
    np.savez(tmp_path / "photos.npz", **{name: photos}, labels=np.asarray(accepted))  # type: ignore[arg-type]
    (tmp_path / "judge.py").write_text(ACCEPTED)
    metric = f"{tmp_path / 'judge.py'}:right"
    found = reproduced(cli, case.model, tmp_path / "photos.npz", metric, target)
    assert found
    assert min(found) > 0.75


def test_of_speech_and_what_is_none(cli: Any, tmp_path: Path) -> None:
    """Windows of readings that are as loud as speech, and windows of noise and hum."""
    from edgeinfer.media.audio import open_recording

    readings = [open_recording(fetch(f"speech-librivox-0{n}.wav"), 16000) for n in (870, 880, 890)]
    windows = np.concatenate([r[: len(r) // 576 * 576].reshape(-1, 576) for r in readings])
    loud = windows[np.sqrt((windows**2).mean(axis=1)) > 0.03][:160]
    rng = np.random.default_rng(0)
    hum = np.sin(np.arange(576) * rng.uniform(0.02, 2.0, (60, 1))) * 0.1
    noise = rng.normal(0, 1, (60, 576)) * rng.uniform(0.001, 0.2, (60, 1))
    quiet = np.concatenate([hum, noise])
    x = np.concatenate([loud, quiet]).astype(np.float32)
    model = fetch("silero-vad-openvino-16k.onnx")
    feeds, labels = _feeds(model, x), np.repeat([1, 0], [len(loud), len(quiet)])
    np.savez(tmp_path / "speech.npz", **{**feeds, "labels": labels})  # type: ignore[arg-type]
    (tmp_path / "judge.py").write_text(RIGHT)
    metric = f"{tmp_path / 'judge.py'}:right"
    found = reproduced(cli, model, tmp_path / "speech.npz", metric, "onnxruntime", "rpi5")
    assert len(found) >= 2
    assert min(found) > 0.8


def _feeds(model: Path, windows: np.ndarray) -> dict[str, np.ndarray]:
    """Give each window the state that the float net made of the ones before."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    states = [np.zeros((2, 1, 128), np.float32)]
    for window in windows[:, np.newaxis]:
        states.append(session.run(["stateN"], {"input": window, "state": states[-1]})[0])
    return {"input": windows[:, np.newaxis], "state": np.stack(states[:-1])}
