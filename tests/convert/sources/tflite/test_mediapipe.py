"""MediaPipe's custom operators: what was read computes what MediaPipe computed."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.sources.tflite import read_file
from tests.convert.sources.tflite.mediapipe_cases import Case, cases, golden
from tests.convert.sources.tflite.reading import run_onnx

CASES = {case.id: case for case in cases()}
_golden = functools.cache(golden)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_mediapipe(case: Case, tmp_path: Path) -> None:
    found = read_file(case.write(tmp_path / "m.tflite"))
    made = run_onnx(found.model, dict(case.inputs))
    for value, want in zip(made.values(), _golden()[case.id], strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
