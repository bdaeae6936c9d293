"""Nobody waits for TVM without having been told."""

import logging
from pathlib import Path

import onnx_ir as ir
import pytest

pytest.importorskip("tvm")

from edgeinfer.convert.lower.tvm import build  # isort: skip
from edgeinfer.convert.lower.target import LowerOptions  # isort: skip
from edgeinfer.convert.lower.tvm.target import TvmTarget  # isort: skip
from edgeinfer.convert.passes import normalise  # isort: skip
from edgeinfer import profiles  # isort: skip

NET = """<ir_version: 10, opset_import: ["" : 24]>
net (float[1, 8] x) => (float[1, 8] y) { y = Relu(x) }"""


def test_what_is_quick_is_not_announced() -> None:
    assert build.effort(60, 14_000) == ""


def test_what_takes_long_is_told_with_its_size() -> None:
    assert build.effort(100, 60_000) == (
        "TVM compiles 100 kernels, 60000 lines of loops, which takes about 120 s of one core"
    )


@pytest.mark.parametrize("wait", [0.0, 30.0])
def test_it_is_told_before_it_begins(
    wait: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class StopError(Exception):
        pass

    def compiled(*_: object, **__: object) -> None:
        raise StopError

    monkeypatch.setattr(build, "WAIT_S", wait)
    monkeypatch.setattr("tvm.compile", compiled)
    model = normalise(ir.from_onnx_text(NET)).model
    profile = profiles.load("tvm-x86-64-v3")
    with caplog.at_level(logging.WARNING, "edgeinfer"), pytest.raises(StopError):
        TvmTarget().lower(model, profile, LowerOptions(precision="fp32"), tmp_path)
    assert ("TVM compiles 1 kernels" in caplog.text) == (not wait)
