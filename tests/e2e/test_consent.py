"""A text detector that half of an engine's digits spoil: refused in bf16, right in fp32."""

from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from tests.zoo import fetch

Image = pytest.importorskip("PIL.Image")

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_a_text_detector_is_refused_in_bf16_and_runs_in_fp32(tmp_path: Path) -> None:
    """By the engine where the processor multiplies bf16, else by an evaluation that rounds so."""
    page = np.asarray(Image.open(fetch("page.png")).convert("RGB").resize((160, 160)), np.float32)
    x = ((page / 255 - MEAN) / DEVIATION).transpose(2, 0, 1)[np.newaxis].astype(np.float32)
    np.savez(tmp_path / "page.npz", x=x)
    made = edgeinfer.export(
        *(fetch("ppocrv4-det.onnx"), tmp_path / "det.edge"),
        targets=("openvino",),
        also=("bf16",),
        input_shapes={"x": (1, 3, 160, 160)},
        data=tmp_path / "page.npz",
    )
    assert [v.id for v in made.manifest.variants] == ["openvino-openvino_ir-fp32"]
    (told,) = (line for c in made.report.changes for line in c.lines if "refused" in line)
    assert told.startswith("openvino (openvino_ir) in bf16 was refused: ")
    assert "of the largest value, allowed 0.4" in told
    with edgeinfer.load(made.path, allow={"bf16"}) as session:
        assert session.report().precision == "fp32"
        text = session.run({"x": x})["sigmoid_0.tmp_0"] > 0.3
    assert 0.1 < text.mean() < 0.3
