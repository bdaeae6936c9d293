"""Every example runs as a user would run it, and prints what it promises."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

PROMISES = {
    "01_convert_and_run.py": [
        "converted: cpu-onnx-fp32",
        "verified here: True",
        "heard: C4, E4, G4",
    ],
    "02_pytorch_to_bundle.py": [
        "input: image: float32[batch, 3, 32, 32]",
        "batch 1: within 1e-6 of PyTorch: True",
        "batch 5: within 1e-6 of PyTorch: True",
    ],
    "03_bind_hot_loop.py": ["bound results are right", "session.run: ", "bound: "],
    "04_own_backend.py": ["runs were counted: True"],
    "05_name_a_photo.py": ["tomato.png: red", "meadow.jpg: green"],
    "06_photo_classifier_for_ios.py": [
        "precision, read back: weight_only_wp6_afp16",
        "image: image RGB [1, 3, 32, 32]",
        "classLabel_probs: dictionary",
        "tomato: red",
        "meadow: green",
    ],
    "demo.py": ["$ edgeinfer convert", "$ edgeinfer verify", "heard: C4, E4, G4", "Done in "],
}


def run(name: str, folder: Path) -> str:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_listed() -> None:
    assert {p.name for p in EXAMPLES.glob("*.py")} == set(PROMISES)


MARKS = {
    # `make demo` is the same run, and .ci/run starts with it.
    "demo.py": pytest.mark.slow,
    "01_convert_and_run.py": pytest.mark.sweep,
    "02_pytorch_to_bundle.py": pytest.mark.sweep,
    "03_bind_hot_loop.py": pytest.mark.sweep,
    "05_name_a_photo.py": pytest.mark.sweep,
    "06_photo_classifier_for_ios.py": pytest.mark.sweep,
}
RUNS = [pytest.param(n, marks=MARKS.get(n, ())) for n in PROMISES]


@pytest.mark.parametrize("name", RUNS)
def test_example(name: str, tmp_path: Path) -> None:
    if name.startswith("02") and importlib.util.find_spec("torch") is None:
        assert run(name, tmp_path).startswith("skipped: PyTorch is not installed")
        return
    out = run(name, tmp_path)
    for promise in PROMISES[name]:
        assert promise in out
    if name.startswith("04"):
        assert re.search(r"conformance: \d+ passed$", out, re.MULTILINE), out


@pytest.mark.parametrize("name", PROMISES)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < 100
