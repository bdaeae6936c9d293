"""MediaPipe's operators in NumPy, against what MediaPipe computed."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.sources.tflite.file import load
from edgeinfer.convert.verify.definitions import define
from tests.convert.sources.tflite.mediapipe_cases import Case, cases, golden

CASES = {case.id: case for case in cases()}
_golden = functools.cache(golden)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_mediapipe(case: Case, tmp_path: Path) -> None:
    op = load(case.write(tmp_path / "m.tflite")).graphs[0].ops[0]
    made = define(op, [*case.inputs.values(), *case.constants])
    for value, want in zip(made, _golden()[case.id], strict=True):
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
