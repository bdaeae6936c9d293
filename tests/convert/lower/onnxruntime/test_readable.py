"""What is run while it is made is written as the installed engine reads it."""

import numpy as np
import pytest

from edgeinfer.convert.lower.onnxruntime import readable as readable_module
from edgeinfer.convert.lower.onnxruntime.readable import readable
from tests.convert.lower.running import model, ops, run

X = {"x": np.linspace(-2, 2, 6, dtype=np.float32)}


def test_a_model_that_is_taken_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable_module, "takes", lambda version: True)
    whole = model("g (float[6] x) => (float[6] y) { y = Relu(x) }")
    whole.ir_version = 10
    assert readable(whole) is whole


def test_an_older_engine_gets_an_older_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models were calibrated at the passes' version, which the oldest engine refuses."""
    monkeypatch.setattr(readable_module, "takes", lambda version: version < 24)
    whole = model("g (float[6] x) => (float[6] y) { y = Relu(x) }")
    whole.ir_version = 13
    made = readable(whole)
    assert (made.opset_imports[""], made.ir_version) == (21, 10)
    assert (whole.opset_imports[""], whole.ir_version) == (24, 13)


def test_what_the_version_lacks_is_written_by_its_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readable_module, "takes", lambda version: version < 24)
    whole = model("g (float[6] x) => (float[6] y) { y = Swish(x) }")
    monkeypatch.setattr(readable_module, "lacking", lambda of, probe: [*of.graph])
    made = readable(whole)
    assert "Swish" not in ops(made)
    assert made.opset_imports[""] < 24
    want = X["x"] / (1 + np.exp(-X["x"]))
    np.testing.assert_allclose(run(made, X)[0], want, rtol=1e-6)
