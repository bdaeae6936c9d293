"""An artifact that several targets share is shown once, and all of them are named."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def test_every_target_of_a_shared_artifact_is_named(cli: Any, bundle: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    image = np.random.default_rng(0).random((4, 1, 2, 2, 3), dtype=np.float32)
    np.savez(data, image=image, labels=np.arange(4) % 3)
    line = "cpu-onnx-fp32: the same artifact as onnxruntime-onnx-fp32"
    for command in (
        ["bench", bundle, "--runs", "3", "--seconds", "0.01"],
        ["eval", bundle, data],
        ["compare", bundle, bundle],
    ):
        result = cli(*command)
        assert line in result.out.splitlines(), result
        found = json.loads(cli(*command, "--json").out)
        rows = {row["variant"]: row["also"] for row in found["rows"] if "also" in row}
        assert found.get("also", rows)["cpu-onnx-fp32"] == ["onnxruntime-onnx-fp32"]
