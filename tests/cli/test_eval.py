"""``edgeinfer eval``: one table of accuracy, size and time; what cannot be measured says why."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from tests.cli.conftest import write_bundle

VERSION = onnxruntime.__version__


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twelve images whose colour is known, but three of them wrongly."""
    image = np.zeros((12, 2, 2, 3), np.float32)
    labels = np.arange(12) % 3
    image[np.arange(12), :, :, labels] = 1.0
    labels[:3] = (1, 2, 0)
    path = tmp_path / "colours.npz"
    np.savez(path, image=image, labels=labels)
    return path


def test_the_table(cli: Any, bundle: Path, data: Path) -> None:
    result = cli("eval", bundle, data, "-b", "onnxruntime")
    assert result.code == 0
    head, row, _, also, end = result.out.splitlines()
    assert head.split("  ")[0] == "variant"
    assert head.endswith("top1  a sample here")
    found = re.fullmatch(
        rf"cpu-onnx-fp32 +onnxruntime {VERSION} +cpu +fp32 +\d+ B +(\S+) +\S+ ms", row
    )
    assert found is not None
    assert found[1] == "0.7500"
    assert also == "cpu-onnx-fp32: the same artifact as onnxruntime-onnx-fp32"
    assert end == "12 samples on each, top1: the higher the better"


def test_json(cli: Any, bundle: Path, data: Path) -> None:
    found = json.loads(cli("eval", bundle, data, "--metric", "top5", "--json").out)
    assert (found["metric"], found["samples"]) == ("top5", 12)
    row = next(r for r in found["rows"] if r["backend"] == "onnxruntime")
    assert row["quality"] == 1.0
    assert row["sample_ms"] > 0
    assert all(r["variant"] and r["reason"] for r in found["not_run"])


def test_folders_are_named_as_the_classes(cli: Any, bundle: Path, tmp_path: Path) -> None:
    """By the bundle's labels, not by their order: blue comes first in the alphabet."""
    for name, pixel in (("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (0, 255, 0))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (2, 2), pixel).save(tmp_path / "photos" / name / "a.png")
    result = cli("eval", bundle, tmp_path / "photos", "-b", "onnxruntime", "--json")
    assert json.loads(result.out)["rows"][0]["quality"] == pytest.approx(2 / 3)


def test_a_measure_of_ones_own(cli: Any, bundle: Path, data: Path, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text(
        "def seen(outputs, labels):\n"
        "    return sum(len(o['scores']) for o in outputs) / len(labels)\n"
        "def broken(outputs, labels):\n    return 1 / 0\n"
    )
    result = cli("eval", bundle, data, "--metric", f"{code}:seen", "-b", "onnxruntime", "--json")
    assert json.loads(result.out)["rows"][0]["quality"] == 1.0
    result = cli("eval", bundle, data, "--metric", f"{code}:broken", "-b", "onnxruntime")
    assert result.code == 2
    assert "mine.py:broken failed: ZeroDivisionError" in result.err


def test_what_an_artifact_refuses_is_no_accuracy(cli: Any, tmp_path: Path) -> None:
    image = np.zeros((2, 2, 2, 3), np.float32)
    image[1, 0, 0, 0] = np.nan
    np.savez(tmp_path / "nan.npz", image=image, labels=[0, 1])
    refusing = write_bundle(tmp_path / "m.edge", constraints={"inputs": "not_nan"})
    result = cli("eval", refusing, tmp_path / "nan.npz", "-b", "onnxruntime")
    assert result.code == 1
    assert "cpu-onnx-fp32 on onnxruntime: not measured: " in result.out
    assert "nan.npz" in result.out


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({}, "colours.npz has no label: expected an array 'labels' with one for each sample"),
        ({"labels": ["red", "pink", "red"]}, "labels such as 'pink'"),
        ({"labels": [0, 1]}, "one for each of 3 samples"),
    ],
)
def test_labels_that_say_nothing(
    cli: Any, bundle: Path, tmp_path: Path, arrays: Any, told: str
) -> None:
    np.savez(tmp_path / "colours.npz", image=np.ones((3, 2, 2, 3), np.float32), **arrays)
    result = cli("eval", bundle, tmp_path / "colours.npz")
    assert result.code in (1, 2)
    assert told in result.err
    assert result.out == ""


def test_an_unknown_metric(cli: Any, bundle: Path, data: Path) -> None:
    result = cli("eval", bundle, data, "--metric", "best")
    assert result.code == 2
    assert "metric 'best' is unknown; known: top1" in result.err


def test_the_page_says_what_is_printed(cli: Any, bundle: Path, data: Path, tmp_path: Path) -> None:
    page = tmp_path / "found.html"
    result = cli("eval", bundle, data, "-b", "onnxruntime", "--html", page)
    assert result.code == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    for cell in ("cpu-onnx-fp32", f"onnxruntime {VERSION}", "0.7500"):
        assert f">{cell}</td>" in text
    assert "<p>12 samples on each, top1: the higher the better</p>" in text
    # Its own may be replaced, what is no page may not.
    assert cli("eval", bundle, data, "-b", "onnxruntime", "--html", page).code == 0
    page.write_text("mine")
    result = cli("eval", bundle, data, "--html", page)
    assert (result.code, page.read_text()) == (2, "mine")
    assert "exists and is no html file" in result.err
