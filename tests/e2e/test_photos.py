"""A real net names real photos through the command line, on both engines.

The images are prepared as the package of the weights says: ``Resize(224)``, which is bilinear and
sets the shorter side, the middle square of it, RGB, (pixel - 127) / 128.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.media import load_image, parse_preprocessing
from edgeinfer.types import ImageInput
from tests.zoo import fetch

torch = pytest.importorskip("torch")
nets = pytest.importorskip("tests.zoo.nets")
pytest.importorskip("PIL")

ROOT = Path(__file__).resolve().parents[2]
PREPROCESSING = """
[inputs]
kind = "image"
width = 224
height = 224
resize = "crop"
interpolation = "bilinear"
color = "RGB"
scale = 1.0
mean = [127.0]
std = [128.0]
"""
PHOTOS = {
    "chelsea.png": "Egyptian cat",
    "coffee.png": "espresso",
    "baboon.jpg": "baboon",
}
"""What the net is to say first."""

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]


def command(*argv: object, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "edgeinfer", *map(str, argv), "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``lite0.edge`` and what it was made of."""
    path = tmp_path_factory.mktemp("photos")
    (path / "photo.toml").write_text(PREPROCESSING)
    (path / "net.py").write_text(
        "from tests.zoo.nets import torch_model\n\n\n"
        "def make():\n    return torch_model('efficientnet-lite0')\n"
    )
    command(
        *("convert", "net.py:make", "-t", "cpu", "-t", "openvino", "-o", "lite0.edge"),
        *("--preprocessing", "photo.toml", "--labels", fetch("imagenet-labels.txt")),
        folder=path,
    )
    return path


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_photos_are_named(folder: Path, backend: str) -> None:
    photos = [fetch(name) for name in PHOTOS]
    told = command("run", "lite0.edge", *photos, "--backend", backend, folder=folder)
    assert told["backend"] == backend
    for top, expected in zip(told["top"], PHOTOS.values(), strict=True):
        assert top[0]["label"] == expected
    record = parse_preprocessing(folder / "photo.toml")["inputs"]
    assert isinstance(record, ImageInput)
    module, _, _ = nets.torch_model("efficientnet-lite0")
    for photo, top in zip(photos, told["top"], strict=True):
        with torch.no_grad():
            scores = module(torch.from_numpy(load_image(photo, record)))[0].numpy()
        assert [best["index"] for best in top] == (-scores).argsort(kind="stable")[:5].tolist()
        np.testing.assert_allclose(
            [best["score"] for best in top], np.sort(scores)[::-1][:5], rtol=1e-4
        )
